"""The KV ledger: where each conversation lives, what it holds on which replica, and what that comes to.

Source: SAGA (§5.1): the predicate cached(w, s).

Symbols: cached(w, s) → `held`, in tokens.

Theory of operation. A conversation's *home* is where its last turn was placed. What its turns left is held
there, and where it was before. A session counts as living at the home of its first conversation while its
next turn is expected. Few clients say that a session is over, so it is expected no more once it was silent
for longer than its tools may run, or for a while after an answer that asked for none; it keeps its home, and
counts again with its next turn. It is expected to grow as its agent type's execution graph says.

Deviations: SAGA asks its workers. A stock server does not say what it holds, so that is estimated: it evicts
what was used least recently, so what a conversation left is gone once about as many tokens were written
behind it as the cache has room for (the *horizon*). Where an engine tells which blocks of a session it holds
(`told`), that is believed instead; where it holds fewer than a conversation left, they are those from its
beginning.

Invariants: a conversation has at most one home; `held` is never more than was left, and nothing where a
replica was lost; the sums of a replica are those of the sessions that live there and are expected; at most
`max_conversations` are remembered, of one session at most `MAX_OTHERS` besides its first; the least recently
used go first, and forgetting one only costs a prefill.
"""

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.domain.by_agent import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge, Guess, SessionRef
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.domain.shares import ReplicaShare
from gateway.workflow.aeg.graphs import AegConfig, Graphs

TOOLS_RUN_S: Final = 300.0
"""At most so long (S4)."""
IDLE_S: Final = 15.0
"""After an answer without tool calls: a person is next, or nobody, or tools that nobody recognised."""
MAX_OTHERS: Final = 256
"""Conversations of one session besides its first. A session with endless sub-agents pushes out its own."""
_FORKS: Final = 0.8
"""A sub-agent under its session's own system prompt, whose prompt is at least this share of what the session
holds, is taken to begin with that: harnesses fork themselves so."""
_UNKNOWN_HORIZON: Final = 500_000.0
_SAFE_SHARE: Final = 0.1
_LIKE_OTHERS: Final = 2.0
"""Turns of a type that weigh as much as the prior: all that a turn left is found."""
_HORIZON_SHARE: Final = 0.7
"""Of the KV cache: the rest is what runs."""

NO_THREAD: Final = ThreadId("")
Conversation = tuple[SessionId, ThreadId]


class Sums(msgspec.Struct, eq=False):
    """Of the sessions that live on a replica and are expected."""

    sessions: int = 0
    held: float = 0.0
    wanted: float = 0.0
    """Tokens that they are expected to grow to, or hold already."""


class Session(msgspec.Struct, eq=False):
    first: Conversation
    agent: AgentKey
    grows_to: float
    """Tokens, as expected."""
    tokens: float = 0.0
    """That its first conversation holds."""
    is_expected: bool = True
    turns: int = 0
    """That its first conversation made."""
    others: dict[ThreadId, None] | None = None
    """Its other conversations, the least recently used first."""

    @property
    def wants(self) -> float:
        return max(self.tokens, self.grows_to)


class _Copy(msgspec.Struct, eq=False):
    """What a conversation left on a replica."""

    tokens: float
    written: float
    life: int
    """Of the replica."""


class _Conversation(msgspec.Struct, eq=False):
    home: ReplicaId
    copies: dict[ReplicaId, _Copy] = msgspec.field(default_factory=dict)
    found: tuple[float, float] = (1.0, 1.0)
    """Shares of what must have been there that its last two turns found: less, where prompts change early."""


class _Replica(msgspec.Struct, eq=False):
    life: int
    """What was left in an earlier one is gone."""
    written: float = 0.0
    """Tokens that were computed there, as far as we know."""
    horizon: float = _UNKNOWN_HORIZON
    fits: float = float("inf")
    """Tokens, with those of a host tier: what is there need not be computed again."""
    told: dict[SessionId, float] | None = None
    named: OrderedDict[SessionId, None] = msgspec.field(default_factory=OrderedDict)
    """Of which sessions it ever said something. It may know some by other names, or not at all."""

    def holds(self, copy: _Copy, *, share: float = 1.0) -> bool:
        """It should be there still; `share`: of what may be written until it is gone."""
        return copy.life == self.life and self.written - copy.written <= share * self.horizon


