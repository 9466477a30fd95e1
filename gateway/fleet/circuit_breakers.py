"""Passive health: the load that a replica may take, by the outcomes of its turns (U5).

Source: ours; the circuit breaker (closed, open, half open), slow start and outlier ejection with a floor, as
in Envoy.

Theory of operation. A replica that answers is *up*. Failures in a row, or slow turns in a row, *eject* it: it
gets no turns for a while, twice as long each time. Then it is *tried* with one turn at a time, and after a
success it is *warming*: its share grows from one turn to that of the others. A replica that does not answer
at all is *down*; it returns warming, too. Before an ejection it may count as an outlier (`outliers.py`).

A turn is slow as soon as its first token is overdue. Ends count apart from first tokens, by the tokens of the
reported usage: else long answers make a replica late every few seconds, and its sessions leave at once. A
turn is not overdue before its prompt, and those ahead, could have been computed with nothing cached: else
busy replicas are ejected, and their sessions overload the next one.

Deviations: Envoy compares replicas with each other. Here each is compared with its own prediction
(`gateway/cost`), so unlike replicas may be in one pool; only the lateness against predictions is compared, so
that where all are late no replica is at fault.

Invariants: those of `breaker_states.py`; a replica that stays slow returns after `slow_ejections_limit`, for
placement to judge; memory is bounded by replicas and live turns.
"""

import heapq
from collections.abc import Iterator
from math import inf

from gateway.domain.ids import NOBODYS, PoolId, ReplicaId, RequestId, TenantId
from gateway.fleet.breaker_states import (
    FAILING,
    OUT,
    SERVING,
    Awaited,
    BreakerState,
    Changed,
    CircuitBreaker,
    HealthConfig,
    may_be_ejected,
)
from gateway.fleet.outliers import FAR_LATER, OutlierDetection, Phase
from gateway.fleet.silence import LEAST_S, Sent, Silence


