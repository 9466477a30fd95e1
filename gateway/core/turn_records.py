"""The information stream's one producer: what happened to a request, as records (M1)."""

from gateway.budgets.budgets import Reached
from gateway.core.commands import Command
from gateway.core.turns.live import LiveRequest, Route
from gateway.domain import records as rec
from gateway.domain.decision import Placement, Refusal, Wait, WaitReason
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import Answer, Usage, Work
from gateway.routing.kv_ledger import Conversation

GPU_WORK = (Work.GENERATE, Work.POOL, Work.TUNNEL)


class TurnRecords:
    def __init__(self, out: list[Command]) -> None:
        self.append = out.append
        self.extend = out.extend

    def waited(
        self, live: LiveRequest, wait: Wait, waiting: int, *, first: WaitReason | None, now: float
    ) -> None:
        self.append(
            rec.TurnWaited(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                reason=wait.reason,
                waiting=waiting,
                first=first,
            )
        )

    def left_waiting(self, live: LiveRequest, *, now: float) -> None:
        self.append(
            rec.TurnLeft(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                waited_ms=live.waited_s * 1e3,
                tenant=live.tenant,
                key=live.key,
                model=_model_at_work(live),
            )
        )

    def prefilled_ahead(
        self,
        conversation: Conversation,
        turn: RequestId,
        replica: ReplicaId,
        outcome: str,
        usage: Usage,
        *,
        used_tokens: int,
        took_s: float,
        now: float,
    ) -> None:
        session, thread = conversation
        self.append(
            rec.PrefilledAhead(
                at_s=now,
                session=session,
                thread=thread,
                turn=turn,
                replica=replica,
                outcome=outcome,
                usage=usage,
                used_tokens=used_tokens,
                duration_ms=took_s * 1e3,
            )
        )

    def leg_ended(
        self, live: LiveRequest, replica: ReplicaId, outcome: str, usage: Usage, *, took_s: float, now: float
    ) -> None:
        self.append(
            rec.PrefillLegEnded(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                replica=replica,
                outcome=outcome,
                usage=usage,
                duration_ms=took_s * 1e3,
            )
        )

    def would_wait(self, live: LiveRequest, reason: WaitReason, *, now: float) -> None:
        self.append(rec.TurnWouldWait(at_s=now, turn=live.request, session=live.session_id, reason=reason))

    def submitted(
        self,
        live: LiveRequest,
        placement: Placement,
        expected: rec.Expected | None,
        engine_class: str | None,
        service_class: str | None,
        *,
        now: float,
    ) -> None:
        """Only work for the engine is `gpu_submit`; a request for a list of models is merely routed."""
        self.append(
            rec.Routed(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                replica=placement.replica,
                reason=placement.reason,
                waited_ms=live.waited_s * 1e3,
            )
        )
        if live.facts.work not in GPU_WORK:
            return
        self.append(
            rec.GpuSubmit(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                replica=placement.replica,
                prompt_bytes=live.facts.body_bytes,
                attempt=live.attempts,
                expected=expected,
                engine_class=engine_class,
                pool=live.pool,
                service_class=service_class,
            )
        )

    def model_chosen(self, live: LiveRequest, route: Route, *, now: float) -> None:
        self.append(
            rec.ModelChosen(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                requested=route.named.name,
                model=route.choice.target.model,
                fallback=route.fallback,
            )
        )

    def first_token(self, live: LiveRequest, replica: ReplicaId, *, now: float) -> None:
        if live.facts.work not in GPU_WORK:
            return
        self.append(
            rec.GpuFirstToken(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                replica=replica,
                launch_delay_ms=(now - live.submitted_s) * 1e3,
            )
        )

    def left_replica(
        self,
        live: LiveRequest,
        replica: ReplicaId,
        outcome: str,
        answer: Answer | None,
        *,
        estimated: Usage | None,
        now: float,
    ) -> None:
        if live.facts.work not in GPU_WORK:
            return
        usage, uncounted = answer.usage if answer else Usage(), 0
        if estimated is not None:
            prompt = (estimated.prompt_tokens or 0) - (usage.prompt_tokens or 0)
            uncounted = max(0, prompt + (estimated.output_tokens or 0) - (usage.output_tokens or 0))
        self.append(
            rec.GpuEnd(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                replica=replica,
                outcome=outcome,
                status=answer.status if answer else None,
                usage=usage,
                estimated_tokens=uncounted,
                finish_reason=answer.finish_reason if answer else None,
                failure=answer.failure if answer else "",
                tenant=live.tenant,
                key=live.key,
                model=live.facts.model if live.route is None else live.runs_on,
                duration_ms=(now - live.submitted_s) * 1e3,
                response_id=answer.response_id if answer else None,
                response_model=answer.model if answer else None,
                alone_ms=live.alone.seconds * 1e3 if live.alone is not None else None,
            )
        )

    def replica_changed(self, replica: ReplicaId, state: str, why: str, *, now: float) -> None:
        self.append(rec.ReplicaChanged(at_s=now, replica=replica, state=state, why=why))

    def bound_reached(self, live: LiveRequest, reached: Reached, *, now: float) -> None:
        bound = reached.bound
        self.append(
            rec.BoundReached(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                tenant=live.tenant,
                agent=f"{live.facts.transcript.agent_type:016x}",
                bound=bound.name,
                limit=reached.limit,
                used=reached.used,
                most=reached.most,
                action="shadow" if bound.shadow else bound.action,
            )
        )

    def refused(self, live: LiveRequest, refusal: Refusal, *, now: float) -> None:
        self.append(
            rec.Refused(
                at_s=now,
                turn=live.request,
                session=live.session_id,
                tenant=live.tenant,
                reason=refusal.reason,
                message=refusal.message,
                waited_ms=live.waited_s * 1e3,
                key=live.key,
                model=_model_at_work(live),
            )
        )


def _model_at_work(live: LiveRequest) -> str | None:
    return live.runs_on or "" if live.facts.work in GPU_WORK else None
