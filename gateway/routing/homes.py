"""Homes: which replica each conversation was placed on last, and how many sessions live where.

Few clients say that a session is over. So a session that is silent for longer than its tools may run, or for
a while after an answer that asked for none, keeps its home but does not count as living there, until it is
heard of again.

Invariants: a conversation has at most one home; at most `max_conversations` are remembered, of one session
at most `MAX_OTHERS` besides its first; the least recently used go first, and forgetting one only costs a
prefill; `sessions_at` counts the sessions that are there (`is_there`) where their first conversation is
remembered to live, `held_at` the tokens that those hold, and `wanted_at` those that they are expected to grow
to, or hold already.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from gateway.domain.by_agent import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge, SessionRef
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.routing.growth import Counted

TOOLS_RUN_S: Final = 300.0
"""At most so long (S4)."""
IDLE_S: Final = 15.0
"""After an answer without tool calls: a person is next, or nobody, or tools that nobody recognised."""
MAX_OTHERS: Final = 256
"""Conversations of one session besides its first. A session with endless sub-agents pushes out its own."""

Conversation = tuple[SessionId, ThreadId]


class First(msgspec.Struct, eq=False):
    """The conversation that a session is counted by."""

    conversation: Conversation
    agent: AgentKey
    grows_to: float
    """Tokens, as expected."""
    tokens: float = 0.0
    """As it was told last."""
    is_there: bool = True
    counted: Counted | None = None
    """As what `Growth` knows it, if it was silent once."""
    others: dict[ThreadId, None] | None = None
    """Its session's other conversations, the least recently used first."""

    @property
    def wants(self) -> float:
        return max(self.tokens, self.grows_to)


