"""SAGA's global scheduler: affinity by load, work stealing, prefetch, and shares of a worker by urgency.

Source: SAGA (arXiv 2605.00528), §3.1 (epochs), §4.3 (prefetch), §5.1 Eq. 7 (routing), §5.2 (stealing), §6.2
(scheduling by Agent Fair Share; the share itself is in `saga_share.py`).

Symbols: load(w) → `SagaRouter.load`; θ → `_STAY_BELOW`; cached(w, s) → `is_cached`; T_idle → `EPOCH_S`; R_max
→ `_IMBALANCE`.

Deviations: load(w) is the KV of the turns that run there or wait for it, of its capacity; a turn waits in the
router while it does not fit beside what runs, and of a tenant the oldest task goes first. Where no worker is
below θ a session stays: there is headroom nowhere. cached(w, s) is believed while less was written there
since than it can hold. A stolen session's new prompt is computed where its KV is, before others, and handed
over from there; without a network it is computed anew. Nothing that runs is preempted for another tenant.

Invariants: a session is stolen once at most; a turn is sent to where its session is.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from math import inf

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Command, Prefill, RemotePrefill, StopPrefill
from gateway.cost.profile import Profile
from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.request import Answer
from gateway.tool_probe.quantiles import LogQuantiles
from lab.simulator.baselines.router import Affinity, Member, ReplicaBook, Router, Turn
from lab.simulator.baselines.saga_share import EPOCH_S, Task, Urgency
from lab.simulator.engine.roofline import prefill_s

_STAY_BELOW = 0.8
_IMBALANCE = 2.0
_LEG_S = 5.0
"""A stolen session's KV is given up after so long."""
_LEAST_S = 0.01


class _Pause(msgspec.Struct):
    """Of a conversation whose tools run."""

    tools: str
    since_s: float
    turn: RequestId
    """The last one."""
    prefetch_s: float = inf
    """When its KV has to be loaded, to be there when the tools usually end."""


