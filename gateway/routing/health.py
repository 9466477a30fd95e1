"""Passive health: what may be sent to a replica, by what became of what was sent to it (U5).

Source: ours; the circuit breaker (closed, open, half open), slow start and outlier ejection with a floor, as
in Envoy. Sutradhara (§4.4) for membership by heartbeat, which `gateway/upstream` keeps.

Theory of operation. A replica that answers is *up*. Failures in a row, or turns in a row that were far slower
than expected of it, have it *ejected*: nothing is sent to it for a while, twice as long each time. Then it
is *tried* with one turn at a time, and if that goes well it is *warming*: its share grows from one turn to
that of the others. One that is *down* does not answer at all; it comes back warming, too. A turn is slow as
soon as its first token is overdue; nobody waits until it is there. First tokens in time do not excuse ends
that are late: each count for themselves. But some answers are many times as long as most: an end is late for
what was generated, as its usage tells, and one that is awaited, or tells nothing, says nothing of a replica.
(Without that, long answers made some replica late every few seconds, and its sessions left at once.) One that
is behind large prompts, or whose own cache was lost, takes long on a healthy replica, too: so it is not
overdue before the prompts that are ahead of it, and its own, could have been computed with nothing cached.
(Without that, busy replicas were ejected, and their sessions made the next one late.)

Before it comes to that, it may count as late (`lateness.py`).

Symbols: —

Deviations: Envoy compares replicas with each other. Here each is held against what is expected of it
(`gateway/cost`), so unlike replicas may stand in one pool; the others are asked only how late their turns
are against what is expected of them, and where all are late it is no fault of this one.

Invariants: those of `standing.py`; never more than a share of a pool is out for what became of its turns, and
never the last one; what is slow and stays it is let back after `trials`, for placement to judge; memory is
bounded by replicas and live turns.
"""

import heapq
from collections.abc import Iterator

import msgspec

from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.routing.lateness import FAR_LATER, Lateness, Part
from gateway.routing.standing import TRANSITIONS, Condition, HealthConfig, Sign, Standing


class _Awaited(msgspec.Struct, eq=False):
    """A turn without a first token yet, or without an end."""

    replica: ReplicaId
    sent_s: float
    patience_s: float
    """It counts as slow after this long, and again after each such time without a first token; infinite if
    nobody sees that."""
    end_patience_s: float
    overdue_s: float
    worst_s: float
    """Counted in `Standing.ahead_s` until its first token."""
    part: Part = Part.BEGINNING
    is_overdue: bool = False
    is_late: bool = False
    """What is awaited of it was counted as late already."""
    output_tokens: float | None = None
    """Of its answer, as expected."""


class Changed(msgspec.Struct, frozen=True):
    replica: ReplicaId
    condition: Condition
    why: str


