"""The brain's state at one moment, for people and dashboards: plain values, bounded in size."""

from itertools import islice
from typing import Final

import msgspec

from gateway.core.coordinator import Coordinator
from gateway.core.fleet import ReplicaState
from gateway.domain.decision import SessionSource
from gateway.domain.ids import PoolId, ReplicaId, SessionId, TenantId
from gateway.workflow.sessions import Session

MAX_SESSIONS: Final = 1000


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    id: ReplicaId
    pool: PoolId
    is_up: bool
    running: int
    engine: str
    version: str | None
    models: tuple[str, ...]


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    id: SessionId
    tenant: TenantId
    source: SessionSource
    confidence: float
    schema: str | None
    parent: SessionId | None
    phase: str
    """`generating` (a turn lives), `tool` (its calls are unanswered) or `idle`."""
    turns: int
    open_tools: tuple[str, ...]
    started_s: float
    last_seen_s: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    replicas: tuple[ReplicaView, ...]
    sessions: tuple[SessionView, ...]
    """The most recently seen, at most `MAX_SESSIONS`."""
    session_count: int
    running: int
    waiting: int
    active_tools: int


def take_snapshot(brain: Coordinator, *, now: float) -> Snapshot:
    book = brain.sessions
    return Snapshot(
        at_s=now,
        replicas=tuple(_view_replica(state) for state in brain.fleet),
        sessions=tuple(_view_session(brain, s) for s in islice(book.sessions.newest_first(), MAX_SESSIONS)),
        session_count=len(book.sessions),
        running=len(brain.live) - len(brain.waiting_room),
        waiting=len(brain.waiting_room),
        active_tools=book.tools.active_sessions,
    )


def _view_replica(state: ReplicaState) -> ReplicaView:
    facts = state.facts
    return ReplicaView(
        id=facts.id,
        pool=facts.pool,
        is_up=state.is_up,
        running=state.running,
        engine=facts.abilities.engine,
        version=facts.abilities.version,
        models=facts.models,
    )


def _view_session(brain: Coordinator, session: Session) -> SessionView:
    open_calls = brain.sessions.tools.open_calls(session.id)
    phase = "generating" if session.live_turns else "tool" if open_calls else "idle"
    return SessionView(
        id=session.id,
        tenant=session.tenant,
        source=session.source,
        confidence=session.confidence,
        schema=session.schema,
        parent=session.parent,
        phase=phase,
        turns=session.turns,
        open_tools=tuple(call.name for call in open_calls),
        started_s=session.started_s,
        last_seen_s=session.last_seen_s,
    )