class SagaRouter(Router):
    def __init__(self, kv_tokens: Mapping[str, int], profile: Profile, *, alpha: float, moves: bool) -> None:
        """`moves`: a network hands KV over."""
        super().__init__(kv_tokens, Affinity(), None)
        self._profile = profile
        self._moves = moves
        self.urgency = Urgency(alpha)
        self._shares: dict[str, float] = {}
        self._epoch_s = 0.0
        self._dice = random.Random(0)  # noqa: S311 - no secret
        self._stolen: set[str] = set()
        self._moving: set[RequestId] = set()
        self._written: dict[ReplicaId, int] = {}
        """Tokens of KV that were computed there so far."""
        self._left: dict[str, tuple[ReplicaId, int]] = {}
        """Where a session's last turn ran, and how much had been written there then."""
        self._paused: dict[tuple[str, str], _Pause] = {}
        self._tools: dict[str, LogQuantiles] = {}
        self._prefetching: set[RequestId] = set()

    def load(self, book: ReplicaBook) -> float:
        return self._tokens(book, waiting=True) / book.kv_tokens

    def is_cached(self, name: str, book: ReplicaBook) -> bool:
        replica, written = self._left.get(name, (None, 0))
        return replica == book.replica and self._written[book.replica] - written <= book.kv_tokens

    def _tokens(self, book: ReplicaBook, *, waiting: bool, tenant: str | None = None) -> int:
        return sum(
            turn.member.threads[turn.thread]
            for turn in self.live.values()
            if (turn.book or (turn.member.book if waiting else None)) is book
            and (tenant is None or self._tenant(turn) == tenant)
        )

    def _tenant(self, turn: Turn) -> str:
        task = self.urgency.tasks.get(turn.member.name)
        return task.tenant if task is not None else ""  # of a session that is over but for this

    def next_deadline_s(self) -> float | None:
        due_s = min((pause.prefetch_s for pause in self._paused.values()), default=inf)
        due_s = max(self._epoch_s + EPOCH_S, 0.0 if self._waiting else due_s)
        return due_s if due_s < inf else None

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        first: list[Command] = []
        match event:
            case ev.RequestArrived():
                first = self._came_back(event, now=now)
            case ev.ResponseFinished():
                self._ended(self.live[event.request], event.answer, now=now)
            case ev.SessionFinished():
                self._forget(str(event.session))
            case ev.PrefillLegEnded():
                self._moving.discard(event.request)
                return list(self._let_in(now=now))
            case ev.PrefillEnded():
                self._prefetching.discard(event.turn)
            case ev.TimerFired() if now >= self._epoch_s + EPOCH_S:
                self._epoch_s = now
                self._shares = self.urgency.shares(now=now)
                return [*self._steal(), *self._prefetch(now=now), *self._let_in(now=now)]
            case _:
                pass
        return first + super().handle(event, now=now)

    def _came_back(self, event: ev.RequestArrived, *, now: float) -> list[Command]:
        stated = event.facts.explicit
        name = stated.session if stated is not None else str(event.request)
        kind = event.facts.transcript.agent_type
        task = self.urgency.tasks.setdefault(name, Task(str(event.tenant), kind, now))
        pause = self._paused.pop((name, (stated.thread if stated else None) or ""), None)
        if pause is None:
            return []
        task.tools_s += now - pause.since_s
        self._tools.setdefault(pause.tools, LogQuantiles(low=_LEAST_S)).add(now - pause.since_s)
        return [StopPrefill(turn=pause.turn)] if pause.turn in self._prefetching else []

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        super()._arrived(event, now=now)
        self._route(self.live[event.request])

    def _ended(self, turn: Turn, answer: Answer, *, now: float) -> None:
        assert turn.book is not None
        name, replica, usage = turn.member.name, turn.book.replica, answer.usage
        if name in self.urgency.tasks:
            self.urgency.tasks[name].served(self._profile, usage)
        tokens = (usage.prompt_tokens or 0) + (usage.output_tokens or 0)
        self._written[replica] = self._written.get(replica, 0) + tokens - (usage.cached_tokens or 0)
        self._left[name] = replica, self._written[replica]
        if answer.tool_calls:
            tools = "+".join(sorted({call.name for call in answer.tool_calls}))
            pause = self._paused[name, turn.thread] = _Pause(tools, now, turn.request)
            known = self._tools.get(tools)
            usual_s = known.quantile(0.5) if known is not None else None
            if usual_s is not None:
                pause.prefetch_s = now + max(0.0, usual_s - prefill_s(self._profile, tokens))
        if turn.is_final:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.urgency.over(name)
        self._stolen.discard(name)
        self._left.pop(name, None)
        for conversation in [key for key in self._paused if key[0] == name]:
            del self._paused[conversation]

    def _route(self, turn: Turn) -> None:
        """Eq. 7."""
        home, member = turn.member.book, turn.member
        if not self._books:
            return
        member.book = None  # its own turn is no load
        least = min(self._books, key=lambda book: (self.load(book), len(book.members)))
        is_lost = member.name in self._left and home is not None and not self.is_cached(member.name, home)
        if home is None or is_lost or self.load(home) >= _STAY_BELOW > self.load(least):
            self._move(member, home, least)
        else:
            member.book = home

    def _move(self, member: Member, home: ReplicaBook | None, to: ReplicaBook) -> None:
        if home is not None:
            home.members.pop(member.name, None)
        self._enter(member, to)

    def _steal(self) -> Iterable[Command]:
        """§5.2: for whoever has an empty queue, the oldest session that waits for somebody overloaded."""
        queues = {book.replica: self._queue(book) for book in self._books}
        for thief in self._books:
            floor = self.load(thief) * _IMBALANCE
            overloaded = [book for book in self._books if queues[book.replica] and self.load(book) > floor]
            if queues[thief.replica] or not overloaded:
                continue
            victim = self._dice.choice(overloaded)
            oldest = [turn for turn in queues[victim.replica] if turn.member.name not in self._stolen][:1]
            if not oldest or not self._fits(turn := oldest[0], thief):
                continue
            queues[victim.replica].remove(turn)
            self._stolen.add(turn.member.name)
            had = self.is_cached(turn.member.name, victim)
            self._move(turn.member, victim, thief)
            if had and self._moves:
                self._moving.add(turn.request)
                session = SessionId(turn.member.name)
                yield RemotePrefill(
                    request=turn.request, session=session, replica=victim.replica, limit_s=_LEG_S
                )

    def _prefetch(self, *, now: float) -> Iterable[Command]:
        """§4.3: what was overwritten is there again when its tools usually end, where memory is spare."""
        for (name, thread), pause in self._paused.items():
            if pause.prefetch_s > now:
                continue
            pause.prefetch_s = inf
            member = self._members[name]
            home = member.book
            if home is None or self.is_cached(name, home):
                continue
            if self.load(home) + member.threads[thread] / home.kv_tokens <= _STAY_BELOW:
                self._prefetching.add(pause.turn)
                session = SessionId(name)
                yield Prefill(turn=pause.turn, session=session, thread=ThreadId(thread), replica=home.replica)

    def _queue(self, book: ReplicaBook) -> list[Turn]:
        """The oldest task first: of one kind, it is nearest to its deadline."""
        turns = [turn for turn in self._waiting.values() if turn.request not in self._moving]
        turns = [turn for turn in turns if turn.member.book is book]
        return sorted(turns, key=lambda turn: turn.member.arrived_s)

    def _fits(self, turn: Turn, book: ReplicaBook) -> bool:
        used = self._tokens(book, waiting=False)
        return not used or used + turn.member.threads[turn.thread] <= book.kv_tokens

    def _ready(self) -> Iterator[Turn]:
        """Of each worker the tenant that has the least of it for its urgency, then its oldest task."""
        for turn in [turn for turn in self._waiting.values() if turn.member.book is None]:
            self._route(turn)
        for book in self._books:
            queue = self._queue(book)
            while queue:
                turn = self._next(queue, book)
                if not self._fits(turn, book):
                    break
                queue.remove(turn)
                yield turn

    def _next(self, queue: list[Turn], book: ReplicaBook) -> Turn:
        heads: dict[str, Turn] = {}
        for turn in queue:
            heads.setdefault(self._tenant(turn), turn)
        if len(heads) == 1:
            return queue[0]

        def served(tenant: str) -> float:
            used = self._tokens(book, waiting=False, tenant=tenant) + 1
            return used / max(self._shares.get(tenant, 1.0), 1e-9)

        return heads[min(heads, key=served)]
