"""Both sides' figures beside each other: what is better, what is worse, what waited and why."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from benchmarks.verdict import percentile
from demo.records import Held
from demo.sides import Side
from gateway.dashboard.sentences import WAITS
from gateway.domain.decision import WaitReason
from lab.simulator.results import TurnOutcome

SAME = 1.05
"""Two runs of the same side differ by about as much, on a machine that nobody else uses."""
BLOCK = 32
"""Tokens. A cache holds whole blocks."""
MANY_STRANGERS = 0.15
"""Of the machine; figures that were taken beside that say little."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    """`s`, `%` or nothing."""
    stock: float
    ours: float
    is_more_better: bool = False
    is_judged: bool = True
    """Else it explains others, and is neither good nor bad."""

    @property
    def ratio(self) -> float | None:
        """Turnpike's to stock's."""
        return self.ours / self.stock if self.stock else None

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `same`; nothing if it is not judged."""
        if not self.is_judged:
            return ""
        good, bad = (self.ours, self.stock) if self.is_more_better else (self.stock, self.ours)
        if max(good, bad) <= SAME * min(good, bad):
            return "same"
        return "better" if good > bad else "worse"

    def text(self, value: float) -> str:
        if self.unit == "%":
            return f"{100 * value:.0f} %"
        return f"{value:,.1f} s" if self.unit else f"{value:,.0f}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    stock: Side
    ours: Side
    held: Mapping[WaitReason, Held]
    """Whom Turnpike let wait, real agents too."""
    kv_tokens: int
    """That the engines' caches hold."""
    peak_tokens: int
    """That the replayed conversations need, each at its longest."""

    @property
    def is_done(self) -> bool:
        return self.stock.is_done and self.ours.is_done

    @property
    def measures(self) -> list[Measure]:
        return [
            Measure(
                name=name,
                unit=unit,
                stock=count(self.stock),
                ours=count(self.ours),
                is_more_better=count is _hit_rate,
                is_judged=count not in (_queued_s, _at_door_s),
            )
            for name, unit, count in _MEASURED
        ]

    @property
    def waits(self) -> list[str]:
        """What waited, and why."""
        held = [
            f"Turnpike: {of.sessions} sessions {of.seconds:.0f} s at the gateway: {WAITS[reason.value]}"
            for reason, of in self.held.items()
        ]
        queued = "requests {:.0f} s in the engines' queues, until a step had room for them"
        return [
            f"stock: {queued.format(self.stock.counts.queued_s)}",
            *held,
            f"Turnpike: {queued.format(self.ours.counts.queued_s)}",
        ]

    @property
    def losses(self) -> list[str]:
        """Where it does not help, in a line each."""
        lost = [
            f"{each.name}: {each.text(each.stock)} → {each.text(each.ours)}"
            for each in self.measures
            if each.verdict == "worse"
        ]
        limit = percentile(_first_tokens(self.stock), 99)
        late = [turn for turn in self.ours.played.seen.turns if turn.first_token_s - turn.arrival_s > limit]
        at_door = sum(turn.waited_s > (turn.first_token_s - turn.arrival_s) / 2 for turn in late)
        if at_door:
            lost.append(
                f"of first tokens {len(late)} came later than stock's 99th percentile, {at_door} of them as "
                "their turns waited at the gateway: who does not fit waits once, not a little at each turn"
            )
        return lost

    @property
    def caveats(self) -> list[str]:
        most = max(self.stock.strangers, self.ours.strangers)
        said = [f"one run of each side, stock first, on {os.cpu_count()} cores that everything shares"]
        if most > MANY_STRANGERS:
            said.append(
                f"others used up to {most:.0%} of the machine meanwhile: figures may be off by that much"
            )
        return said

    def totals(self) -> dict[str, object]:
        """For a program."""
        return {
            "measures": {
                each.name: {"stock": each.stock, "turnpike": each.ours, "verdict": each.verdict}
                for each in self.measures
            },
            "held": {reason.value: msgspec.structs.asdict(held) for reason, held in self.held.items()},
            "strangers": {"stock": self.stock.strangers, "turnpike": self.ours.strangers},
            "done": self.is_done,
        }


def _hit_rate(side: Side) -> float:
    return side.counts.cached_tokens / max(1.0, side.counts.prompt_tokens)


def _lost_tokens(side: Side) -> float:
    """What the conversation's turn before had left, in whole blocks, and the cache no longer held."""
    return sum(
        max(0, turn.reusable_tokens // BLOCK * BLOCK - turn.cached_tokens) for turn in side.played.turned
    )


def _queued_s(side: Side) -> float:
    return side.counts.queued_s


def _at_door_s(side: Side) -> float:
    return sum(turn.waited_s for turn in side.played.seen.turns)


_MEASURED: tuple[tuple[str, str, Callable[[Side], float]], ...] = (
    ("a conversation, mean", "s", lambda side: side.played.seen.mean),
    ("a conversation, 90th percentile", "s", lambda side: side.played.seen.p90),
    ("a real agent, mean", "s", lambda side: statistics.mean(run.duration_s for run in side.agents)),
    ("everybody done after", "s", lambda side: side.took_s),
    ("first token, mean", "s", lambda side: statistics.mean(_first_tokens(side))),
    ("first token, median", "s", lambda side: percentile(_first_tokens(side), 50)),
    ("first token, 99th percentile", "s", lambda side: percentile(_first_tokens(side), 99)),
    ("prompt tokens found in the prefix cache", "%", _hit_rate),
    (
        "prompt tokens computed",
        "",
        lambda side: side.counts.prompt_tokens - side.counts.cached_tokens,
    ),
    ("conversations' tokens computed again", "", _lost_tokens),
    ("preemptions", "", lambda side: side.counts.preemptions),
    ("waited in the engines' queues, in all", "s", _queued_s),
    ("waited at the gateway, in all", "s", _at_door_s),
)
"""First tokens, what is computed again and waits at the gateway are the replayed conversations'; what engines
count is everybody's."""


def _first_tokens(side: Side) -> list[float]:
    return [turn.first_token_s - turn.arrival_s for turn in side.played.seen.turns]


def done_over_time(side: Side, at_s: Sequence[float]) -> list[int]:
    """How many replayed conversations were done at each of these times, since the side began."""
    ends = [max(turn.end_s for turn in turns) for turns in by_conversation(side).values()]
    return [sum(end_s <= each for end_s in ends) for each in at_s]


def by_conversation(side: Side) -> dict[str, list[TurnOutcome]]:
    """In the order of their arrival."""
    found: dict[str, list[TurnOutcome]] = {}
    for turn in sorted(side.played.seen.turns, key=lambda turn: turn.arrival_s):
        found.setdefault(turn.session, []).append(turn)
    return found
