"""ThunderAgent, and Dynamo's program scheduler: whole programs pause while those that are in do not fit.

Source: ThunderAgent (arXiv 2602.13692), as its published code has it (`scheduler/router.py`, commit 699f111):
capacity by footprint, `_pause_until_safe`, `_greedy_resume`, a tick of 5 s, a wait of 30 minutes at most.
Dynamo's `thunderagent_router` (1.6, experimental), by its documentation: the same with other thresholds.

Symbols: REASONING → a turn runs; ACTING → none does; `remaining_capacity` → `left`; `BUFFER_PER_PROGRAM` →
`_BUFFER`; `marked_for_pause` → `_marked`; Dynamo's `pause-threshold`, `pause-target`, `resume-hysteresis` →
`Limits`.

Deviations: a program's footprint is that of its conversations, by usage once there is some. Paused programs
that ask come before those that do not, as the code's documentation has it. A program that would be alone on a
replica always fits. Dynamo's soft demotion and the boost of what resumed are left out: they order a queue in
its router, and here nothing waits there that may run.

Invariants: a program pauses between turns only; whoever is in never waits.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Command
from lab.simulator.baselines.plan import Plan, Recipe, Values
from lab.simulator.baselines.router import Affinity, Member, ReplicaBook, Router, Turn
from lab.simulator.fleet import FleetSpec

_BUFFER: Final = 100
"""Tokens of each program, to decode into."""
_TICK_S: Final = 5.0
_MOST_S: Final = 1800.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of a replica's KV."""

    pause_above: float = 1.0
    pause_to: float = 1.0
    resume_below: float = 1.0


DYNAMO: Final = Limits(pause_above=0.95, pause_to=0.8, resume_below=0.85)


class ProgramRouter(Router):
    def __init__(self, kv_tokens: Mapping[str, int], limits: Limits) -> None:
        super().__init__(kv_tokens, Affinity(), None)
        self._limits = limits
        self._paused: set[str] = set()
        """Programs that were in."""
        self._marked: set[str] = set()
        self._tick_s = 0.0

    def next_deadline_s(self) -> float | None:
        return self._tick_s + _TICK_S if self._members else None

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        if isinstance(event, ev.TimerFired) and now >= self._tick_s + _TICK_S:
            self._tick_s = now
            for book in self._books:
                self._pause_until_safe(book)
            self._resume(now=now)
            return list(self._let_in(now=now))
        if isinstance(event, ev.ResponseFinished):
            member = self.live[event.request].member
            commands = super().handle(event, now=now)
            if member.name in self._marked and member.book is not None and not self._is_reasoning(member):
                self._pause(member, member.book)
            return commands
        return super().handle(event, now=now)

    def left(self, book: ReplicaBook, share: float) -> float:
        """Tokens until so much of it is used."""
        used = sum(self._needs(each) for each in book.members.values() if each.name not in self._marked)
        return share * book.kv_tokens - used

    def _needs(self, member: Member) -> int:
        return member.tokens + _BUFFER

    def _is_reasoning(self, member: Member) -> bool:
        return any(turn.member is member and turn.book is not None for turn in self.live.values())

    def _pause_until_safe(self, book: ReplicaBook) -> None:
        """The smallest first: those whose tools run, then those whose turns do, at their end."""
        if self.left(book, self._limits.pause_above) >= 0:
            return
        members = [member for member in book.members.values() if member.name not in self._marked]
        for member in sorted(members, key=lambda each: (self._is_reasoning(each), each.tokens)):
            if self.left(book, self._limits.pause_to) >= 0:
                return
            if self._is_reasoning(member):
                self._marked.add(member.name)
            else:
                self._pause(member, book)

    def _pause(self, member: Member, book: ReplicaBook) -> None:
        del book.members[member.name]
        member.book = None
        self._marked.discard(member.name)
        self._paused.add(member.name)

    def _resume(self, *, now: float) -> None:
        """Those that were in and ask, then the new, then those whose tools run; the smallest first."""
        asking = {turn.member.name: turn.arrived_s for turn in reversed(self._waiting.values())}

        def rank(member: Member) -> tuple[int, int]:
            group = 1 if member.name not in self._paused else 0 if member.name in asking else 2
            return group, member.tokens

        outside = [member for member in self._members.values() if member.book is None]
        for member in sorted(outside, key=rank):
            books = list(self._fitting(member, self._limits.resume_below))
            if not books and now - asking.get(member.name, now) >= _MOST_S:
                books = self._books
            self._let_in_where(member, books)

    def _fitting(self, member: Member, share: float) -> Iterable[ReplicaBook]:
        for book in self._books:
            if not book.members or self.left(book, share) >= self._needs(member):
                yield book

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        """A newcomer is in at once if it fits somewhere, and nobody is outside already."""
        super()._arrived(event, now=now)
        member = self.live[event.request].member
        if [each for each in self._members.values() if each.book is None] == [member]:
            if member.name not in self._paused:
                self._let_in_where(member, list(self._fitting(member, self._limits.pause_above)))

    def _let_in_where(self, member: Member, books: list[ReplicaBook]) -> None:
        if books:
            self._paused.discard(member.name)
            self._enter(member, max(books, key=lambda book: self.left(book, 1.0)))

    def _ready(self) -> Iterator[Turn]:
        return iter([turn for turn in self._waiting.values() if turn.member.book is not None])

    def _over(self, name: str) -> None:
        super()._over(name)
        self._paused.discard(name)
        self._marked.discard(name)


def _recipe(name: str, summary: str, source: str, limits: Limits) -> Recipe:
    def apply(plan: Plan, values: Values) -> Plan:
        def brain(fleet: FleetSpec) -> ProgramRouter:
            return ProgramRouter(plan.kv_tokens(fleet), limits)

        return plan.with_brain(brain)

    return Recipe(name=name, summary=summary, source=source, apply=apply)


THUNDERAGENT = _recipe(
    "thunderagent",
    "whole programs pause while the footprints of those that are in exceed the KV cache",
    "arXiv 2602.13692, its code",
    Limits(),
)
DYNAMO_PROGRAM = _recipe(
    "dynamo-program",
    "the same from 0.95 of it down to 0.8, and they resume below 0.85",
    "Dynamo 1.6, its documentation",
    DYNAMO,
)