class Homes:
    def __init__(self, max_conversations: int) -> None:
        self._max = max_conversations
        self._homes: OrderedDict[Conversation, ReplicaId] = OrderedDict()
        self._firsts: dict[SessionId, First] = {}
        self._working: OrderedDict[SessionId, float] = OrderedDict()
        self._idle: OrderedDict[SessionId, float] = OrderedDict()
        """Sessions that are there and when each was heard of last, the longest silent first."""
        self.sessions_at: dict[ReplicaId, int] = {}
        self.wanted_at: dict[ReplicaId, float] = {}
        self.held_at: dict[ReplicaId, float] = {}

    def own(self, session: SessionRef) -> ReplicaId | None:
        """Of this conversation."""
        return self._homes.get((session.session, session.thread))

    def find(self, session: SessionRef) -> ReplicaId | None:
        """A conversation that is new shares its beginning with the session's first, more often than not."""
        return self.own(session) or self.of_first(session.session)

    def is_adrift(self, candidates: Sequence[ReplicaLoad], session: SessionRef) -> bool:
        """Whether it has a home that is none of these."""
        home = self.find(session)
        return home is not None and home not in [load.replica for load in candidates]

    def of_first(self, session: SessionId) -> ReplicaId | None:
        first = self._firsts.get(session)
        return self._homes[first.conversation] if first is not None else None

    def first(self, session: SessionId) -> Conversation | None:
        first = self._firsts.get(session)
        return first.conversation if first is not None else None

    def conversations(self, session: SessionId) -> list[Conversation]:
        """Those that are remembered, the first one first."""
        first = self._firsts.get(session)
        if first is None:
            return []
        return [first.conversation, *((session, thread) for thread in first.others or ())]

    def counted(self, session: SessionId) -> tuple[ReplicaId | None, float]:
        """Where it counts as living, if anywhere, and the tokens that it wants in the end."""
        first = self._firsts.get(session)
        if first is None:
            return None, 0.0
        return self._homes[first.conversation] if first.is_there else None, first.wants

    def heard(self, session: SessionId, *, works: bool, now: float) -> None:
        """A turn of it begins, or was answered. `works`: it runs, or tools do, so another turn follows."""
        first = self._firsts.get(session)
        if first is None:
            return
        self._working.pop(session, None)
        self._idle.pop(session, None)
        (self._working if works else self._idle)[session] = now
        if not first.is_there:
            first.is_there = True
            self._count(self._homes[first.conversation], 1, first.wants, first.tokens)

    def pass_time(self, *, now: float) -> list[First]:
        """Who was silent for too long does not count any more."""
        gone = []
        for silent, most_s in ((self._working, TOOLS_RUN_S), (self._idle, IDLE_S)):
            while silent:
                session, since_s = next(iter(silent.items()))
                if now - since_s <= most_s:
                    break
                del silent[session]
                first = self._firsts[session]
                first.is_there = False
                self._count(self._homes[first.conversation], -1, -first.wants, -first.tokens)
                gone.append(first)
        return gone

    def settle(
        self,
        session: SessionRef,
        replica: ReplicaId,
        *,
        agent: AgentKey = UNKNOWN_AGENT,
        grows_to: float = 0.0,
        now: float,
    ) -> Conversation | None:
        """Whom it had to forget for that. `agent`: if it is new; `grows_to`: tokens, as expected by now.

        A side request does not say whether its session works."""
        is_known = session.session in self._firsts
        self._move((session.session, session.thread), replica, agent, grows_to)
        if session.edge is not Edge.SERVES or not is_known:
            self.heard(session.session, works=session.edge is not Edge.SERVES, now=now)
        others = self._firsts[session.session].others
        if others is not None and len(others) > MAX_OTHERS:
            oldest = session.session, next(iter(others))
        elif len(self._homes) > self._max:
            oldest = next(iter(self._homes))
        else:
            return None
        self._leave(oldest)
        return oldest

    def _move(self, conversation: Conversation, replica: ReplicaId, agent: AgentKey, grows_to: float) -> None:
        session = conversation[0]
        before = self._homes.get(conversation)
        self._homes[conversation] = replica
        self._homes.move_to_end(conversation)
        first = self._firsts.get(session)
        if first is None:
            first = self._firsts[session] = First(conversation, agent, grows_to)
            self._count(replica, 1, first.wants, first.tokens)
        elif first.conversation != conversation:
            if first.others is None:
                first.others = {}
            first.others.pop(conversation[1], None)
            first.others[conversation[1]] = None
        elif before is not None:
            if (before, first.grows_to) == (replica, grows_to):
                return
            if first.is_there:
                self._count(before, -1, -first.wants, -first.tokens)
            first.grows_to = grows_to
            if first.is_there:
                self._count(replica, 1, first.wants, first.tokens)

    def holds(self, conversation: Conversation, tokens: float) -> None:
        """It was told to hold so many."""
        first = self._firsts.get(conversation[0])
        if first is not None and first.conversation == conversation:
            before, held, first.tokens = first.wants, first.tokens, tokens
            if first.is_there:
                self._count(self._homes[conversation], 0, first.wants - before, tokens - held)

    def session_ended(self, session: SessionId) -> list[First]:
        """It, unless `pass_time` said that it is silent."""
        first = self._firsts.get(session)
        if first is None:
            return []
        for conversation in reversed(self.conversations(session)):
            self._leave(conversation)
        return [first] if first.is_there else []

    def oldest_first(self) -> Iterator[tuple[Conversation, ReplicaId]]:
        return iter(self._homes.items())

    def _leave(self, conversation: Conversation) -> None:
        replica = self._homes.pop(conversation)
        first = self._firsts.get(conversation[0])
        if first is None:
            return
        if first.others is not None:
            first.others.pop(conversation[1], None)
        if first.conversation == conversation:
            del self._firsts[conversation[0]]
            self._working.pop(conversation[0], None)
            self._idle.pop(conversation[0], None)
            if first.is_there:
                self._count(replica, -1, -first.wants, -first.tokens)

    def _count(self, replica: ReplicaId, sessions: int, tokens: float, held: float) -> None:
        count = self.sessions_at.get(replica, 0) + sessions
        if count:
            self.sessions_at[replica] = count
            self.wanted_at[replica] = self.wanted_at.get(replica, 0.0) + tokens
            self.held_at[replica] = self.held_at.get(replica, 0.0) + held
        else:
            del self.sessions_at[replica]
            self.wanted_at.pop(replica, None)
            self.held_at.pop(replica, None)
