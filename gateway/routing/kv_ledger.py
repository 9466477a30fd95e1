"""The KV ledger: each conversation's home and its cached tokens on each replica.

Source: SAGA (§5.1): the predicate cached(w, s).

Symbols: cached(w, s) → `held`, in tokens.

Theory of operation. A conversation's *home* is the replica of its last turn. Its state is there, and at
earlier homes. A session counts at the home of its first conversation while its next turn is expected. Few
clients report ends, so it counts no more after the longest tool run, or a while after an answer without
calls; it keeps its home, and counts again with its next turn. Its growth follows its agent type's execution
graph.

Deviations: SAGA queries its workers. A stock server does not report its cache, so an LRU estimate stands for
it: a conversation's state is gone once about as many tokens were written after it as the cache has room for
(the *horizon*). An engine's report of a session's blocks (`resident`) replaces the estimate; if it has fewer
than the conversation left, they are the first ones.

Invariants: a conversation has at most one home; `held` is never more than was left, and nothing on a lost
replica; the sums of a replica are those of the expected sessions at home there; at most `max_conversations`
are kept, of one session at most `MAX_OTHERS` besides its first; the least recently used go first, at the cost
of a prefill.
"""

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge, Guess, SessionRef
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.domain.shares import ReplicaShare
from gateway.workflow.aeg.graphs import AegConfig, Graphs

# At most (S4).
TOOLS_RUN_S: Final = 300.0
# After an answer without recognised tool calls.
IDLE_S: Final = 15.0
# Conversations of one session besides its first; beyond it a session drops its own.
MAX_OTHERS: Final = 256
# A sub-agent with its session's system prompt and this share of its tokens counts as a fork of it.
_FORKS: Final = 0.8
_UNKNOWN_HORIZON: Final = 500_000.0
_SAFE_SHARE: Final = 0.1
# Turns that the prior weighs: the whole context is found.
_LIKE_OTHERS: Final = 2.0
# Of the KV cache: running turns have the rest.
_HORIZON_SHARE: Final = 0.7

NO_THREAD: Final = ThreadId("")
Conversation = tuple[SessionId, ThreadId]


class Sums(msgspec.Struct, eq=False):
    """Of the expected sessions at home on a replica."""

    sessions: int = 0
    held: float = 0.0
    wanted: float = 0.0
    """Expected final tokens."""


class Session(msgspec.Struct, eq=False):
    first: Conversation
    agent: AgentKey
    grows_to: float
    """Tokens, as expected."""
    tokens: float = 0.0
    """Of its first conversation, like `turns`."""
    works: bool | None = None
    """A turn or tools run; None: it is not expected."""
    turns: int = 0
    others: dict[ThreadId, None] | None = None
    """Other conversations, the least recently used first."""


class _Copy(msgspec.Struct, eq=False):
    """A conversation's state on a replica."""

    tokens: float
    written: float
    life: int
    """Of the replica."""


class _Conversation(msgspec.Struct, eq=False):
    home: ReplicaId
    copies: dict[ReplicaId, _Copy] = msgspec.field(default_factory=dict)
    found: tuple[float, float] = (1.0, 1.0)
    """Shares of the expected prefix that its last two turns found: less, where prompts change early."""


class _Replica(msgspec.Struct, eq=False):
    life: int
    """State of earlier ones is gone."""
    written: float = 0.0
    """Tokens computed there."""
    horizon: float = _UNKNOWN_HORIZON
    fits: float = float("inf")
    """Tokens, with a host tier's; infinite without a report."""
    resident: dict[SessionId, float] | None = None
    named: OrderedDict[SessionId, None] = msgspec.field(default_factory=OrderedDict)
    """Sessions in any of its reports: it may have other names for the rest."""


_NOTHING: Final = Sums()


