"""A gateway that is not ours: it routes, and at most it counts.

Source: what vLLM's production stack, llm-d and SGLang's router do with a stated session id: sticky sessions,
and round robin without one.

Deviations: sessions are spread by how many live on a replica, not by a consistent hash, which is the stronger
baseline; nothing is ever refused, and nobody waits who may enter.

Invariants: a turn runs at once or waits for its session's place, in order of arrival; a session has a place
from its first turn on a replica to its end; with affinity, it runs on one replica only.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Command, Dispatch
from gateway.domain.decision import Placement as Placed
from gateway.domain.decision import PlacementReason, SessionRef, SessionSource
from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.request import Answer

BYTES_PER_TOKEN = 4
"""Of a simulated request's body."""


class Member(msgspec.Struct, kw_only=True, eq=False):
    """A session that has a place, or wants one."""

    name: str
    arrived_s: float
    threads: dict[str, int] = {}
    """Tokens of each conversation, as last seen."""
    book: "ReplicaBook | None" = None
    peak_tokens: int | None = None
    """What it will have held at its longest, if somebody knows."""

    @property
    def tokens(self) -> int:
        return sum(self.threads.values())


class ReplicaBook(msgspec.Struct, kw_only=True, eq=False):
    """What the router knows of a replica."""

    replica: ReplicaId
    kv_tokens: int
    members: dict[str, Member] = {}
    running: int = 0
    """Turns."""


class Turn(msgspec.Struct, kw_only=True, eq=False):
    request: RequestId
    member: Member
    thread: str
    arrived_s: float
    is_final: bool
    book: ReplicaBook | None = None


class Placement(Protocol):
    """Which replica should run it?"""

    def choose(self, member: Member, books: list[ReplicaBook]) -> ReplicaBook:
        """One of the books; there is at least one."""
        ...


class Window(Protocol):
    """May one more enter?"""

    def may_enter(self, member: Member, book: ReplicaBook) -> bool:
        """A session that has no place yet."""
        ...

    def may_run(self, book: ReplicaBook) -> bool:
        """A turn of a session that has its place there."""
        ...


class Router:
    """A `Brain`."""

    def __init__(
        self,
        kv_tokens: Mapping[str, int],
        placement: Placement,
        window: Window | None,
        rank: Callable[[str], float] | None = None,
    ) -> None:
        """`rank`: in which order sessions that wait enter, by name; that of their arrival without."""
        self._rank = rank
        self.live: dict[RequestId, Turn] = {}
        self._kv_tokens = kv_tokens
        self._placement = placement
        self._window = window
        self._books: list[ReplicaBook] = []
        self._members: dict[str, Member] = {}
        self._waiting: OrderedDict[RequestId, Turn] = OrderedDict()

    def next_deadline_s(self) -> float | None:
        return None

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        match event:
            case ev.ReplicaCameUp():
                tokens = self._kv_tokens[str(event.facts.id)]
                self._books.append(ReplicaBook(replica=event.facts.id, kv_tokens=tokens))
            case ev.ReplicaWentDown():
                self._lost(event.replica)
            case ev.RequestArrived():
                self._arrived(event, now=now)
            case ev.ResponseFinished():
                self._finished(self.live.pop(event.request), event.answer)
            case ev.SessionFinished():
                self._over(str(event.session))
            case _:
                return []
        return list(self._let_in(now=now))

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        stated = event.facts.explicit
        name = stated.session if stated is not None else str(event.request)
        thread = (stated.thread if stated is not None else None) or ""
        member = self._members.get(name)
        if member is None:
            member = self._members[name] = Member(name=name, arrived_s=now)
        member.threads[thread] = max(member.threads.get(thread, 0), event.facts.body_bytes // BYTES_PER_TOKEN)
        turn = Turn(
            request=event.request,
            member=member,
            thread=thread,
            arrived_s=now,
            is_final=stated is None or stated.final,
        )
        self.live[event.request] = self._waiting[event.request] = turn

    def _finished(self, turn: Turn, answer: Answer) -> None:
        assert turn.book is not None
        turn.book.running -= 1
        usage = answer.usage
        turn.member.threads[turn.thread] = (usage.prompt_tokens or 0) + (usage.output_tokens or 0)
        if turn.is_final:
            self._over(turn.member.name)

    def _lost(self, replica: ReplicaId) -> None:
        """Its sessions want a place elsewhere, as newcomers do."""
        for book in self._books:
            for member in book.members.values() if book.replica == replica else ():
                member.book = None
        self._books = [book for book in self._books if book.replica != replica]

    def _over(self, name: str) -> None:
        member = self._members.pop(name, None)
        if member is not None and member.book is not None:
            del member.book.members[name]

    def _let_in(self, *, now: float) -> Iterable[Command]:
        for turn in self._ready():
            yield self._dispatch(turn, now=now)

    def _ready(self) -> Iterator[Turn]:
        """Whoever may run. Each is dispatched before the next is asked for."""
        if self._window is not None:
            return self._through(self._window)
        return iter(list(self._waiting.values()))

    def _through(self, window: Window) -> Iterator[Turn]:
        """Books a place for each newcomer that is yielded.

        Newcomers keep their order: the first who finds no place keeps those behind from looking for one."""
        is_shut = False
        turns = list(self._waiting.values())
        if self._rank is not None:
            rank = self._rank
            turns.sort(key=lambda turn: rank(turn.member.name))
        for turn in turns:
            home = turn.member.book
            if home is not None:
                if window.may_run(home):
                    yield turn
                continue
            if is_shut:
                continue
            open_books = [
                book for book in self._books if window.may_enter(turn.member, book) and window.may_run(book)
            ]
            if not open_books:
                is_shut = True
                continue
            self._enter(turn.member, self._placement.choose(turn.member, open_books))
            yield turn

    def _enter(self, member: Member, book: ReplicaBook) -> None:
        member.book = book
        book.members[member.name] = member

    def _dispatch(self, turn: Turn, *, now: float) -> Dispatch:
        member = turn.member
        book = member.book
        if book is None or self._window is None:
            book = self._placement.choose(member, self._books)
            if member.book is None:
                self._enter(member, book)
        turn.book = book
        book.running += 1
        del self._waiting[turn.request]
        session = SessionRef(
            session=SessionId(member.name),
            thread=ThreadId(turn.thread),
            source=SessionSource.TURNPIKE_HEADER,
            confidence=1.0,
        )
        return Dispatch(
            request=turn.request,
            placement=Placed(replica=book.replica, reason=PlacementReason.LEAST_LOADED),
            session=session,
            waited_s=now - turn.arrived_s,
            attempt=1,
        )


class Affinity:
    """A session's turns run where its first one ran: where the fewest sessions were then."""

    def choose(self, member: Member, books: list[ReplicaBook]) -> ReplicaBook:
        return member.book or min(books, key=lambda book: len(book.members))


class RoundRobin:
    """Every turn runs on the next replica."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, member: Member, books: list[ReplicaBook]) -> ReplicaBook:
        book = books[self._turn % len(books)]
        self._turn += 1
        return book
