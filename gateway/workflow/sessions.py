"""Session identity: which session does this turn belong to, and how sure are we?

Source: ours (DESIGN: "Session identity"). The first hit wins:

1. an id the client states (a header or body field of a known convention), scoped by tenant;
2. protocol state: `previous_response_id`, `conversation` or an item reference that we saw being minted;
3. a tool call id that we saw in a response comes back in a request;
4. otherwise the turn starts a new session.

Symbols: —

Deviations: an id stated by the client names a session together with its thread, so sub-agents that
share their parent's session id become sessions of their own, linked to it by `parent`.

Invariants: every lookup is scoped by tenant; a call id seen in two sessions identifies neither (some
backends count ids from zero), until both have forgotten it; at most `max_sessions` are kept, and of each
at most `max_call_ids`; a session with a live turn is never forgotten; forgetting only ever makes a later
turn start anew.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.decision import SessionRef, SessionSource
from gateway.domain.ids import SessionId, TenantId
from gateway.domain.request import ExplicitId, RequestFacts

CONFIDENCE: Final[dict[SessionSource, float]] = {
    SessionSource.TURNPIKE_HEADER: 1.0,
    SessionSource.CLIENT_ID: 0.98,
    SessionSource.STATE_ID: 0.99,
    SessionSource.CALL_ID: 0.99,
    # Nothing linked it to an earlier turn; it may still continue one that we could not recognise.
    SessionSource.NEW: 0.5,
}


class SessionsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_sessions: Annotated[int, Meta(ge=1)] = 100_000
    """Sessions remembered; beyond it the longest unseen are forgotten."""
    max_call_ids: Annotated[int, Meta(ge=1)] = 64
    """Call ids remembered per session, newest first."""
    idle_s: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    """A session that had no live turn for so long has ended."""


class Session(msgspec.Struct, kw_only=True):
    """One agent run. Changed only by `Sessions` and the coordinator."""

    id: SessionId
    tenant: TenantId
    source: SessionSource
    confidence: float
    started_s: float
    last_seen_s: float
    schema: str | None = None
    parent: SessionId | None = None
    turns: int = 0
    live_turns: int = 0
    is_final: bool = False
    """Somebody said that the session is over; it ends with the last of its live turns."""
    explicit_key: "_ExplicitKey | None" = None
    call_ids: OrderedDict[str, None] = msgspec.field(default_factory=OrderedDict)


_ExplicitKey = tuple[TenantId, str, str, str | None]
_EXPIRE_BATCH: Final = 64


class Sessions:
    def __init__(self, config: SessionsConfig, *, id_prefix: str) -> None:
        """`id_prefix` keeps the ids of several gateway processes apart."""
        self._config = config
        self._id_prefix = id_prefix
        self._count = 0
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()
        """Least recently seen first."""
        self._by_explicit: dict[_ExplicitKey, SessionId] = {}
        self._by_call: dict[tuple[TenantId, str], SessionId | int] = {}
        """The session that a call id identifies, or how many sessions still know one that identifies none."""

    def __len__(self) -> int:
        return len(self._sessions)

    def newest_first(self) -> Iterator[Session]:
        """By when they were last seen."""
        return reversed(self._sessions.values())

    def get(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    def identify(
        self, tenant: TenantId, facts: RequestFacts, state_session: SessionId | None, *, now: float
    ) -> tuple[Session, SessionRef]:
        """The session of a turn that arrived now; a new one if nothing links it to an earlier turn.

        `state_session` is the session that minted the state this turn builds on, if that is known.
        """
        session, source = self._find(tenant, facts, state_session)
        if session is None:
            session = self._start(tenant, facts.explicit, source, now=now)
        self.touch(session, now=now)
        return session, SessionRef(session=session.id, source=source, confidence=CONFIDENCE[source])

    def learn_call_id(self, session: Session, call_id: str) -> None:
        """A response of this session carried this call id."""
        if call_id not in session.call_ids:
            key = (session.tenant, call_id)
            known = self._by_call.get(key)
            if known is None:
                self._by_call[key] = session.id
            else:
                self._by_call[key] = known + 1 if isinstance(known, int) else 2
            session.call_ids[call_id] = None
        session.call_ids.move_to_end(call_id)
        if len(session.call_ids) > self._config.max_call_ids:
            oldest, _ = session.call_ids.popitem(last=False)
            self._forget_call_id(session, oldest)

    def expire(self, *, now: float) -> list[tuple[Session, str]]:
        """Forgets sessions that idle too long or are too many; returns them with the reason.

        Looks at a bounded number of sessions a call, so one that must forget more is due again at once.
        """
        gone: list[tuple[Session, str]] = []
        for _ in range(min(_EXPIRE_BATCH, len(self._sessions))):
            oldest = next(iter(self._sessions.values()))
            if len(self._sessions) > self._config.max_sessions:
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
        if session.explicit_key is not None:
            del self._by_explicit[session.explicit_key]
        for call_id in session.call_ids:
            self._forget_call_id(session, call_id)

    def _forget_call_id(self, session: Session, call_id: str) -> None:
        key = (session.tenant, call_id)
        known = self._by_call[key]
        if isinstance(known, int) and known > 1:
            self._by_call[key] = known - 1
        else:
            del self._by_call[key]

    def _find(
        self, tenant: TenantId, facts: RequestFacts, state_session: SessionId | None
    ) -> tuple[Session | None, SessionSource]:
        if facts.explicit is not None:
            stated = facts.explicit
            key = (tenant, stated.schema, stated.session, stated.thread)
            session = self._sessions[self._by_explicit[key]] if key in self._by_explicit else None
            is_ours = stated.schema.startswith("x-turnpike")
            return session, SessionSource.TURNPIKE_HEADER if is_ours else SessionSource.CLIENT_ID
        if state_session is not None and (session := self._sessions.get(state_session)) is not None:
            return session, SessionSource.STATE_ID
        for call_id in facts.echoed_ids:
            known = self._by_call.get((tenant, call_id))
            if isinstance(known, str):
                return self._sessions[known], SessionSource.CALL_ID
        return None, SessionSource.NEW

    def _start(
        self, tenant: TenantId, stated: ExplicitId | None, source: SessionSource, *, now: float
    ) -> Session:
        self._count += 1
        session = Session(
            id=SessionId(f"s-{self._id_prefix}{self._count:x}"),
            tenant=tenant,
            source=source,
            confidence=CONFIDENCE[source],
            started_s=now,
            last_seen_s=now,
        )
        self._sessions[session.id] = session
        if stated is not None:
            session.schema = stated.schema
            session.parent = self._parent_of(tenant, stated)  # looked up first, or it might find itself
            session.explicit_key = (tenant, stated.schema, stated.session, stated.thread)
            self._by_explicit[session.explicit_key] = session.id
        return session

    def _parent_of(self, tenant: TenantId, stated: ExplicitId) -> SessionId | None:
        """The session that spawned this one: named by its thread or session, else the thread's session."""
        candidates: list[_ExplicitKey] = []
        if stated.parent is not None:
            candidates.append((tenant, stated.schema, stated.session, stated.parent))
            candidates.append((tenant, stated.schema, stated.parent, None))
        if stated.thread is not None:
            candidates.append((tenant, stated.schema, stated.session, None))
        for key in candidates:
            if (parent := self._by_explicit.get(key)) is not None:
                return parent
        return None
