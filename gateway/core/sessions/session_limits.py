"""What operators allow of sessions: bounds that may be set, and sessions that were stopped.

The coordinator asks it of each turn that arrives, and tells it when a turn is over.

Invariants: without bounds and stopped sessions nothing is looked up; a stopped session runs
nothing for the time stated, and does not end meanwhile.
"""

from collections.abc import Iterator, Sequence

from gateway.budgets.budgets import BoundConfig, Budgets, PriceConfig, TurnUse
from gateway.core import refusals
from gateway.core.commands import Command, Spend
from gateway.core.turn_records import GPU_WORK, TurnRecords
from gateway.core.turns.live import LiveRequest
from gateway.domain.decision import Refusal
from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.domain.request import Answer
from gateway.domain.spending import Reserved, Spent
from gateway.workflow.sessions import Sessions


class SessionLimits:
    def __init__(self, bounds: Budgets, sessions: Sessions, out: list[Command]) -> None:
        self.bounds = bounds
        self.is_on = bounds.is_set
        self._sessions = sessions
        self._out = out
        self._records = TurnRecords(out)

    def apply_config(self, bounds: Sequence[BoundConfig], prices: Sequence[PriceConfig]) -> None:
        self.bounds.apply_config(bounds, prices)
        self.is_on |= self.bounds.is_set

    def refusal(self, live: LiveRequest, reserved: Reserved | None, *, now: float) -> Refusal | None:
        """Why a turn that arrives may not run; else the notice for its client, in `live`."""
        if self._is_stopped(live, now=now):
            self.give_back(reserved)
            return refusals.stopped()
        if not self.bounds.is_set or live.facts.work not in GPU_WORK:
            self.give_back(reserved)
            return None
        reached = self.bounds.arrived(self._asking(live), reserved, now=now)
        self._emit()
        for each in reached:
            self._records.bound_reached(live, each, now=now)
        if not reached or reached[0].bound.shadow:
            return None
        first = reached[0]
        live.bound = f"{first.bound.name} {first.limit}"
        live.is_deprioritized = first.bound.action == "deprioritize"
        return refusals.beyond_bound(first) if first.bound.action == "refuse" else None

    def counts_tokens(self, tenant: TenantId) -> bool:
        return self.bounds.counts_tokens(tenant)

    def give_back(self, reserved: Reserved | None) -> None:
        if reserved is not None:
            self.bounds.give_back(reserved)
            self._emit()

    def turn_over(self, live: LiveRequest, answer: Answer | None) -> None:
        if not self.bounds.turns:
            return
        if answer is not None and live.is_served_by(answer):
            self.bounds.turn_over(live.request, live.runs_on, answer.usage)
        elif answer is None and (live.tried or live.had_leg):
            # Its client left before an answer began: an engine computed its prompt all the same.
            self.bounds.turn_over(live.request, live.runs_on, None)
        else:
            self.bounds.turn_void(live.request)
        self._emit()

    def remember(self, spent: Sequence[Spent], *, now: float) -> None:
        self.bounds.restore(spent, now=now)

    def session_over(self, session: SessionId) -> None:
        self.bounds.session_over(session)

    def agent_type(self, session: SessionId) -> str:
        tally = self.bounds.sessions.get(session)
        return f"{tally.agent:016x}" if tally is not None and tally.agent else ""

    def _asking(self, live: LiveRequest) -> TurnUse:
        transcript = live.facts.transcript
        session = self._sessions.get(live.session.session) if live.session is not None else None
        return TurnUse(
            request=live.request,
            tenant=live.tenant,
            agent=transcript.agent_type,
            model=live.runs_on,
            text_bytes=live.facts.text_bytes,
            session=live.session_id,
            thread=live.session.thread if live.session is not None else None,
            started_s=live.task_arrived_s,
            turns_before=max(0, session.turns - 1) if session is not None else 0,
            tail=transcript.tail,
            called=transcript.new.called,
            brought=transcript.new.brought,
        )

    def _emit(self) -> None:
        if self.bounds.spent:
            self._out += [Spend(more=each) for each in self.bounds.spent]
            self.bounds.spent.clear()

    def stop(self, session: SessionId, *, until_s: float) -> None:
        if (known := self._sessions.get(session)) is not None:
            known.stopped_until_s = until_s
            self.is_on = True

    def is_stopped(self, session: SessionId, *, now: float) -> bool:
        known = self._sessions.get(session)
        return known is not None and known.is_stopped(now=now)

    def of(self, session: SessionId, live: dict[RequestId, LiveRequest]) -> Iterator[LiveRequest]:
        return (each for each in list(live.values()) if each.session_id == session)

    def _is_stopped(self, live: LiveRequest, *, now: float) -> bool:
        session, stated = live.session_id, live.facts.explicit
        if session is None and stated is not None:  # work that is no turn
            found = self._sessions.find_stated(live.tenant, stated)
            session = found.id if found is not None else None
        return session is not None and self.is_stopped(session, now=now)
