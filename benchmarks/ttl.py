"""How long is state worth holding? Times to live against one another, on recorded sessions, in one small
pool.

Run with `python -m benchmarks.ttl FILE ... [--share S] [--quick] [--json]`. Each file holds recorded
exchanges (docs/reference/exchanges.md). They happen when they were recorded; what a conversation's turn
leaves behind stays in a pool of tokens, `--share` of what all conversations that are alive hold at the most,
until a turn needs the room. A turn whose conversation's state is gone computes it again: that is what is
counted. No time is modelled: a turn takes as long as it took. The policies say who makes room first:

* `lru`: whoever was used the longest time ago;
* `fixed`: nobody within 6 s of his turn, if there is anybody else;
* `infinite`: nobody; a turn that finds no room leaves nothing behind;
* `ours`: whoever is expected back last, by what the workflow view said at the pause (learned online from the
same traffic) and by how long he has been silent since;
* `ours_constant_reuse` and `ours_constant_ttl`: the same, with one probability of the end, or one time of
return, for all;
* `oracle`: whoever comes back last, or never (Bélády).

A state that is protected for a while and not used within that while was held in vain: token-seconds. The
second half of each file counts.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.verdict import Verdict
from gateway.domain import records as rec
from gateway.evaluation.metrics import true_parents
from gateway.evaluation.recording import Exchange, read_recording
from gateway.evaluation.replay import Replay
from gateway.workflow.return_model import expected_wait_s

_BYTES_PER_TOKEN: Final = 4.0
FIXED_S: Final = 6.0
ENDS: Final = 0.05


class State(msgspec.Struct, kw_only=True):
    """What one turn left behind."""

    number: int
    tokens: float
    since_s: float
    until_s: float
    """Until when it is protected."""
    next_s: float
    """When it is used again; the oracle alone may look."""
    median_s: float = FIXED_S / 3
    p95_s: float = FIXED_S
    """Of the pause behind it, as it was expected."""
    ends: float = ENDS


Rank = Callable[[State, float], tuple[float, ...]]
"""Who makes room first: the lowest."""


class Policy(msgspec.Struct, frozen=True):
    ttl_s: Callable[[int], float]
    """Of what the exchange with this number leaves behind."""
    rank: Rank
    is_pinned: bool = False


class Outcome(msgspec.Struct):
    recomputed: float = 0.0
    reused: float = 0.0
    in_vain: float = 0.0


def by_age(state: State, now: float) -> tuple[float, ...]:
    return (float(state.until_s > now), state.since_s)


def by_outlook(state: State, now: float) -> tuple[float, ...]:
    return (-_wait_s(state, now, state.median_s, state.p95_s, state.ends),)


def by_time_alone(state: State, now: float) -> tuple[float, ...]:
    return (-_wait_s(state, now, state.median_s, state.p95_s, ENDS),)


def by_end_alone(state: State, now: float) -> tuple[float, ...]:
    return (-_wait_s(state, now, FIXED_S / 3, FIXED_S, state.ends),)


def _wait_s(state: State, now: float, median_s: float, p95_s: float, ends: float) -> float:
    return expected_wait_s(now - state.since_s, median_s=median_s, p95_s=max(p95_s, median_s), ends=ends)


def by_next_use(state: State, now: float) -> tuple[float, ...]:
    return (-state.next_s,)


class Recording:
    """Exchanges, who follows whom, and what was said of each at its pause."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self.exchanges = exchanges
        self.parents, _ = true_parents(exchanges)
        self.children: dict[int, int] = {}
        for number, parent in self.parents.items():
            self.children.setdefault(parent, number)
        self.said: dict[int, rec.StepPredicted] = {}
        Replay(exchanges, without_ids=False, on_record=self._hear).run()
        self.tokens = [len(each.body_bytes(without_ids=False)) / _BYTES_PER_TOKEN for each in exchanges]

    def _hear(self, record: rec.Record) -> None:
        if isinstance(record, rec.StepPredicted):
            self.said[int(record.turn)] = record

    def next_s(self, number: int) -> float:
        child = self.children.get(number)
        return self.exchanges[child].t if child is not None else math.inf

    def ends_s(self, number: int) -> float:
        exchange = self.exchanges[number]
        return exchange.t_end if exchange.t_end is not None else exchange.t

    def peak(self) -> float:
        """Tokens of all conversations that are alive, at the most."""
        steps: list[tuple[float, float]] = []
        for number in range(len(self.exchanges)):
            until = self.next_s(number)
            steps.append((self.exchanges[number].t, self.tokens[number]))
            steps.append((until if until < math.inf else self.ends_s(number), -self.tokens[number]))
        most = held = 0.0
        for _, change in sorted(steps):
            held += change
            most = max(most, held)
        return most