class KvLedger:
    def __init__(self, max_conversations: int, graphs: Graphs | None = None) -> None:
        self._max = max_conversations
        self._graphs = graphs if graphs is not None else Graphs(AegConfig())
        self._conversations: OrderedDict[Conversation, _Conversation] = OrderedDict()
        self._sessions: dict[SessionId, Session] = {}
        # Expected sessions, by whether they work, the longest silent first.
        self._silent_since_s: Mapping[bool, OrderedDict[SessionId, float]] = {
            works: OrderedDict() for works in (True, False)
        }
        self._sums: defaultdict[ReplicaId, Sums] = defaultdict(Sums)
        self._elsewhere: dict[ReplicaId, Sequence[ReplicaShare]] = {}
        self._lives = itertools.count()
        # Read only.
        self.replicas: defaultdict[ReplicaId, _Replica] = defaultdict(lambda: _Replica(next(self._lives)))

    # --- where conversations live --------------------------------------------------------------------

    @property
    def sessions_at(self) -> dict[ReplicaId, int]:
        return {replica: sums.sessions for replica, sums in self._sums.items()}

    def share(self, replica: ReplicaId, running: int) -> ReplicaShare:
        """For other gateways; `running`: turns of ours."""
        own = self._sums.get(replica, _NOTHING)
        return ReplicaShare(running=running, sessions=own.sessions, held=own.held, wanted=own.wanted)

    def others_have(self, replica: ReplicaId, shares: Sequence[ReplicaShare]) -> None:
        self._elsewhere[replica] = shares

    def sums(self, replica: ReplicaId) -> Sums:
        own = self._sums.get(replica, _NOTHING)
        others = self._elsewhere.get(replica)
        if not others:
            return own
        return Sums(
            own.sessions + sum(each.sessions for each in others),
            own.held + sum(each.held for each in others),
            own.wanted + sum(each.wanted for each in others),
        )

    def home(self, session: SessionRef | Guess) -> ReplicaId | None:
        """A new conversation mostly shares its beginning with the session's first."""
        known = self._conversations.get((session.session, session.thread or NO_THREAD))
        if known is None and (of := self._sessions.get(session.session)) is not None:
            known = self._conversations[of.first]
        return known.home if known is not None else None

    def counted(self, session: SessionId) -> tuple[ReplicaId | None, float]:
        """The home, if the session is expected, and its expected tokens."""
        known = self._sessions.get(session)
        if known is None:
            return None, 0.0
        home = self._conversations[known.first].home if known.works is not None else None
        return home, max(known.tokens, known.grows_to)

    # --- what is held where ----------------------------------------------------------------------------

    def held(
        self, conversation: Conversation, replica: ReplicaId, *, if_nothing_was_evicted: bool = False
    ) -> float:
        """Less than its last turn left, where prompts change early."""
        known, entry = self.replicas[replica], self._conversations.get(conversation)
        copy = entry.copies.get(replica) if entry is not None else None
        if entry is None or copy is None or copy.life != known.life:
            return 0.0
        if not if_nothing_was_evicted:
            if known.resident is not None and conversation[0] in known.named:
                return min(copy.tokens, known.resident.get(conversation[0], 0.0))
            if known.written - copy.written > known.horizon:
                return 0.0
        return copy.tokens * max(entry.found)

    def held_by(
        self, session: SessionRef, replica: ReplicaId, tokens: float = 0.0, agent: AgentKey = UNKNOWN_AGENT
    ) -> float:
        """Of its prompt of so many tokens."""
        own = (session.session, session.thread)
        if (held := self.held(own, replica)) or self.context(own):
            return held
        if session.guess is not None and (guess := session.followed) is not None:
            return self.held((guess.session, guess.thread or NO_THREAD), replica)
        first = self._sessions.get(session.session)
        if first is None or session.edge not in (Edge.FORKS, Edge.SPAWNED):
            return 0.0
        is_alike = agent.agent_type != 0 and agent.agent_type == first.agent.agent_type
        forks = session.edge is Edge.FORKS or (is_alike and tokens >= _FORKS * self.context(first.first))
        return self.held(first.first, replica) if forks else 0.0

    def context(self, conversation: Conversation) -> float:
        """Tokens of its largest copy."""
        entry = self._conversations.get(conversation)
        copies = entry.copies.values() if entry is not None else ()
        return max(map(attrgetter("tokens"), copies), default=0.0)

    def grows_to(self, agent: AgentKey, *, turns: int = 0, tokens: float = 0.0) -> float:
        """Expected final tokens of a session with so many turns and tokens."""
        outlook = self._graphs.known(agent).outlook()
        return (tokens or outlook.first_tokens) + outlook.remaining(max(1, turns)).growth

    # --- what happens to sessions ----------------------------------------------------------------------

    def settle(
        self, session: SessionRef, replica: ReplicaId, *, agent: AgentKey = UNKNOWN_AGENT, now: float = 0.0
    ) -> None:
        conversation = (session.session, session.thread)
        entry, known = self._conversations.get(conversation), self._sessions.get(session.session)
        is_new, works = known is None, session.edge is not Edge.SERVES
        if entry is None:
            found = self._graphs.known(agent).found.mean(1.0, _LIKE_OTHERS)
            entry = self._conversations[conversation] = _Conversation(replica, found=(found, found))
        self._conversations.move_to_end(conversation)
        if known is None:
            entry.home = replica
            known = self._sessions[session.session] = Session(conversation, agent, self.grows_to(agent))
        elif known.first == conversation:
            if entry.home != replica:
                self._count(known, -1)
                entry.home = replica
                self._count(known, 1)
            grows_to = self.grows_to(agent, turns=known.turns, tokens=known.tokens)
            self._grow(known, replica, known.tokens, known.turns, grows_to)
        else:
            entry.home = replica
            known.others = known.others or {}
            known.others.pop(session.thread, None)
            known.others[session.thread] = None
        if works or is_new:
            self.expect(session.session, works=works, now=now)
        if known.others is not None and len(known.others) > MAX_OTHERS:
            self._forget((session.session, next(iter(known.others))))
        elif len(self._conversations) > self._max:
            self._forget(next(iter(self._conversations)))

    def expect(self, session: SessionId, *, works: bool, now: float) -> None:
        """At the beginning and end of a turn. `works`: a turn or tools run, so another turn follows."""
        known = self._sessions.get(session)
        if known is None:
            return
        before, known.works = known.works, works
        if before is None:
            self._count(known, 1)
        else:
            del self._silent_since_s[before][session]
        self._silent_since_s[works][session] = now

    def pass_time(self, *, now: float) -> None:
        for works, silent in self._silent_since_s.items():
            while silent and now - next(iter(silent.values())) > (TOOLS_RUN_S if works else IDLE_S):
                self.expect_no_more(next(iter(silent)))

    def expect_no_more(self, session: SessionId) -> None:
        """Until its next turn."""
        known = self._sessions.get(session)
        if known is not None and known.works is not None:
            del self._silent_since_s[known.works][session]
            self._count(known, -1)
            known.works = None

    def session_ended(self, session: SessionId) -> None:
        known = self._sessions.get(session)
        if known is not None:
            for thread in tuple(known.others or ()):
                self._forget((session, thread))
            self._forget(known.first)

    def turn_over(self, conversation: Conversation, replica: ReplicaId, usage: Usage) -> bool:
        """Whether an earlier turn left state."""
        prompt, found, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens or 0
        if prompt is None:
            return False
        known, entry = self.replicas[replica], self._conversations.get(conversation)
        until_now = known.written
        known.written += output + (prompt - found if found is not None else prompt / 2)
        if entry is None:
            return False
        goes_on, before = bool(entry.copies), entry.copies.get(replica)
        session = self._sessions.get(conversation[0])
        first = session if session is not None and session.first == conversation else None
        if before is not None and before.life == known.life:
            # After many writes a loss may be an eviction, which is no evidence for the next turn.
            is_safe = until_now - before.written <= _SAFE_SHARE * known.horizon
            share = usage.share_found(min(before.tokens, prompt)) if is_safe else None
            if share is not None:
                entry.found = entry.found[1], share
                if first is not None and first.agent != UNKNOWN_AGENT:
                    self._graphs.of(first.agent).found.add(share)
        entry.copies[replica] = _Copy(float(prompt + output), known.written, known.life)
        if first is not None and replica == entry.home:
            self._grow(first, replica, float(prompt + output), first.turns + 1, first.grows_to)
        return goes_on

    # --- what happens to replicas ----------------------------------------------------------------------

    def replica_lost(self, replica: ReplicaId) -> None:
        known = self.replicas[replica]
        known.life = next(self._lives)
        known.resident = {} if known.resident is not None else None

    def replica_left(self, replica: ReplicaId) -> None:
        self.replicas.pop(replica, None)
        self._elsewhere.pop(replica, None)

    def engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        if signals.kv_tokens is not None:
            known = self.replicas[replica]
            known.horizon = _HORIZON_SHARE * signals.kv_tokens
            known.fits = float(signals.kept_kv_tokens or 0)

    def residency_reported(self, replica: ReplicaId, tokens: Mapping[SessionId, float] | None) -> None:
        """By the engine; None: without reports from now on."""
        known = self.replicas[replica]
        known.resident = dict(tokens) if tokens is not None else None
        known.named.update(dict.fromkeys(tokens or ()))
        while len(known.named) > self._max:
            known.named.popitem(last=False)

    # --- books -----------------------------------------------------------------------------------------

    def _grow(self, known: Session, home: ReplicaId, tokens: float, turns: int, grows_to: float) -> None:
        sums = self._sums[home] if known.works is not None else Sums()
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
        if known.works is None:
            return
        home = self._conversations[known.first].home
        sums = self._sums[home]
        sums.sessions += sign
        sums.held += sign * known.tokens
        sums.wanted += sign * max(known.tokens, known.grows_to)
        if not sums.sessions:
            del self._sums[home]
