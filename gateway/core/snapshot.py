"""The brain's state at one moment, for people and dashboards: plain values, bounded in size.

What costs little whatever there is (`take_gauges`) stands apart from what costs some microseconds a session.
"""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Final

import msgspec

from gateway.core.coordinator import Coordinator
from gateway.core.fleet import ReplicaState
from gateway.core.pool_views import PoolView, TenantView, view_members, view_pools, view_tenants
from gateway.core.sessions.client_habits import ConductView
from gateway.core.turns.lifecycle import State
from gateway.domain.decision import Edge, PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.engine import EngineSignals, PluginFeature, PluginReport, SessionKv
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.workflow.sessions import Session

MAX_SESSIONS: Final = 1000
MAX_HOLDINGS: Final = 64
NO_SIGNALS: Final = EngineSignals()
NO_PLUGIN: Final = PluginReport()
_FINISHED_S: Final = 60.0
# Of agents that have gone while a tool ran nothing else is seen.
_LONG_TOOL_S: Final = 600.0


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    id: ReplicaId
    pool: PoolId
    is_up: bool
    cause: str = ""
    """Cause, if it is down."""
    ejected: str | None = None
    """Cause of its ejection."""
    ejected_until_s: float | None = None
    """None: it has one turn on trial."""
    failing: str | None = None
    """Cause of its failures, if it stays for want of others."""
    is_draining: bool = False
    """By an operator."""
    running: int
    engine_running: int | None = None
    engine_waiting: int | None = None
    kv_used: float | None = None
    kv_retained: float | None = None
    kv_tokens: int | None = None
    kv_of_sessions: tuple[SessionKv, ...] = ()
    """Largest holdings of sessions, from the plugin alone."""
    plugin: tuple[PluginFeature, ...] = ()
    sessions: int = 0
    """Sessions with their first conversation there."""
    engine: str
    version: str | None
    models: tuple[str, ...]


class TurnView(msgspec.Struct, kw_only=True):
    """A turn by its records; None for what has not happened."""

    turn: RequestId
    thread: ThreadId | None
    edge: Edge
    parent: RequestId | None
    model: str | None
    arrived_s: float
    is_streamed: bool = True
    client: str = ""
    source: SessionSource = SessionSource.NEW
    confidence: float = 0.0
    submitted_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    wait_reason: WaitReason | None = None
    queue_ms: float = 0.0
    replica: ReplicaId | None = None
    reason: PlacementReason | None = None
    expected_first_token_ms: float | None = None
    expected_completion_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    outcome: str | None = None
    status: int | None = None
    refusal: RefusalReason | None = None
    tools: tuple[str, ...] = ()
    tools_ended_s: float | None = None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    id: SessionId
    tenant: TenantId
    source: SessionSource
    """The best evidence among its last turns, with its confidence."""
    confidence: float
    schema: str | None
    client: str
    """The product in its newest turn's user agent; empty if unknown."""
    first_words: str
    """First words of its user; empty unless `server.first_words`."""
    parent: SessionId | None
    guess: SessionId | None
    """A session that it may belong to, without effect."""
    agent: str
    """Its agent type; empty if unknown."""
    agent_type: str
    """The same, as settings name it: equal after a restart. Empty without bounds."""
    service_class: str | None = msgspec.field(name="class")
    state: str
    """`waiting` (without a slot), `generating`, `tool` (open calls), `idle`, `finished` (idle for a minute),
    or `stopped` by an operator."""
    since_s: float
    is_active: bool
    """A turn waits or runs, or a tool has run for less than ten minutes."""
    turns: int
    troubles: int
    """Turns that failed, were refused or cut, or that the client left."""
    threads: int
    thread: ThreadId | None
    """Of the newest turn."""
    replica: ReplicaId | None
    """Replica of the newest turn that ran."""
    open_tools: tuple[str, ...]
    started_s: float
    last_seen_s: float
    prompt_tokens: int
    cached_tokens: int | None
    """None if no engine reports it."""
    output_tokens: int
    last_turns: Sequence[TurnView]


class BoundView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's use of a bound in the present day or month."""

    bound: str
    tenant: TenantId
    used: float
    """A share; with several limits, the highest."""


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    session_count: int
    running: int
    waiting: int
    active_tools: int
    waiting_by: dict[str, int] = {}
    """Turns that wait, by class; `none` where admission knows no class."""
    replicas: tuple[ReplicaView, ...] = ()
    pools: tuple[PoolView, ...] = ()
    tenants: tuple[TenantView, ...] = ()
    bounds: tuple[BoundView, ...] = ()
    conduct: tuple[ConductView, ...] = ()


def take_gauges(
    brain: Coordinator,
    signals: Mapping[ReplicaId, EngineSignals] | None = None,
    plugins: Mapping[ReplicaId, PluginReport] | None = None,
    *,
    now: float,
) -> Gauges:
    """`signals`, `plugins`: the last reports of engines and of their plugins."""
    return Gauges(
        at_s=now,
        session_count=len(brain.sessions.sessions),
        running=len(brain.live) - len(brain.waiting_room),
        waiting=len(brain.waiting_room),
        active_tools=brain.sessions.tools.active_sessions,
        waiting_by=_waiting_by_class(brain),
        replicas=tuple(_view_replica(brain, state, signals or {}, plugins or {}) for state in brain.fleet),
        pools=view_pools(brain.admission),
        tenants=view_tenants(brain.admission),
        bounds=tuple(
            BoundView(bound=bound.name, tenant=tenant, used=used)
            for bound, tenant, used in brain.session_limits.bounds.shares(now=now)
        ),
        conduct=brain.sessions.conduct.views(),
    )