_NOTHING: Final = Sums()


class KvLedger:
    def __init__(self, max_conversations: int, graphs: Graphs | None = None) -> None:
        self._max = max_conversations
        self._graphs = graphs if graphs is not None else Graphs(AegConfig())
        self._conversations: OrderedDict[Conversation, _Conversation] = OrderedDict()
        self._sessions: dict[SessionId, Session] = {}
        self._silent_since_s: dict[bool, OrderedDict[SessionId, float]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        """Expected sessions, by whether they work, the longest silent first."""
        self._sums: dict[ReplicaId, Sums] = {}
        self._elsewhere: dict[ReplicaId, Sums] = {}
        self._replicas: dict[ReplicaId, _Replica] = {}
        self._lives = itertools.count()

    # --- where conversations live --------------------------------------------------------------------

    @property
    def sessions_at(self) -> dict[ReplicaId, int]:
        return {replica: sums.sessions for replica, sums in self._sums.items()}

    def share(self, replica: ReplicaId, running: int) -> ReplicaShare:
        """What other gateways must know of our sessions there; `running`: turns of ours."""
        own = self._sums.get(replica, _NOTHING)
        return ReplicaShare(running=running, sessions=own.sessions, held=own.held, wanted=own.wanted)

    def sums(self, replica: ReplicaId) -> Sums:
        own = self._sums.get(replica, _NOTHING)
        others = self._elsewhere.get(replica)
        if others is None:
            return own
        return Sums(own.sessions + others.sessions, own.held + others.held, own.wanted + others.wanted)

    def others_have(self, replica: ReplicaId, said: Sequence[ReplicaShare]) -> None:
        self._elsewhere.pop(replica, None)
        if said:
            self._elsewhere[replica] = Sums(
                sum(each.sessions for each in said),
                sum(each.held for each in said),
                sum(each.wanted for each in said),
            )

    def home(self, session: SessionRef | Guess) -> ReplicaId | None:
        """A conversation that is new shares its beginning with the session's first, more often than not."""
        known = self._conversations.get((session.session, session.thread or NO_THREAD))
        return known.home if known is not None else self.of_first(session.session)

    def of_first(self, session: SessionId) -> ReplicaId | None:
        known = self._sessions.get(session)
        return self._conversations[known.first].home if known is not None else None

    def conversations(self, session: SessionId) -> list[Conversation]:
        known = self._sessions.get(session)
        if known is None:
            return []
        return [known.first, *((session, thread) for thread in known.others or ())]

    def counted(self, session: SessionId) -> tuple[ReplicaId | None, float]:
        known = self._sessions.get(session)
        if known is None:
            return None, 0.0
        return self._conversations[known.first].home if known.is_expected else None, known.wants

    # --- what is held where ----------------------------------------------------------------------------

    def held(self, conversation: Conversation, replica: ReplicaId) -> float:
        known, entry = self._replicas.get(replica), self._conversations.get(conversation)
        copy = entry.copies.get(replica) if entry is not None else None
        if known is None or copy is None:
            return 0.0
        if known.told is not None and conversation[0] in known.named:
            return min(copy.tokens, known.told.get(conversation[0], 0.0)) if copy.life == known.life else 0.0
        return self.left(conversation, replica) if known.holds(copy) else 0.0

    def held_by(
        self, session: SessionRef, replica: ReplicaId, tokens: float = 0.0, agent: AgentKey = UNKNOWN_AGENT
    ) -> float:
        """Of what its prompt of so many tokens begins with."""
        own = (session.session, session.thread)
        return self.held(own, replica) or self.held(self._begins_with(own, session, tokens, agent), replica)

    def _begins_with(
        self, own: Conversation, session: SessionRef, tokens: float, agent: AgentKey
    ) -> Conversation:
        if self.context(own):
            return own
        if (guess := session.followed) is not None:
            return guess.session, guess.thread or NO_THREAD
        first = self._sessions.get(session.session)
        if first is None or first.first == own:
            return own
        is_fork = session.edge is Edge.FORKS or (
            session.edge is Edge.SPAWNED
            and agent.agent_type != 0
            and agent.agent_type == first.agent.agent_type
            and tokens >= _FORKS * self.context(first.first)
        )
        return first.first if is_fork else own

    def left(self, conversation: Conversation, replica: ReplicaId) -> float:
        """What must be held there, if nothing was evicted since: less than its last turn had where prompts of
        its, or of its type, change early."""
        known, entry = self._replicas.get(replica), self._conversations.get(conversation)
        copy = entry.copies.get(replica) if entry is not None else None
        if known is None or entry is None or copy is None or copy.life != known.life:
            return 0.0
        return copy.tokens * max(entry.found)

    def context(self, conversation: Conversation) -> float:
        entry = self._conversations.get(conversation)
        return max([copy.tokens for copy in entry.copies.values()], default=0.0) if entry is not None else 0.0

    def fits(self, replica: ReplicaId) -> float:
        """Tokens, for all that live there; infinite while its engine has not said it."""
        known = self._replicas.get(replica)
        return known.fits if known is not None else float("inf")

    def horizon(self, replica: ReplicaId) -> float:
        known = self._replicas.get(replica)
        return known.horizon if known is not None else _UNKNOWN_HORIZON

    def grows_to(self, agent: AgentKey, *, turns: int = 0, tokens: float = 0.0) -> float:
        """Tokens that a session is expected to hold in the end that made so many turns, and holds so many."""
        outlook = self._graphs.known(agent).outlook()
        return (tokens or outlook.first_tokens) + outlook.remaining(max(1, turns)).growth

    # --- what happens to sessions ----------------------------------------------------------------------

    def settle(
        self, session: SessionRef, replica: ReplicaId, *, agent: AgentKey = UNKNOWN_AGENT, now: float = 0.0
    ) -> None:
        is_new = session.session not in self._sessions
        known = self._move((session.session, session.thread), replica, agent)
        if session.edge is not Edge.SERVES or is_new:
            self.expect(session.session, works=session.edge is not Edge.SERVES, now=now)
        if known.others is not None and len(known.others) > MAX_OTHERS:
            self._forget((session.session, next(iter(known.others))))
        elif len(self._conversations) > self._max:
            self._forget(next(iter(self._conversations)))

    def expect(self, session: SessionId, *, works: bool, now: float) -> None:
        """A turn of it begins, or was answered. `works`: it runs, or tools do, so another turn follows."""
        known = self._sessions.get(session)
        if known is None:
            return
        self._silent_since_s[not works].pop(session, None)
        self._silent_since_s[works].pop(session, None)
        self._silent_since_s[works][session] = now
        if not known.is_expected:
            known.is_expected = True
            self._count(known, 1)

    def pass_time(self, *, now: float) -> None:
        for works, silent in self._silent_since_s.items():
            while silent and now - next(iter(silent.values())) > (TOOLS_RUN_S if works else IDLE_S):
                self.expect_no_more(next(iter(silent)))

    def expect_no_more(self, session: SessionId) -> None:
        """Until its next turn."""
        for silent in self._silent_since_s.values():
            silent.pop(session, None)
        known = self._sessions.get(session)
        if known is not None and known.is_expected:
            self._count(known, -1)
            known.is_expected = False

    def session_ended(self, session: SessionId) -> None:
        for conversation in reversed(self.conversations(session)):
            self._forget(conversation)

    def turn_over(self, conversation: Conversation, replica: ReplicaId, usage: Usage) -> None:
        prompt, found, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens or 0
        if prompt is None:
            return
        known, entry = self._of(replica), self._conversations.get(conversation)
        before = entry.copies.get(replica) if entry is not None else None
        # Where much was written since, it may have been evicted, which says nothing of the next turn.
        if entry is not None and before is not None and known.holds(before, share=_SAFE_SHARE):
            share = usage.share_found(min(before.tokens, prompt))
            if share is not None:
                entry.found = entry.found[1], share
                of = self._sessions.get(conversation[0])
                if of is not None and of.first == conversation and of.agent != UNKNOWN_AGENT:
                    self._graphs.of(of.agent).found.add(share)
        known.written += output + (prompt - found if found is not None else prompt / 2)
        if entry is None:
            return
        entry.copies[replica] = _Copy(float(prompt + output), known.written, known.life)
        session = self._sessions.get(conversation[0])
        if session is not None and session.first == conversation and replica == entry.home:
            self._grow(session, replica, float(prompt + output), session.turns + 1, session.grows_to)

    # --- what happens to replicas ----------------------------------------------------------------------

    def replica_lost(self, replica: ReplicaId) -> None:
        known = self._replicas.get(replica)
        if known is not None:
            known.life = next(self._lives)
            known.told = {} if known.told is not None else None

    def replica_left(self, replica: ReplicaId) -> None:
        self._replicas.pop(replica, None)

    def engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        if signals.kv_tokens is not None:
            known = self._of(replica)
            known.horizon = _HORIZON_SHARE * signals.kv_tokens
            known.fits = float(signals.kept_kv_tokens or 0)

    def told(self, replica: ReplicaId, tokens: Mapping[SessionId, float] | None) -> None:
        """What the engine holds of its sessions; None: it does not say any more."""
        known = self._of(replica)
        known.told = dict(tokens) if tokens is not None else None
        for session in tokens or ():
            known.named[session] = None
        while len(known.named) > self._max:
            known.named.popitem(last=False)

    # --- books -----------------------------------------------------------------------------------------

    def _move(self, conversation: Conversation, replica: ReplicaId, agent: AgentKey) -> Session:
        entry = self._conversations.get(conversation)
        known = self._sessions.get(conversation[0])
        if known is not None and known.first == conversation:
            assert entry is not None
            if entry.home != replica:
                self._count(known, -1)
                entry.home = replica
                self._count(known, 1)
            grows_to = self.grows_to(agent, turns=known.turns, tokens=known.tokens)
            self._grow(known, replica, known.tokens, known.turns, grows_to)
        elif entry is not None:
            entry.home = replica
        else:
            found = self._graphs.known(agent).found.mean(1.0, _LIKE_OTHERS)
            self._conversations[conversation] = _Conversation(replica, found=(found, found))
        self._conversations.move_to_end(conversation)
        if known is None:
            known = Session(conversation, agent, self.grows_to(agent))
            self._sessions[conversation[0]] = known
            self._count(known, 1)
        elif known.first != conversation:
            known.others = known.others or {}
            known.others.pop(conversation[1], None)
            known.others[conversation[1]] = None
        return known

    def _grow(self, known: Session, home: ReplicaId, tokens: float, turns: int, grows_to: float) -> None:
        sums = self._sums[home] if known.is_expected else Sums()
        sums.held += tokens - known.tokens
        sums.wanted += max(tokens, grows_to) - max(known.tokens, known.grows_to)
        known.tokens, known.turns, known.grows_to = tokens, turns, grows_to

    def _forget(self, conversation: Conversation) -> None:
        session, thread = conversation
        known = self._sessions.get(session)
        if known is not None and known.first == conversation:
            self.expect_no_more(session)
            del self._sessions[session]
        elif known is not None and known.others is not None:
            known.others.pop(thread, None)
        del self._conversations[conversation]

    def _count(self, known: Session, sign: int) -> None:
        """`sign`: 1 adds it to the sums of its home, -1 takes it from them."""
        if not known.is_expected:
            return
        home = self._conversations[known.first].home
        sums = self._sums.get(home) or self._sums.setdefault(home, Sums())
        sums.sessions += sign
        sums.held += sign * known.tokens
        sums.wanted += sign * known.wants
        if not sums.sessions:
            del self._sums[home]

    def _of(self, replica: ReplicaId) -> _Replica:
        return self._replicas.get(replica) or self._replicas.setdefault(replica, _Replica(next(self._lives)))