def play(recording: Recording, policy: Policy, capacity: float) -> Outcome:
    """The second half counts."""
    half = len(recording.exchanges) // 2
    states: dict[int, State] = {}
    running: dict[int, float] = {}
    found = Outcome()
    moments = [(each.t, 1, number) for number, each in enumerate(recording.exchanges) if each.is_turn]
    moments += [(max(recording.ends_s(number), at), 0, number) for at, _, number in moments]
    for now, begins, number in sorted(moments):
        counts = number >= half
        if begins:
            parent = recording.parents.get(number)
            state = states.pop(parent, None) if parent is not None else None
            if parent is not None:
                could = min(recording.tokens[parent], recording.tokens[number])
                kept = min(state.tokens, could) if state is not None else 0.0
                found.recomputed += counts * (could - kept)
                found.reused += counts * kept
                if state is not None and counts:
                    found.in_vain += (
                        state.tokens * max(0.0, min(now, state.until_s) - state.since_s) * (kept <= 0)
                    )
            running[number] = recording.tokens[number]
            _make_room(states, running, capacity, policy, now, found, counts=counts)
        else:
            tokens = running.pop(number)
            said = recording.said.get(number)
            state = State(
                number=number,
                tokens=tokens,
                since_s=now,
                until_s=now + policy.ttl_s(number),
                next_s=recording.next_s(number),
            )
            if said is not None:
                state.ends = said.ends
            if said is not None and said.returns_in_s is not None:
                state.median_s, state.p95_s = said.returns_in_s, said.retain_s
            states[number] = state
            _make_room(states, running, capacity, policy, now, found, counts=counts, newest=number)
    for state in states.values():
        if state.number >= half and state.next_s == math.inf:
            held_s = min(state.until_s, recording.exchanges[-1].t) - state.since_s
            found.in_vain += state.tokens * max(0.0, held_s)
    return found


def _make_room(
    states: dict[int, State],
    running: dict[int, float],
    capacity: float,
    policy: Policy,
    now: float,
    found: Outcome,
    *,
    counts: bool,
    newest: int | None = None,
) -> None:
    over = sum(running.values()) + sum(state.tokens for state in states.values()) - capacity
    if over <= 0:
        return
    if policy.is_pinned and newest is not None:
        order = [states[newest]]
    else:
        order = sorted(states.values(), key=lambda state: policy.rank(state, now))
    for state in order:
        taken = min(over, state.tokens)
        state.tokens -= taken
        over -= taken
        if counts and state.next_s == math.inf:
            found.in_vain += taken * max(0.0, min(now, state.until_s) - state.since_s)
        if state.tokens <= 0:
            del states[state.number]
        if over <= 0:
            return


def policies(recording: Recording) -> dict[str, Policy]:
    def ours(number: int) -> float:
        said = recording.said.get(number)
        return said.retain_s if said is not None else FIXED_S

    return {
        "oracle": Policy(lambda _: 0.0, by_next_use),
        "lru": Policy(lambda _: 0.0, by_age),
        "fixed": Policy(lambda _: FIXED_S, by_age),
        "infinite": Policy(lambda _: math.inf, by_age, is_pinned=True),
        "ours": Policy(ours, by_outlook),
        "ours_constant_reuse": Policy(ours, by_time_alone),
        "ours_constant_ttl": Policy(lambda _: FIXED_S, by_end_alone),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Times to live against one another.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded exchanges")
    parser.add_argument("--share", type=float, nargs="+", default=[0.5, 0.7, 0.85], metavar="S")
    parser.add_argument("--quick", action="store_true", help="the first file alone")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    arguments = parser.parse_args()
    verdict = Verdict()
    for path in arguments.files[:1] if arguments.quick else arguments.files:
        recording = Recording(read_recording(path))
        name, peak = path.name.split(".")[0], recording.peak()
        for share in arguments.share:
            outcomes = {
                kind: play(recording, policy, share * peak) for kind, policy in policies(recording).items()
            }
            best = outcomes["oracle"].recomputed
            for kind, outcome in outcomes.items():
                key = f"{name}.{share:g}.{kind}"
                verdict.tell(f"{key}.recomputed_share", _part(outcome.recomputed, outcome))
                verdict.tell(f"{key}.in_vain_token_s", outcome.in_vain)
                if kind == "ours":
                    ratio = outcome.recomputed / best if best else None if outcome.recomputed else 1.0
                    verdict.at_most(f"{key}.recomputed_to_oracle", ratio, 1.25)
                elif kind != "oracle":
                    verdict.tell(f"{key}.recomputed_to_oracle", outcome.recomputed / best if best else None)
    if not arguments.json:
        for key, figure in verdict.figures.items():
            value = "-" if figure.value is None else f"{figure.value:g}"
            print(f"{key:<56}{value:>12}   {figure.target or '':<12}{'' if figure.ok else 'MISSED'}")
    print(verdict.as_json())
    return verdict.exit_status


def _part(recomputed: float, outcome: Outcome) -> float | None:
    total = recomputed + outcome.reused
    return recomputed / total if total else None


if __name__ == "__main__":
    sys.exit(main())