class SessionViews:
    """Views of sessions, as they are now; what all of them need is looked up once."""

    def __init__(self, brain: Coordinator, first_words: Mapping[SessionId, str] | None = None) -> None:
        self._brain = brain
        self._first_words = first_words or {}
        self._waits: dict[SessionId, float] = {}
        self._runs: dict[SessionId, float] = {}
        for live in brain.live.values():
            if (session := live.session_id) is not None:
                if live.state is State.WAITING:
                    self._waits[session] = max(live.parked_s, self._waits.get(session, 0.0))
                else:
                    self._runs[session] = max(live.submitted_s, self._runs.get(session, 0.0))
        self._members = view_members(brain.admission)

    def view(self, session: Session, turns: Sequence[TurnView] = (), *, now: float) -> SessionView:
        calls = self._brain.sessions.tools.open_calls(session.id)
        if session.id in self._runs:
            state, since_s = "generating", self._runs[session.id]
        elif session.id in self._waits:
            state, since_s = "waiting", self._waits[session.id]
        elif calls:
            state, since_s = "tool", min(call.started_s for call in calls)
        else:
            state, since_s = "idle", session.last_seen_s
            if now - since_s >= _FINISHED_S:
                state = "finished"
        if self._brain.session_limits.is_stopped(session.id, now=now) and state != "generating":
            state = "stopped"
        newest = session.log[-1] if session.log else None
        known = [turn for turn in turns if turn.source is not SessionSource.NEW]
        best = max(known, key=lambda turn: turn.confidence, default=session)
        member = self._members.get(session.id)
        replica = next((turn.replica for turn in reversed(turns) if turn.replica is not None), None)
        return SessionView(
            id=session.id,
            tenant=session.tenant,
            source=best.source,
            confidence=best.confidence,
            schema=session.schema,
            client=next((turn.client for turn in reversed(turns) if turn.client), ""),
            first_words=self._first_words.get(session.id, ""),
            parent=session.parent,
            guess=session.guess,
            agent=f"{newest.agent & 0xFFFFFFFF:08x}" if newest is not None and newest.agent else "",
            agent_type=self._brain.session_limits.agent_type(session.id),
            service_class=member.service_class if member is not None else None,
            state=state,
            since_s=since_s,
            is_active=state in ("generating", "waiting")
            or (state == "tool" and now - since_s < _LONG_TOOL_S),
            turns=session.turns,
            troubles=session.troubles,
            threads=session.thread_count,
            thread=newest.thread.id if newest is not None else None,
            replica=replica or (member.replica if member is not None else None),
            open_tools=tuple(call.name for call in calls),
            started_s=session.started_s,
            last_seen_s=now if session.live_turns else session.last_seen_s,
            prompt_tokens=session.prompt_tokens,
            cached_tokens=session.cached_tokens,
            output_tokens=session.output_tokens,
            last_turns=turns,
        )


def _waiting_by_class(brain: Coordinator) -> dict[str, int]:
    if not brain.waiting_room.turns:
        return {}
    members, counts = view_members(brain.admission), dict[str, int]()
    for request in brain.waiting_room.turns:
        session = brain.live[request].session_id
        member = members.get(session) if session is not None else None
        name = member.service_class if member is not None else "none"
        counts[name] = counts.get(name, 0) + 1
    return counts


def _view_replica(
    brain: Coordinator,
    state: ReplicaState,
    signals: Mapping[ReplicaId, EngineSignals],
    plugins: Mapping[ReplicaId, PluginReport],
) -> ReplicaView:
    facts = state.facts
    states = signals.get(facts.id, NO_SIGNALS)
    plugin = plugins.get(facts.id, NO_PLUGIN)
    why, until_s = brain.fleet.health.ejected(facts.id) or (None, None)
    lives_there: Mapping[ReplicaId, int] = brain.placement.ledger.sessions_at
    return ReplicaView(
        id=facts.id,
        pool=facts.pool,
        is_up=state.is_up,
        cause=state.cause,
        ejected=why,
        ejected_until_s=until_s,
        failing=brain.fleet.health.failing(facts.id),
        is_draining=state.is_draining,
        running=state.running,
        engine_running=states.running,
        engine_waiting=states.waiting,
        kv_used=states.kv_used,
        kv_retained=states.kv_retained,
        kv_tokens=states.kv_tokens,
        kv_of_sessions=tuple(nlargest(MAX_HOLDINGS, plugin.sessions, key=lambda each: each.resident_tokens)),
        plugin=plugin.features,
        sessions=lives_there.get(facts.id, 0),
        engine=facts.abilities.engine,
        version=facts.abilities.version,
        models=facts.models,
    )
