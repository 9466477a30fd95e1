"""Session identity: which run and which conversation does this turn belong to, and how sure are we?

Source: ours (DESIGN: "Session identity"). The first hit wins:

1. an id the client states (a header or body field of a known convention), scoped by tenant;
2. a failed attempt that this request repeats;
3. protocol state or a call id that we minted and that comes back (`ancestry.py`);
4. our own answer behind a conversation that we know, or that answer alone (`ancestry.py`);
5. a quote of what a run said, was asked, or handed to a tool (`quotes.py`);
6. otherwise the turn starts a new session.

Symbols: —

Deviations: a *session* is the whole agent run, what admission counts: a main conversation, sub-agents, side
requests, what came after a compaction. Each conversation is a *thread* of it. An id that a client states
names the run; one under which unrelated conversations run at the same time names a group of runs, and its
members are told apart by content.

Invariants: every lookup is scoped by tenant; turns of two stated ids never meet; at most `max_sessions`
are kept, and of each at most `max_turns`; a session with a live turn is never forgotten; forgetting only
ever makes a later turn start anew.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Answer, ExplicitId, RequestFacts, Utterance, Words
from gateway.wire.marks import hash_text
from gateway.workflow.identity import identify
from gateway.workflow.inference import Identity
from gateway.workflow.traces import Traces, Unread
from gateway.workflow.turns import ExplicitKey, Outcome, Session, Thread, Turn, read_turn

__all__ = ["Session", "Sessions", "SessionsConfig"]


class SessionsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_sessions: Annotated[int, Meta(ge=1)] = 100_000
    """Sessions remembered; beyond it the longest unseen are forgotten."""
    max_turns: Annotated[int, Meta(ge=2)] = 48
    """Turns remembered per session, newest first."""
    max_call_ids: Annotated[int, Meta(ge=1)] = 64
    """Minted ids remembered per turn, newest first."""
    idle_s: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    """A session that had no live turn for so long has ended."""


NO_UTTERANCE: Final = Utterance()
NO_WORDS: Final = Words()
_EXPIRE_BATCH: Final = 64
_MAX_NAMED: Final = 256
_QUOTABLE_TURNS: Final = 2
"""Per thread; older turns can be continued, but are not recognised by quotes any more."""


class Sessions:
    def __init__(self, config: SessionsConfig, *, id_prefix: str) -> None:
        """`id_prefix` keeps the ids of several gateway processes apart."""
        self._config = config
        self._id_prefix = id_prefix
        self._count = 0
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()
        """Least recently seen first."""
        self._by_explicit: dict[ExplicitKey, SessionId] = {}
        self._traces: dict[TenantId, Traces] = {}
        self._live: dict[RequestId, Turn] = {}
        self._unread = Unread()

    def __len__(self) -> int:
        return len(self._sessions)

    def newest_first(self) -> Iterator[Session]:
        """By when they were last seen."""
        return reversed(self._sessions.values())

    def get(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    def find_explicit(self, key: ExplicitKey) -> Session | None:
        known = self._by_explicit.get(key)
        return None if known is None else self._sessions[known]

    def arrived(
        self,
        request: RequestId,
        tenant: TenantId,
        facts: RequestFacts,
        state_session: SessionId | None = None,
        *,
        now: float,
    ) -> tuple[Session, SessionRef]:
        """The session of a turn that arrived now; a new one if nothing links it to an earlier turn.

        `state_session` is the session that minted the state this turn builds on, if that is known.
        """
        traces = self._traces.get(tenant) or self._traces.setdefault(tenant, Traces(self._unread))
        known = self._sessions.get(state_session) if state_session is not None else None
        found = identify(self, traces, tenant, facts, known, now=now)
        session = found.session or self._start(tenant, facts.explicit, found, now=now)
        traces.sessions += session.turns == 0
        thread = found.thread or self._branch(session, facts, found)
        turn = read_turn(request, facts, thread, now=now)
        turn.is_guessed = found.is_choice
        self._place(turn, found, facts)
        session.log.append(turn)
        session.turns += 1
        session.live_turns += 1
        words = facts.transcript.words
        traces.add_arrival(turn, NO_WORDS if traces.is_worn(turn.body) else words.prompt())
        if facts.attempt:
            traces.counting.add(facts.client)
        if session.turns == 1:
            session.opened = facts.transcript.asked if turn.offers_tools else ()
            if not turn.offers_tools and not facts.transcript.blocks and not traces.is_worn(turn.body):
                traces.add_title(turn, facts.transcript.new_probes)
            if found.source is SessionSource.NEW:
                traces.add_fruitless(turn.body)
        self._live[request] = turn
        self._age(session, traces)
        words.drop()
        self.touch(session, now=now)
        return session, SessionRef(
            session=session.id,
            source=found.source,
            confidence=found.confidence,
            thread=thread.id,
            edge=found.edge,
            parent=found.parent.request if found.parent else None,
        )

    def learn_id(self, request: RequestId, minted: str, *, is_call: bool) -> None:
        """An answer carried this id: of a call, or of something that is stored."""
        turn = self._live.get(request)
        if turn is None:
            return
        key = hash_text(minted)
        if key not in turn.minted:
            traces = self._traces[turn.session.tenant]
            turn.minted = (*turn.minted, key)
            turn.calls += is_call
            traces.add_minted(turn, key)
            if len(turn.minted) > self._config.max_call_ids:
                traces.remove_minted(turn, turn.minted[:1])
                turn.minted = turn.minted[1:]

    def ended(self, request: RequestId, answer: Answer | None, outcome: Outcome, *, now: float) -> None:
        """The turn is over; `answer` is what was passed on of its response."""
        turn = self._live.pop(request, None)
        if turn is None:
            return
        session = turn.session
        session.live_turns -= 1
        turn.outcome, turn.ended_s = outcome, now
        if answer is not None and answer.retry_after_s is not None:
            turn.due_s = now + answer.retry_after_s
        utterance = answer.utterance if answer is not None and answer.status < 400 else NO_UTTERANCE
        turn.text = utterance.text
        traces = self._traces[session.tenant]
        traces.add_answer(turn, utterance)
        self._trim(session, traces)
        self.touch(session, now=now)

    @property
    def are_too_many(self) -> bool:
        return len(self._sessions) > self._config.max_sessions

    def expire(self, *, now: float) -> list[tuple[Session, str]]:
        """Forgets sessions that idle too long or are too many; returns them with the reason.

        Looks at a bounded number of sessions a call, so one that must forget more is due again at once.
        """
        gone: list[tuple[Session, str]] = []
        for _ in range(min(_EXPIRE_BATCH, len(self._sessions))):
            oldest = next(iter(self._sessions.values()))
            if self.are_too_many:
                reason = "evicted"
            elif oldest.last_seen_s + self._config.idle_s <= now:
                reason = "idle"
            else:
                break
            if oldest.live_turns:  # alive, however long its turn takes
                self.touch(oldest, now=now)
            else:
                self.forget(oldest)
                gone.append((oldest, reason))
        return gone

    def touch(self, session: Session, *, now: float) -> None:
        session.last_seen_s = now
        self._sessions.move_to_end(session.id)

    def next_expiry_s(self) -> float | None:
        for oldest in self._sessions.values():
            return oldest.last_seen_s + self._config.idle_s
        return None

    def forget(self, session: Session) -> None:
        del self._sessions[session.id]
        for key in session.explicit_keys:
            if self._by_explicit.get(key) == session.id:
                del self._by_explicit[key]
        traces = self._traces[session.tenant]
        for turn in session.log:
            traces.remove(turn)
        traces.sessions -= 1
        if not traces.sessions:
            del self._traces[session.tenant]
        session.dissolve()

    def _start(self, tenant: TenantId, stated: ExplicitId | None, found: Identity, *, now: float) -> Session:
        self._count += 1
        session = Session(
            id=SessionId(f"s-{self._id_prefix}{self._count:x}"),
            tenant=tenant,
            source=found.source,
            confidence=found.confidence,
            started_s=now,
            last_seen_s=now,
            schema=stated.schema if stated else None,
            group=found.group,
            parent=found.origin,
        )
        self._sessions[session.id] = session
        if found.key is not None and found.group is None:
            session.explicit_keys.append(found.key)
            self._by_explicit[found.key] = session.id
        return session

    def _branch(self, session: Session, facts: RequestFacts, found: Identity) -> Thread:
        session.thread_count += 1
        thread = Thread(
            id=ThreadId(f"{session.id}.{session.thread_count}"),
            session=session,
            name=found.name,
            agent=facts.transcript.agent,
            is_unexplained=found.is_unexplained,
        )
        if session.thread_count == 1:
            session.main = thread
        if found.name is not None:
            session.named[found.name] = thread
            if len(session.named) > _MAX_NAMED:
                del session.named[next(iter(session.named))]
        if found.key is not None and found.group is None and found.key not in session.explicit_keys:
            session.explicit_keys.append(found.key)  # a sub-agent's own id, of a run that we know
            self._by_explicit[found.key] = session.id
        return thread

    def _place(self, turn: Turn, found: Identity, facts: RequestFacts) -> None:
        """Books what this turn means for the ones before it."""
        thread, parent = turn.thread, found.parent
        turn.is_side = found.edge is Edge.SERVES
        turn.is_opening = parent is None or found.edge in (Edge.SPAWNED, Edge.QUOTES, Edge.SERVES)
        if parent is not None and found.edge is Edge.RETRIES:
            parent.retried_by = turn
            turn.first_s = parent.first_s
            turn.is_opening, turn.is_side = parent.is_opening, parent.is_side
        elif parent is not None and found.edge is Edge.SPAWNED:
            parent.spawned += 1
        elif parent is not None and turn.is_side:
            parent.is_served = True
        elif parent is not None and found.edge is not Edge.QUOTES:
            parent.is_answered = True
            parent.next = turn
        if not turn.is_side:
            thread.tip = turn
            thread.agent = facts.transcript.agent

    def _age(self, session: Session, traces: Traces) -> None:
        """A turn came; older ones are forgotten, first what they said."""
        quotable = session.log[-1].thread.quotable
        quotable.append(session.log[-1])
        if len(quotable) > _QUOTABLE_TURNS:
            traces.remove_marks(quotable.pop(0))
        self._trim(session, traces)

    def _trim(self, session: Session, traces: Traces) -> None:
        """The newest turn of each thread is forgotten last, one that lives never."""
        while len(session.log) > self._config.max_turns:
            over = [turn for turn in session.log if turn.outcome is not Outcome.LIVE]
            if not over:
                return
            oldest = next((turn for turn in over if turn.thread.tip is not turn), over[0])
            session.log.remove(oldest)
            traces.remove(oldest)
