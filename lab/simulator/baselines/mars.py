"""MARS, as its paper has it: a window by AIMD before the engine, a feedback queue and retention inside it.

Source: MARS (arXiv 2604.26963), §4.1 (signals), §4.2 (PackQueue, UpdateWindow), §4.3 (coordinator,
co-scheduler).

Symbols: raw window → `_Window.raw`; KV soft cap → `room`; active tools and their times (EMA) →
`cpu_pressure.py`; PackQueue's orders → `MarsRouter.pack`; levels of the queue → `Coordinator.level`.

Deviations: the paper prints no constants; those here are AIMD's usual ones. Signals come once a second, as
from a stock engine, instead of from its free list. vLLM compares priorities when it lets a turn in, so a call
is not demoted while it runs; and it lets a prompt in only where all of it fits, so that only running ones
shrink. Tools are slow when they take twice what the same tools did before: the paper
names the two signals, and no rule. The clamp of the window by KV is a bound on what those who are in hold.
Retention's benefit is the prefill it saves, its cost the blocks it keeps from those that wait, for as long as
the tool takes by the EMA. The window has no clamp by the CPU, and neither compute pressure nor the launch
delay moves it: the paper prints no rule for these.

Invariants: a session that entered stays in until it ends; at least one session may be in.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Command
from gateway.cost.profile import Profile
from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.cpu_pressure import CpuPressure
from lab.simulator.baselines.pauses import tool_name
from lab.simulator.baselines.plan import Plan, Recipe, Values
from lab.simulator.baselines.router import Affinity, Member, ReplicaBook, Router, Turn
from lab.simulator.engine.policy import EnginePolicy, Retained
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.fleet import FleetSpec

_LOW, _HIGH = 0.75, 0.9
"""Shares of the KV cache: where the soft cap begins, and overload."""
_PERSISTS = 3
"""Reports in a row until overload, or health, counts."""
_TOOL = 0.2
"""Of the average of a tool's time."""
_HELD = 0.9
"""Share of the KV cache for what the sessions hold that are in."""
_LEVELS = 4
_FIRST_TOKENS = 8_192
"""Of the highest level; twice as many for each below."""
_PROMOTED_S = 10.0
_MOST_TOKENS = 1e9
"""No footprint is as large."""


class _Window(msgspec.Struct):
    """Of one replica."""

    raw: float = 4.0
    kv_used: float = 0.0
    overloaded: int = 0
    healthy: int = 0
    preemptions: int = 0

    def report(self, used: float, preemptions: int, *, cpu_is_congested: bool) -> None:
        is_bad = used >= _HIGH or preemptions > self.preemptions or cpu_is_congested
        self.kv_used, self.preemptions = used, preemptions
        self.overloaded = self.overloaded + 1 if is_bad else 0
        self.healthy = self.healthy + 1 if used < _LOW and not is_bad else 0
        if self.overloaded == _PERSISTS:
            self.raw, self.overloaded = max(1.0, self.raw / 2), 0
        elif self.healthy == _PERSISTS:
            self.raw, self.healthy = self.raw + 1, 0

    def room(self, kv_tokens: int) -> float:
        """Tokens that may still be projected: less and less of what is free, once the cap begins."""
        free = 1.0 - self.kv_used
        return kv_tokens * free * min(1.0, free / (1.0 - _LOW))


