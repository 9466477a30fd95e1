"""The store of sessions, by their ids, stated ids and last activity.

Invariants: a session takes less than a mebibyte, whatever its client sends (`max_turns` turns with
`max_call_ids` ids each, `MAX_NAMED` threads, `MAX_KEYS` ids); at most `max_sessions` are kept, and the tenant
with most of them loses some first; a session with a live turn is never forgotten; a forgotten one leaves no
trace. The next to forget is found in a bounded number of steps.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.decision import SessionSource
from gateway.domain.ids import SessionId, TenantId, ThreadId
from gateway.domain.request import ExplicitId, RequestFacts
from gateway.domain.turn_trace import TurnTrace
from gateway.identity.explicit_ids import TURNPIKE_SCHEMA
from gateway.identity.memory import Memory
from gateway.workflow.traces import MAX_TWINS, Traces
from gateway.workflow.turns import ExplicitKey, Identity, Session, Thread

_EXPIRE_BATCH: Final = 64
# Threads of a session with a name of the client's.
MAX_NAMED: Final = 64
# Stated ids of a session: its own, and its sub-agents'.
MAX_KEYS: Final = 64


class SessionsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_sessions: Annotated[int, Meta(ge=1)] = 100_000
    """Sessions kept; the tenant with the most loses its longest unseen first."""
    max_turns: Annotated[int, Meta(ge=2)] = 48
    """Turns kept per session, newest first."""
    max_call_ids: Annotated[int, Meta(ge=1)] = 64
    """Minted ids kept per turn, newest first."""
    idle_s: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    """A session without a live turn for so long has ended."""


class SessionStore:
    def __init__(self, config: SessionsConfig, ids: Iterator[SessionId]) -> None:
        self._config = config
        self._ids = ids
        # Least recently seen first.
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()
        self.get = self._sessions.get
        self._by_explicit: dict[ExplicitKey, SessionId] = {}
        self._traces: dict[TenantId, Traces] = {}
        # Tenants by their number of sessions.
        self._with: dict[int, dict[TenantId, None]] = {}
        self._most = 0
        self.are_too_many = False
        self._twins: Memory[bool] = Memory(MAX_TWINS)

    def __len__(self) -> int:
        return len(self._sessions)

    def traces_of(self, tenant: TenantId) -> Traces:
        known = self._traces.get(tenant)
        if known is None:
            known = self._traces[tenant] = Traces(self._twins)
        return known

    def twins_found(self, names: Iterable[int]) -> None:
        for name in names:
            self._twins.put(name, True)

    def newest_first(self, tenant: TenantId | None = None) -> Iterator[Session]:
        if tenant is None:
            return reversed(self._sessions.values())
        traces = self._traces.get(tenant)
        return reversed(traces.sessions.values()) if traces is not None else iter(())

    def find_explicit(self, key: ExplicitKey) -> Session | None:
        known = self._by_explicit.get(key)
        return None if known is None else self._sessions[known]

    def find_stated(self, tenant: TenantId, stated: ExplicitId) -> Session | None:
        key = (tenant, stated.schema, stated.session)
        return self.find_explicit(key) or self.find_own(key)

    def find_own(self, key: ExplicitKey) -> Session | None:
        session = self._sessions.get(SessionId(key[2])) if key[1] == TURNPIKE_SCHEMA else None
        return session if session is not None and session.tenant == key[0] else None

    def expire(self, *, now: float) -> list[tuple[Session, str]]:
        """Forgets sessions that are idle too long or too many; returns them with the reason. Looks at a
        bounded number of sessions a call; with more it is due again at once."""
        gone: list[tuple[Session, str]] = []
        for _ in range(min(_EXPIRE_BATCH, len(self._sessions))):
            oldest = next(iter(self._sessions.values()))
            if oldest.last_seen_s + self._config.idle_s <= now:
                reason = "idle"
            elif self.are_too_many:
                tenant = next(iter(self._with[self._most]))
                oldest, reason = next(iter(self._traces[tenant].sessions.values())), "evicted"
            else:
                break
            if oldest.live_turns or oldest.is_stopped(now=now):  # however long its turn takes
                self.touch(oldest, now=now)
            else:
                self.forget(oldest)
                gone.append((oldest, reason))
        return gone

    def touch(self, session: Session, *, now: float) -> None:
        session.last_seen_s = now
        self._sessions.move_to_end(session.id)
        self._traces[session.tenant].sessions.move_to_end(session.id)

    def next_expiry_s(self) -> float | None:
        for oldest in self._sessions.values():
            return oldest.last_seen_s + self._config.idle_s
        return None

    def forget(self, session: Session) -> None:
        for key in session.explicit_keys:
            if self._by_explicit.get(key) == session.id:
                del self._by_explicit[key]
        traces = self._traces[session.tenant]
        for turn in session.log:
            traces.remove(turn)
        del self._sessions[session.id], traces.sessions[session.id]
        self._count(session.tenant, len(traces.sessions) + 1, len(traces.sessions))
        if not traces.sessions:
            del self._traces[session.tenant]
        session.dissolve()

    def _count(self, tenant: TenantId, before: int, now: int) -> None:
        if before:
            del self._with[before][tenant]
            if not self._with[before]:
                del self._with[before]
        if now:
            self._with.setdefault(now, {})[tenant] = None
        self.are_too_many = len(self._sessions) > self._config.max_sessions
        if now > self._most or (before == self._most and before not in self._with):
            self._most = now

    def start(self, tenant: TenantId, stated: ExplicitId | None, found: Identity, *, now: float) -> Session:
        session = Session(
            id=next(self._ids),
            tenant=tenant,
            source=found.source,
            confidence=found.confidence,
            started_s=now,
            last_seen_s=now,
            schema=stated.schema if stated else None,
            group=found.group,
        )
        self._keep(session)
        return session

    def restore(self, trace: TurnTrace, *, now: float) -> Session:
        session = Session(
            id=trace.session,
            tenant=trace.tenant,
            source=SessionSource(trace.source),
            confidence=trace.confidence,
            started_s=now,
            last_seen_s=now,
            schema=trace.keys[0][0] if trace.keys else None,
            parent=trace.parent,
            turns=trace.turns,
            thread_count=trace.thread_number,
            explicit_keys=[(trace.tenant, *key) for key in trace.keys[:MAX_KEYS]],
        )
        self._keep(session)
        return session

    def _keep(self, session: Session) -> None:
        of_tenant = (self._traces.get(session.tenant) or self.traces_of(session.tenant)).sessions
        self._sessions[session.id] = of_tenant[session.id] = session
        self._count(session.tenant, len(of_tenant) - 1, len(of_tenant))
        self._by_explicit.update(dict.fromkeys(session.explicit_keys, session.id))

    def thread_of(self, session: Session, trace: TurnTrace) -> Thread:
        known = {turn.thread.id: turn.thread for turn in session.log}.get(trace.thread)
        if known is not None:
            return known
        session.thread_count = max(session.thread_count, trace.thread_number)
        thread = Thread(id=trace.thread, session=session, name=trace.name, agent=trace.agent)
        if not session.log:
            session.main, thread.is_root = thread, True
        if trace.name is not None and len(session.named) < MAX_NAMED:
            session.named[trace.name] = thread
        return thread

    def branch(self, session: Session, facts: RequestFacts, found: Identity) -> Thread:
        session.thread_count += 1
        thread = Thread(
            id=ThreadId(f"{session.id}.{session.thread_count}"),
            session=session,
            name=found.name,
            agent=facts.transcript.agent,
            is_root=session.thread_count == 1 or found.is_unexplained,
            is_unexplained=found.is_unexplained,
        )
        if session.thread_count == 1 or (found.begins_anew and thread.agent == session.main.agent):
            session.main = thread  # its client has begun anew, or compacted
        if found.name is not None:
            session.named[found.name] = thread
            if len(session.named) > MAX_NAMED:
                del session.named[next(iter(session.named))]
        if found.key is not None and found.group is None and found.key not in session.explicit_keys:
            # The stated id, which may be a sub-agent's own, leads here.
            session.explicit_keys.append(found.key)
            self._by_explicit[found.key] = session.id
            if len(session.explicit_keys) > MAX_KEYS:
                first_joined = session.explicit_keys.pop(1)
                if self._by_explicit.get(first_joined) == session.id:
                    del self._by_explicit[first_joined]
        return thread
