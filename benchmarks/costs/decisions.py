"""Admission while 5,000 sessions wait, of one tenant, of ten, and of as many tenants."""

import gc
import random
import time
from typing import Any

from benchmarks.verdict import Verdict, percentile
from tests.admission.applicants import Play, answered

WAITING = 5000


def measure(is_quick: bool, verdict: Verdict, say: Any) -> None:
    for tenants in (1, 10, WAITING):
        decision_ms, event_ms = decisions(tenants, rounds=300 if is_quick else 3000)
        verdict.at_most(f"decision_p99_ms_{tenants}_tenants", decision_ms, 1.0)
        verdict.tell(f"event_p99_ms_{tenants}_tenants", event_ms)


def decisions(tenants: int, *, rounds: int, places: int = 20) -> tuple[float, float]:
    """The 99th percentile of what admission takes, in ms of processor time: for each session that asks
    or is let in, and for each event, which may let in several.

    An engine has KV for some `places` sessions."""
    play = Play().has(kv_tokens=places * 12_000)
    rng = random.Random(1)
    spent: list[tuple[float, float]] = []

    def timed(call: Any, *values: Any, **fields: Any) -> Any:
        began = time.process_time()
        found = call(*values, **fields)
        spent_s = time.process_time() - began
        spent.append((spent_s / max(1, len(found) if isinstance(found, list) else 1), spent_s))
        return found

    def comes(number: int) -> None:
        timed(
            play.ask, f"s{number}", tenant=f"t{number % tenants}", body_bytes=rng.randrange(20_000, 200_000)
        )

    for number in range(WAITING + places):
        play.now += 0.001
        comes(number)
    gc.collect()
    gc.freeze()
    spent.clear()
    for number in range(rounds):
        play.now += 0.02
        session = rng.choice(sorted({str(each.session) for each in play.running.values()}))
        timed(play.end, session, outcome=answered(tokens=10_000))
        if number % 2:
            timed(play.finish, session)
        comes(WAITING + places + number)
        if not play.running:
            play.later(0.2)
    gc.unfreeze()
    of_decisions, of_events = (percentile(each, 99) * 1e3 for each in zip(*spent, strict=True))
    return of_decisions, of_events