class FleetHealth:
    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._breakers: dict[ReplicaId, CircuitBreaker] = {}
        self._awaited: dict[RequestId, Awaited] = {}
        # A heap; outdated entries stay until they are due.
        self._overdue: list[tuple[float, RequestId]] = []
        self._began_s: dict[PoolId, float] = {}
        self.outliers = OutlierDetection(lasts_s=config.ejection_s)
        self.silence = Silence(config.slow_until_out)
        self.changes: list[Changed] = []
        # `pass_time` changes nothing before.
        self.next_due_s = self._look_s = inf
        self.all_up = True
        # A single replica is judged by its failures alone.
        self.compares = False

    def state(self, replica: ReplicaId) -> BreakerState:
        breaker = self._breakers.get(replica)
        return breaker.state if breaker is not None else BreakerState.DOWN

    def ejected(self, replica: ReplicaId) -> tuple[str, float | None] | None:
        """The reason, and when it is tried; None for the time while it is."""
        breaker = self._breakers.get(replica)
        if breaker is None or breaker.state not in OUT:
            return None
        is_out = breaker.state is BreakerState.EJECTED
        return breaker.why, breaker.due_s(self._config) if is_out else None

    def failing(self, replica: ReplicaId) -> str | None:
        """The failures of a replica that is not ejected for them."""
        found = self._breakers.get(replica)
        if found is None or found.state not in SERVING or found.failures < self._config.failures_until_out:
            return None
        return found.why

    def may_take(self, replica: ReplicaId, running: int, usual: float, *, now: float) -> bool:
        """`usual`: the others' mean of running turns."""
        breaker = self._breakers.get(replica)
        if breaker is None:
            return False
        if breaker.state is BreakerState.WARMING:
            share = (now - breaker.since_s) / self._config.slow_start_s
            return running < 1 + share * usual
        is_trial = breaker.state is BreakerState.TRIED and breaker.trial is None
        return is_trial or breaker.state is BreakerState.UP

    def came_up(self, replica: ReplicaId, pool: PoolId, *, now: float) -> None:
        began_s = self._began_s.setdefault(pool, now)
        breaker, state = self._breakers.get(replica), BreakerState.WARMING
        if breaker is None:
            breaker = self._breakers[replica] = CircuitBreaker(replica=replica, pool=pool)
            if now - began_s < self._config.slow_start_s:
                state = BreakerState.UP
        if breaker.state is BreakerState.DOWN:
            self._step(breaker, state, now=now)

    def went_down(self, replica: ReplicaId, *, now: float) -> None:
        breaker = self._breakers.get(replica)
        if breaker is not None and breaker.state is not BreakerState.DOWN:
            self._step(breaker, BreakerState.DOWN, now=now)

    def forget(self, replica: ReplicaId) -> None:
        self._breakers.pop(replica, None)
        self._awaited = {
            name: each for name, each in self._awaited.items() if each.breaker.replica != replica
        }
        self.outliers.forget(replica)
        self.silence.awaited.pop(replica, None)
        self._take_stock()

    def sent(
        self,
        request: RequestId,
        replica: ReplicaId,
        p90_s: float | None,
        end_p90_s: float = float("inf"),
        *,
        worst_s: float = 0.0,
        output_tokens: float | None = None,
        now: float,
    ) -> None:
        """`p90_s`, `end_p90_s`: until its first token, and its end; None without a prediction; infinite for a
        first token that is not visible. `worst_s`: to compute its whole prompt, alone, and its answer, too,
        without a prediction or a visible first token. `output_tokens`: expected."""
        breaker = self._breakers[replica]
        if breaker.state is BreakerState.TRIED:
            breaker.trial = request
        is_seen = p90_s is not None and p90_s < inf
        work_s = worst_s if p90_s is None else max(worst_s, end_p90_s)
        if not is_seen and 0.0 < work_s < inf and self.silence.sent(request, replica, work_s, now=now):
            self._look_s = min(self._look_s, now + LEAST_S)
            self.next_due_s = min(self.next_due_s, self._look_s)
        if p90_s is None:
            return
        breaker.ahead_s += worst_s
        factor, least_s = self._config.slow_factor, self._config.slow_least_s
        patience_s = max(least_s, factor * max(p90_s, breaker.ahead_s))
        end_s = max(patience_s if is_seen else least_s, factor * max(end_p90_s, breaker.ahead_s))
        overdue_s = now + patience_s
        self._awaited[request] = Awaited(
            breaker, now, patience_s, end_s, overdue_s, worst_s, output_tokens=output_tokens
        )
        if not is_seen:
            return
        heapq.heappush(self._overdue, (overdue_s, request))
        if len(self._overdue) > 2 * len(self._awaited) + 64:
            self._overdue = [
                (each.overdue_s, name)
                for name, each in self._awaited.items()
                if each.phase is Phase.START and each.patience_s < inf
            ]
            heapq.heapify(self._overdue)
        self.next_due_s = min(self.next_due_s, overdue_s)

    def first_token(self, request: RequestId, replica: ReplicaId, *, now: float) -> None:
        awaited = self._awaited.get(request)
        if self.silence.awaited:
            self._compare(request, self._breakers[replica], awaited, now=now)
        if awaited is None:
            return
        awaited.leave_queue()
        overdue_s = awaited.sent_s + awaited.end_patience_s
        if awaited.patience_s < inf:
            self._judge(request, awaited, is_over=True, now=now)
            overdue_s = max(overdue_s, now + self._config.slow_least_s)
        awaited.phase, awaited.patience_s, awaited.overdue_s = Phase.END, awaited.end_patience_s, overdue_s
        awaited.is_overdue = awaited.is_late = False

    def ended(
        self,
        request: RequestId,
        replica: ReplicaId,
        *,
        failed: bool | None,
        how: str = "",
        output_tokens: int | None = None,
        effort: int = 1,
        tenant: TenantId = NOBODYS,
        now: float,
    ) -> None:
        """`failed`: by the replica's fault; None without evidence. `output_tokens`: as reported. `effort`: of
        the request; a success excuses only failures of at most its effort, and with 0 (counting tokens, a
        client's error) none."""
        awaited, breaker = self._awaited.pop(request, None), self._breakers.get(replica)
        if breaker is None:  # it left the fleet
            return
        if awaited is not None:
            awaited.leave_queue()
            if failed is False and awaited.patience_s < inf and awaited.can_be_judged(output_tokens):
                self._judge(request, awaited, is_over=True, now=now)
        if self.silence.awaited:
            if failed is False and output_tokens:
                self._compare(request, breaker, None, now=now)
            elif failed is None:
                self.silence.client_left(request, replica, now=now)
            elif self.silence.ended(request, replica) is None:
                self.silence.alive(replica, now=now)
        if failed:
            self._failed(breaker, f"fails: {how}" if how else "fails", effort, tenant, now=now)
        elif failed is not None and effort:
            if breaker.failures and effort >= breaker.failed_effort:
                if self.failing(replica) is not None:
                    self.changes.append(Changed(replica, breaker.state.value, "answers again"))
                breaker.clear_failures()
            breaker.served_s = now
            if breaker.failed:
                breaker.excuse_others(tenant, effort, now=now)
            if breaker.trial == request and breaker.state is BreakerState.TRIED:
                self._step(breaker, BreakerState.WARMING, "its trial went well", now=now)
        if breaker.trial == request:
            breaker.trial = None

    def pass_time(self, *, now: float) -> None:
        while self._overdue and self._overdue[0][0] <= now:
            overdue_s, request = heapq.heappop(self._overdue)
            awaited = self._awaited.get(request)
            if awaited is None or awaited.phase is Phase.END or awaited.overdue_s > overdue_s:
                continue
            awaited.is_overdue = True
            awaited.overdue_s = now + awaited.patience_s
            heapq.heappush(self._overdue, (awaited.overdue_s, request))
            self._judge(request, awaited, is_over=False, now=now)
        self.outliers.pass_time(now=now)
        if now >= self._look_s:  # in case all turns wait on silent replicas, so none ends
            self._look_s = now + LEAST_S if self.silence.awaited else inf
            for pool in {self._breakers[replica].pool for replica in self.silence.awaited}:
                self._look(pool, now=now)
        for breaker in self._breakers.values():
            if now < breaker.due_s(self._config):
                continue
            if breaker.state is BreakerState.EJECTED:
                self._step(breaker, BreakerState.TRIED, "has rested", now=now)
            else:
                breaker.ejections = breaker.slow_ejections = 0
                self._step(breaker, BreakerState.UP, "is warm", now=now)
        self._take_stock()

    def stalled(self, lost_s: float) -> None:
        for awaited in self._awaited.values():
            awaited.sent_s += lost_s
            awaited.overdue_s += lost_s
        self._overdue = [(overdue_s + lost_s, request) for overdue_s, request in self._overdue]
        self.silence.stalled(lost_s)
        self._take_stock()

    def _compare(
        self, request: RequestId, breaker: CircuitBreaker, awaited: Awaited | None, *, now: float
    ) -> None:
        sent = Sent(awaited.sent_s, awaited.worst_s, awaited.worst_s) if awaited is not None else None
        if self.silence.answered(request, breaker.replica, breaker.pool, sent, now=now):
            self._look(breaker.pool, now=now)

    def _look(self, pool: PoolId, *, now: float) -> None:
        peers = [name for name, each in self._breakers.items() if each.pool == pool]
        for wedged in self.silence.wedged(pool, peers, now=now):
            self._eject(self._breakers[wedged], "answers nothing while others do", now=now)

    def _judge(self, request: RequestId, awaited: Awaited, *, is_over: bool, now: float) -> None:
        """`is_over`: its phase has ended; else it is overdue."""
        if is_over and awaited.is_late:
            return
        breaker, phase = awaited.breaker, awaited.phase
        took = (now - awaited.sent_s) / awaited.patience_s * self._config.slow_factor
        awaited.is_late |= self.outliers.saw(
            breaker.replica, phase, took, self._others(breaker), is_over=is_over, now=now
        )
        if self.outliers.late:
            self.next_due_s = min(self.next_due_s, self.outliers.next_due_s)
        is_tried = breaker.state is BreakerState.TRIED
        if (is_over and awaited.is_overdue) or (is_tried and breaker.trial != request):
            return
        if is_over and now <= awaited.overdue_s:
            breaker.slow[phase] = 0
            if is_tried:
                self._step(breaker, BreakerState.WARMING, "its trial went well", now=now)
            return
        if took < FAR_LATER * self.outliers.usual(phase, self._others(breaker)):
            return
        breaker.slow[phase] = breaker.slow.get(phase, 0) + 1
        if not is_tried and breaker.slow[phase] < self._config.slow_until_out:
            return
        if breaker.slow_ejections < self._config.slow_ejections_limit:
            breaker.slow_ejections += self._eject(breaker, "is slow", now=now)
        elif is_tried:
            self._step(breaker, BreakerState.WARMING, "is slow by nature", now=now)

    def _failed(
        self, breaker: CircuitBreaker, how: str, effort: int, tenant: TenantId, *, now: float
    ) -> None:
        most, is_tried = self._config.failures_until_out, breaker.state is BreakerState.TRIED
        breaker.went_wrong(tenant, effort)
        if is_tried or breaker.failures == most - 1 > 0:
            pool = (each for each in self._breakers.values() if each.pool == breaker.pool)
            if breaker.failed_of == (tenant,) and any(each.excuses(tenant, now=now) for each in pool):
                if is_tried:
                    self._step(breaker, BreakerState.WARMING, "one tenant's turns fail everywhere", now=now)
                return
        breaker.failures += 1
        if is_tried or breaker.failures >= most:
            is_out = self._eject(breaker, how, now=now)
            if not is_out and breaker.state in SERVING and breaker.failures == most:
                breaker.why = how
                self.changes.append(
                    Changed(breaker.replica, FAILING, f"{how}; it stays, or too few were left")
                )

    def _others(self, breaker: CircuitBreaker) -> Iterator[ReplicaId]:
        for name, each in self._breakers.items():
            if each.pool == breaker.pool and each is not breaker and each.state in SERVING:
                yield name

    def _eject(self, breaker: CircuitBreaker, why: str, *, now: float) -> bool:
        pool = [each for each in self._breakers.values() if each.pool == breaker.pool]
        if not may_be_ejected(breaker, pool, self._config.max_ejected_share, now=now):
            return False
        breaker.ejections, breaker.why = breaker.ejections + 1, why
        self._step(breaker, BreakerState.EJECTED, why, now=now)
        return True

    def _step(self, breaker: CircuitBreaker, state: BreakerState, why: str = "", *, now: float) -> None:
        breaker.step(state, now=now)
        if why:
            self.changes.append(Changed(breaker.replica, state.value, why))
        self._take_stock()

    def _take_stock(self) -> None:
        out = [each for each in self._breakers.values() if each.state is not BreakerState.UP]
        self.all_up, self.compares = not out, len(self._breakers) > 1
        due = [each.due_s(self._config) for each in out]
        due += [due_s for due_s, _ in self._overdue[:1]]
        self.next_due_s = min(self.outliers.next_due_s, self._look_s, *due)