class MarsRouter(Router):
    def __init__(self, kv_tokens: Mapping[str, int]) -> None:
        super().__init__(kv_tokens, Affinity(), None)
        self._windows: dict[ReplicaId, _Window] = {}
        self._cpu = CpuPressure()
        self._entered: dict[ReplicaId, float] = {}
        """Projected tokens of those that entered since the last report."""

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        match event:
            case ev.EngineReported():
                signals = event.signals
                window = self._windows.setdefault(event.replica, _Window())
                if window is next(iter(self._windows.values())):  # each replica reports once a second
                    self._cpu.second_passed()
                window.report(
                    (signals.kv_used or 0.0) + (signals.kv_retained or 0.0),
                    signals.preemptions or 0,
                    cpu_is_congested=self._cpu.is_congested,
                )
                self._entered[event.replica] = 0.0
                return list(self._let_in(now=now))
            case ev.RequestArrived() if event.facts.explicit is not None:
                stated = event.facts.explicit
                self._cpu.ended((stated.session, stated.thread or ""), now=now)
            case ev.ResponseFinished() if event.answer.tool_calls:
                turn = self.live[event.request]
                tools = "+".join(sorted({call.name for call in event.answer.tool_calls}))
                self._cpu.began((turn.member.name, turn.thread), tools, now=now)
            case _:
                pass
        return super().handle(event, now=now)

    def _ready(self) -> Iterator[Turn]:
        """Turns of sessions that are in, then newcomers in the order of the queue."""
        waiting = list(self._waiting.values())
        yield from [turn for turn in waiting if turn.member.book is not None]
        for turn in self.pack([turn for turn in waiting if turn.member.book is None]):
            if turn.member.book is not None:
                yield turn  # another turn of its session entered just now
                continue
            books = [book for book in self._books if self._may_enter(turn.member, book)]
            if books:
                book = self._placement.choose(turn.member, books)
                self._entered[book.replica] = self._entered.get(book.replica, 0.0) + turn.member.tokens
                self._enter(turn.member, book)
                yield turn

    def pack(self, queue: list[Turn]) -> list[Turn]:
        """Smallest first; while tools are slow the longest first. Who does not fit keeps nobody from
        entering, so that under KV pressure a feasible set of smaller ones does."""
        return sorted(queue, key=lambda turn: turn.member.tokens, reverse=self._cpu.is_congested)

    def _may_enter(self, member: Member, book: ReplicaBook) -> bool:
        if not book.members:
            return True
        window = self._windows.setdefault(book.replica, _Window())
        room = window.room(book.kv_tokens) - self._entered.get(book.replica, 0.0)
        held = sum(each.tokens for each in book.members.values())
        room = min(room, _HELD * book.kv_tokens - held)
        return len(book.members) < int(window.raw) and member.tokens <= room


class _Session(msgspec.Struct):
    footprint: int
    served: int = 0
    """Tokens computed for it."""


class Coordinator(EnginePolicy):
    """Feedback queue, retention, and eviction by the same levels, of one engine."""

    shrinks_chunks = True
    waiting_grace_s = 0.0

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._sessions: dict[str, _Session] = {}
        self._paused: dict[tuple[str, int], tuple[str, float]] = {}
        """Conversations whose tools run: which, and since when."""
        self._tools_s: dict[str, float] = {}
        """EMA, by tool."""
        self._waiting: dict[int, EngineTurn] = {}

    def level(self, turn: EngineTurn) -> int:
        """0 is the highest: by footprint at first, then by what the session has been served as well."""
        session = self._sessions.get(turn.session.id) or _Session(turn.turn.input_tokens)
        level, most = 0, _FIRST_TOKENS
        while level < _LEVELS - 1 and max(session.footprint, session.served) > most:
            level, most = level + 1, most * 2
        return level

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        """A level is worth the time after which whoever waits is promoted by one."""
        tool, since_s = self._paused.pop((turn.session.id, turn.ref.thread), ("", None))
        if since_s is not None:
            before_s = self._tools_s.get(tool, now - since_s)
            self._tools_s[tool] = before_s + _TOOL * (now - since_s - before_s)
        self._waiting[turn.number] = turn
        self._sessions.setdefault(turn.session.id, _Session(turn.turn.input_tokens))
        return int(1000 * (self.level(turn) * _PROMOTED_S + now))

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        self._waiting.pop(turn.number, None)
        context = turn.turn.input_tokens + turn.turn.output_tokens
        session = self._sessions.setdefault(turn.session.id, _Session(turn.turn.input_tokens))
        session.served += context - turn.cached_tokens
        if turn.is_last:
            if turn.ref.thread == 0:
                self._sessions.pop(turn.session.id, None)
            return None
        self._paused[turn.session.id, turn.ref.thread] = tool_name(turn), now
        saved_s = prefill_s(self._profile, context)
        waiting = sum(each.began_s is None for each in self._waiting.values())
        expected_s = self._tools_s.get(tool_name(turn), saved_s)
        if waiting and expected_s > saved_s:
            return None
        return now + max(saved_s, 2 * expected_s)

    def release_order(self, retained: Sequence[Retained], *, now: float) -> Sequence[Retained]:
        """The lowest level first, and of one level the largest."""
        return sorted(retained, key=lambda each: (-self.level(each.turn), -each.blocks))

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        """As `release_order`; before all what is over."""
        if turn.is_last:
            return -math.inf
        footprint = turn.turn.input_tokens + turn.turn.output_tokens
        return -self.level(turn) - footprint / _MOST_TOKENS


def _mars(plan: Plan, values: Values) -> Plan:
    def brain(fleet: FleetSpec) -> MarsRouter:
        return MarsRouter(plan.kv_tokens(fleet))

    return plan.with_brain(brain).with_policy(lambda: Coordinator(plan.profile), by_priority=True)


MARS = Recipe(
    name="mars",
    summary="AIMD window and packing before the engine, a feedback queue and retention inside",
    source="MARS §4",
    apply=_mars,
)