class FleetHealth:
    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._standings: dict[ReplicaId, Standing] = {}
        self._awaited: dict[RequestId, _Awaited] = {}
        self._overdue: list[tuple[float, RequestId]] = []
        """A heap; those that are not awaited any more stay in it until they come up."""
        self._began_s: dict[PoolId, float] = {}
        self._uneasy: set[ReplicaId] = set()
        """Those that are not up."""
        self.lateness = Lateness(lasts_s=config.rest_s)
        self.next_due_s = float("inf")
        """`pass_time` changes nothing before."""
        self.said: list[Changed] = []
        """For the information stream; whoever reads it empties it."""

    # --- questions ---------------------------------------------------------------------------------

    @property
    def is_calm(self) -> bool:
        """Every replica may have what it can take."""
        return not self._uneasy

    def condition(self, replica: ReplicaId) -> Condition:
        return self._standings[replica].condition

    def is_out(self, replica: ReplicaId) -> bool:
        """Nothing may be sent there, though it answers."""
        return self._standings[replica].condition is Condition.EJECTED

    def may_take(self, replica: ReplicaId, running: int, usual: float, *, now: float) -> bool:
        """One more turn, as far as its condition goes. `usual`: turns that the others run on average."""
        standing = self._standings[replica]
        match standing.condition:
            case Condition.UP:
                return True
            case Condition.TRIED:
                return standing.trial is None
            case Condition.WARMING:
                share = (now - standing.since_s) / self._config.slow_start_s
                return running < 1 + share * usual
            case _:
                return False

    # --- notifications -----------------------------------------------------------------------------

    def came_up(self, replica: ReplicaId, pool: PoolId, *, now: float) -> None:
        """It answers health checks. One that is new to a pool that serves already starts slowly, too."""
        began_s = self._began_s.setdefault(pool, now)
        standing = self._standings.get(replica)
        if standing is None:
            is_first = now - began_s < self._config.slow_start_s
            condition = Condition.UP if is_first else Condition.WARMING
            self._standings[replica] = Standing(pool=pool, condition=condition, since_s=now)
            if not is_first:
                self._note(replica)
        elif standing.condition is Condition.DOWN:
            standing.step(Sign.CAME, now=now)
            self._note(replica)

    def went_down(self, replica: ReplicaId, *, now: float) -> None:
        standing = self._standings.get(replica)
        if standing is not None and standing.condition is not Condition.DOWN:
            standing.step(Sign.WENT, now=now)
            self._note(replica)

    def forget(self, replica: ReplicaId) -> None:
        self._standings.pop(replica, None)
        self._uneasy.discard(replica)
        self.lateness.forget(replica)

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
        """`p90_s`, `end_p90_s`: until its first token, and its end, as nine in ten should take less; None if
        nothing is expected, or of a replica of which too little was seen to expect anything; infinite for a
        first token that nobody will see. `worst_s`: to compute all of its prompt, alone. `output_tokens`: of
        its answer, as expected."""
        standing = self._standings[replica]
        if standing.condition is Condition.TRIED:
            standing.trial = request
        if p90_s is None:
            return
        standing.ahead_s += worst_s
        factor, least_s = self._config.slow_factor, self._config.slow_least_s
        patience_s = max(least_s, factor * max(p90_s, standing.ahead_s))
        is_seen = patience_s < float("inf")
        end_s = max(patience_s if is_seen else least_s, factor * max(end_p90_s, standing.ahead_s))
        self._awaited[request] = _Awaited(
            replica, now, patience_s, end_s, now + patience_s, worst_s, output_tokens=output_tokens
        )
        if is_seen:
            self._await(request, now + patience_s)

    def _await(self, request: RequestId, overdue_s: float) -> None:
        heapq.heappush(self._overdue, (overdue_s, request))
        if len(self._overdue) > 2 * len(self._awaited) + 64:
            self._overdue = [
                (each.overdue_s, name)
                for name, each in self._awaited.items()
                if each.part is Part.BEGINNING and each.patience_s < float("inf")
            ]
            heapq.heapify(self._overdue)
        if overdue_s < self.next_due_s:
            self.next_due_s = overdue_s

    def first_token(self, request: RequestId, *, now: float) -> None:
        awaited = self._awaited.get(request)
        if awaited is None:
            return
        self._computed(awaited)
        overdue_s = awaited.sent_s + awaited.end_patience_s
        if awaited.patience_s < float("inf"):
            self._came(request, awaited, now=now)
            overdue_s = max(overdue_s, now + self._config.slow_least_s)
        awaited.part, awaited.patience_s, awaited.overdue_s = Part.END, awaited.end_patience_s, overdue_s
        awaited.is_overdue = awaited.is_late = False

    def ended(
        self,
        request: RequestId,
        replica: ReplicaId,
        *,
        failed: bool | None,
        output_tokens: int | None = None,
        now: float,
    ) -> None:
        """`failed`: it was the replica's fault; None if the turn says nothing about that. `output_tokens`: of
        its answer, if that was told."""
        if (awaited := self._awaited.pop(request, None)) is not None:
            self._computed(awaited)
            if failed is False and awaited.patience_s < float("inf"):
                self._end_came(request, awaited, output_tokens, now=now)
        standing = self._standings.get(replica)
        if standing is None:
            return
        if failed:
            standing.failures += 1
            is_enough = standing.condition is Condition.TRIED
            if is_enough or standing.failures >= self._config.failures_until_out:
                self._eject(replica, standing, "fails", now=now)
        elif failed is not None:
            standing.failures = 0
            if standing.trial == request and standing.condition is Condition.TRIED:
                self._pass_trial(replica, standing, "its trial went well", now=now)
        if standing.trial == request:
            standing.trial = None

    def _end_came(
        self, request: RequestId, awaited: _Awaited, output_tokens: int | None, *, now: float
    ) -> None:
        if awaited.part is Part.END:
            if output_tokens is None or not awaited.output_tokens:
                return
            longer = max(1.0, output_tokens / awaited.output_tokens)
            awaited.overdue_s += (longer - 1.0) * awaited.patience_s
            awaited.patience_s *= longer
        self._came(request, awaited, now=now)

    def pass_time(self, *, now: float) -> None:
        """Takes note of what is overdue, whose rest is over and who is warm."""
        while self._overdue and self._overdue[0][0] <= now:
            overdue_s, request = heapq.heappop(self._overdue)
            awaited = self._awaited.get(request)
            if awaited is None or awaited.part is Part.END:
                continue
            if awaited.overdue_s <= overdue_s:
                awaited.is_overdue = True
                awaited.overdue_s = now + awaited.patience_s
                heapq.heappush(self._overdue, (awaited.overdue_s, request))
                took = self._took(awaited, is_over=False, now=now)
                self._judge(request, awaited, took, is_slow=True, now=now)
        self.lateness.pass_time(now=now)
        for replica in tuple(self._uneasy):
            standing = self._standings[replica]
            passed_s = now - standing.since_s
            if standing.condition is Condition.EJECTED and passed_s >= self._rest_s(standing):
                standing.step(Sign.RESTED, now=now)
                self._note(replica, "has rested")
            elif standing.condition is Condition.WARMING and passed_s >= self._config.slow_start_s:
                standing.step(Sign.WARMED, now=now)
                standing.ejections = standing.slow_ejections = 0
                self._note(replica, "is warm")
        self._set_due()

    def _computed(self, awaited: _Awaited) -> None:
        """Its prompt is, or nobody waits for that any more."""
        standing = self._standings.get(awaited.replica)
        if standing is not None:
            ahead_s = standing.ahead_s - awaited.worst_s
            standing.ahead_s = ahead_s if ahead_s > 0.0 else 0.0
        awaited.worst_s = 0.0

    # --- verdicts ----------------------------------------------------------------------------------

    def _came(self, request: RequestId, awaited: _Awaited, *, now: float) -> None:
        """What was awaited of a turn; if it was late, that may have been counted already."""
        if not awaited.is_late:
            took = self._took(awaited, is_over=True, now=now)
            if not awaited.is_overdue:
                self._judge(request, awaited, took, is_slow=now > awaited.overdue_s, now=now)

    def _took(self, awaited: _Awaited, *, is_over: bool, now: float) -> float:
        """How late it is; of one that is awaited still, so far."""
        took = (now - awaited.sent_s) / awaited.patience_s * self._config.slow_factor
        if (standing := self._standings.get(awaited.replica)) is not None:
            others = self._others(awaited.replica, standing.pool)
            awaited.is_late |= self.lateness.saw(
                awaited.replica, awaited.part, took, others, is_over=is_over, now=now
            )
            self.next_due_s = min(self.next_due_s, self.lateness.next_due_s)
        return took

    def _judge(
        self, request: RequestId, awaited: _Awaited, took: float, *, is_slow: bool, now: float
    ) -> None:
        replica, part = awaited.replica, awaited.part
        standing = self._standings.get(replica)
        if standing is None or (standing.condition is Condition.TRIED and standing.trial != request):
            return
        if not is_slow:
            standing.slow[part] = 0
            if standing.condition is Condition.TRIED:
                self._pass_trial(replica, standing, "its trial went well", now=now)
            return
        if took < FAR_LATER * self.lateness.usual(part, self._others(replica, standing.pool)):
            return
        standing.slow[part] = standing.slow.get(part, 0) + 1
        is_enough = (
            standing.condition is Condition.TRIED or standing.slow[part] >= self._config.slow_until_out
        )
        if not is_enough:
            return
        if standing.slow_ejections < self._config.trials:
            if self._eject(replica, standing, "is slow", now=now):
                standing.slow_ejections += 1
        elif standing.condition is Condition.TRIED:
            self._pass_trial(replica, standing, "is slow by nature", now=now)

    def _pass_trial(self, replica: ReplicaId, standing: Standing, why: str, *, now: float) -> None:
        standing.step(Sign.PASSED, now=now)
        self._note(replica, why)

    def _others(self, replica: ReplicaId, pool: PoolId) -> Iterator[ReplicaId]:
        """That serve."""
        for name, each in self._standings.items():
            if each.pool == pool and name != replica and each.condition in (Condition.UP, Condition.WARMING):
                yield name

    def _eject(self, replica: ReplicaId, standing: Standing, why: str, *, now: float) -> bool:
        """Unless it is out, or too many would be."""
        if Sign.OFFENDED not in TRANSITIONS[standing.condition]:
            return False
        peers = [each for each in self._standings.values() if each.pool == standing.pool]
        bad = (Condition.EJECTED, Condition.TRIED)
        out = sum(each.condition in bad for each in peers if each is not standing)
        there = sum(each.condition not in (*bad, Condition.DOWN) for each in peers if each is not standing)
        if not there or out + 1 > max(1, int(self._config.out_at_most * len(peers))):
            return False
        if not self._config.out_at_most:
            return False
        standing.step(Sign.OFFENDED, now=now)
        standing.ejections += 1
        self._note(replica, why)
        return True

    def _rest_s(self, standing: Standing) -> float:
        doubled = self._config.rest_s * 2.0 ** min(30, max(0, standing.ejections - 1))
        return min(doubled, self._config.rest_most_s)

    def _note(self, replica: ReplicaId, why: str = "") -> None:
        condition = self._standings[replica].condition
        if condition is Condition.UP:
            self._uneasy.discard(replica)
        else:
            self._uneasy.add(replica)
        if why:
            self.said.append(Changed(replica, condition, why))
        self._set_due()

    def _set_due(self) -> None:
        due_s = self.lateness.next_due_s
        if self._overdue:
            due_s = min(due_s, self._overdue[0][0])
        for replica in self._uneasy:
            standing = self._standings[replica]
            if standing.condition is Condition.EJECTED:
                due_s = min(due_s, standing.since_s + self._rest_s(standing))
            elif standing.condition is Condition.WARMING:
                due_s = min(due_s, standing.since_s + self._config.slow_start_s)
        self.next_due_s = due_s
