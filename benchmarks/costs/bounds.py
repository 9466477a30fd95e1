"""Bounds: what five of them add to a turn and to a session.

Turns of agents go through what reads requests and through the brain, once without bounds, once with five of
them, in alternation.
"""

import gc
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from benchmarks.verdict import Verdict
from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.request import Answer, ToolCall, Usage
from gateway.domain.session_ids import numbered_ids
from gateway.wire.endpoints import classify
from gateway.wire.facts import TRANSCRIPTS, read_body_facts, read_header_facts

CHAT: Final = classify("POST", "/v1/chat/completions")
HEADERS: Final = read_header_facts([])
TENANT: Final = TenantId("t")
NOON: Final = 1_795_600_000.0
TURNS: Final = 12
"""Of a conversation."""
BOUNDS: Final[list[dict[str, Any]]] = [
    {"name": "loop", "repeats": 50, "same_calls": 90},
    {"name": "run", "turns": 10**6, "tokens": 10**12, "wall_s": 1e9},
    {"name": "cost", "cost": 1e9},
    {"name": "day", "of": "tenant", "per": "day", "tokens": 10**12},
    {"name": "type", "of": "agent", "per": "month", "turns": 10**9},
]


def brain(*, is_bounded: bool) -> Coordinator:
    settings: dict[str, Any] = {"pools": [{"name": "pool", "replicas": [{"url": "http://a"}]}]}
    if is_bounded:
        key = "sha256:" + "0" * 64
        settings |= {
            "bounds": BOUNDS,
            "prices": [{"model": "*", "input": 1.0}],
            "tenants": [{"name": TENANT, "key_hashes": [key]}],
        }
    made = assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())
    made.handle(ev.ReplicaCameUp(ReplicaFacts(id=ReplicaId("a"), pool=PoolId("pool"))), now=NOON)
    TRANSCRIPTS.tells_steps = is_bounded
    return made


def bodies(name: str, rng: random.Random) -> Iterator[tuple[bytes, ToolCall]]:
    """Each request of a conversation, and the call that it is answered with."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You repair programs. " * 20},
        {"role": "user", "content": f"Repair {name}, please: {rng.random()}"},
    ]
    for number in range(TURNS):
        call_id = f"call_{name}_{number}_{rng.getrandbits(48):x}"
        yield json.dumps({"model": "m", "messages": messages}).encode(), ToolCall(call_id, "bash")
        arguments = json.dumps({"command": f"sed -n {number},+40p src/{name}.py"})
        function = {"name": "bash", "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        result = "\n".join(f"line {line} of {rng.random()}" for line in range(30))
        messages.append({"role": "tool", "tool_call_id": call_id, "content": result})


def play(of: Coordinator, name: str, rng: random.Random) -> float:
    """Seconds of CPU that a conversation's turns take."""
    took_s = 0.0
    for number, (body, call) in enumerate(bodies(name, rng)):
        request = RequestId(f"{name}-{number}")
        usage = Usage(prompt_tokens=len(body) // 4, output_tokens=40)
        began_s = time.thread_time()
        facts = read_body_facts(CHAT, HEADERS, body)
        of.handle(ev.RequestArrived(request, TENANT, facts), now=NOON + number)
        answer = Answer(status=200, tool_calls=(call,), usage=usage, has_terminal=True)
        of.handle(ev.AnsweredAtOnce(request, answer, has_first_token=True), now=NOON + number + 0.5)
        took_s += time.thread_time() - began_s
    assert not of.live
    return took_s


def costs_us(conversations: int) -> list[float]:
    """What bounds add to a turn: of each pair of conversations, one with and one without, the difference."""
    found = []
    with_bounds, without = brain(is_bounded=True), brain(is_bounded=False)
    gc.disable()
    for number in range(conversations):
        TRANSCRIPTS.tells_steps = False
        off_s = play(without, f"timed-{number}", random.Random(number))
        TRANSCRIPTS.tells_steps = True
        on_s = play(with_bounds, f"timed-{number}", random.Random(-number - 1))
        found.append((on_s - off_s) / TURNS * 1e6)
        gc.collect(0)
    gc.enable()
    TRANSCRIPTS.tells_steps = False
    return found


def bytes_each(sessions: int) -> float:
    """Of what bounds remember of a session of one conversation."""
    of = brain(is_bounded=True)
    bounds = of.bounding.bounds
    assert bounds is not None
    play(of, "first", random.Random(0))
    (tally,) = bounds.sessions.values()
    (thread,) = tally.threads
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(sessions):
        fresh = bounds.sessions[f"s-{number}"] = type(tally)(tally.agent, number)  # type: ignore[index]
        fresh.used = fresh.used.plus(tally.used)
        repeats = fresh.repeats(thread)
        for step in range(1, 6):
            repeats.saw((number << 32) + step, step << 40, step << 41)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / sessions


def measure(is_quick: bool, verdict: Verdict, tell: Callable[..., Any]) -> None:
    conversations = 60 if is_quick else 400
    costs = costs_us(conversations)
    cost = statistics.median(costs)
    quartiles = statistics.quantiles(costs, n=4)
    tell(f"five bounds add {cost:.1f} µs to a turn (quartiles {quartiles[0]:.1f} to {quartiles[2]:.1f})")
    verdict.at_most("five_bounds_us_a_turn", cost, 150.0)
    verdict.at_most("bytes_a_session", bytes_each(2_000 if is_quick else 20_000), 2_000.0)
