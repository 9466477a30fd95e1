"""Everything that is measured of one run: the `Sink` that aggregates."""

import math
from collections.abc import Sequence

from gateway.domain.ids import ReplicaId
from gateway.domain.records import Record
from lab.simulator.measures.goodput import Goodput
from lab.simulator.measures.histogram import Histogram
from lab.simulator.measures.series import Gauge, Series
from lab.simulator.measures.tenants import Tenants
from lab.simulator.measures.turns import Turns
from lab.simulator.measures.waterfall import Waterfall
from lab.simulator.results import ReplicaSample, SessionOutcome, TurnOutcome

_EARLY, _LATE = 0.1, 0.9
"""The steady part of a run: between these shares of the sessions' ends, so without filling and draining."""


class RunMeasures:
    def __init__(
        self,
        *,
        sessions: int,
        waterfall: Waterfall | None = None,
        measured: frozenset[str] | None = None,
        keeps_slowdowns: bool = False,
    ) -> None:
        """`sessions`: how many of those that are measured will be over when the run is. `measured`: their
        ids; None for all. What replicas count (time busy, KV used) is of all sessions."""
        self.turns = Turns()
        self.tenants = Tenants()
        self.goodput = Goodput()
        self.completion_s = Histogram()
        self.final_first_token_s = Histogram()
        """From the session's arrival to its final answer's first token."""
        self.slowdown = Histogram()
        """Completion over isolated time."""
        self.slowdowns: dict[str, list[float]] = {}
        """Each session's, by tenant, if they are kept: infinite where it failed."""
        self.isolated_s = Histogram()
        self.failed = 0
        self.ended = 0
        self.first_arrival_s: float | None = None
        self.last_end_s = 0.0
        self.steady_s: list[tuple[int, float]] = []
        """How many sessions had ended by when: where the steady part begins, and where it ends."""
        self.waiting_sessions = Series()
        """Arrived, and the first turn not on a replica yet."""
        self.inside_sessions = Series()
        """In the window: from the first turn on a replica to the end."""
        self.kv_used = Gauge()
        self.hits = Gauge()
        """Hit rate since the last look, where there were prompts."""
        self.running = Gauge()
        self.queued = Gauge()
        """Turns in the engines' queues."""
        self.busy_s = 0.0
        self.replica_busy_s: dict[ReplicaId, float] = {}
        self.kv_used_most = 0.0
        self.waterfall = waterfall or Waterfall()
        self._measured = measured
        self._keeps_slowdowns = keeps_slowdowns
        self._steady_at = (round(_EARLY * sessions), round(_LATE * sessions))
        self._entered_s: dict[str, float] = {}
        """When their first turn got to a replica, of the sessions that live."""

    def turn_done(self, outcome: TurnOutcome) -> None:
        if self._measured is not None and outcome.session not in self._measured:
            return
        self.turns.turn_done(outcome)
        self.waterfall.turn_done(outcome)
        if outcome.session not in self._entered_s:
            self._entered_s[outcome.session] = outcome.arrival_s + outcome.waited_s

    def session_done(self, outcome: SessionOutcome) -> None:
        if self._measured is not None and outcome.id not in self._measured:
            return
        taken_s = outcome.end_s - outcome.arrival_s
        self.completion_s.add(taken_s)
        self.final_first_token_s.add(outcome.final_first_token_s - outcome.arrival_s)
        self.isolated_s.add(outcome.isolated_s)
        if outcome.isolated_s > 0:
            self.slowdown.add(taken_s / outcome.isolated_s)
        if self._keeps_slowdowns:
            slowdown = math.inf if outcome.failed else taken_s / outcome.isolated_s
            self.slowdowns.setdefault(outcome.tenant, []).append(slowdown)
        self.failed += outcome.failed
        self.goodput.add(taken_s, outcome.isolated_s, failed=outcome.failed)
        self.tenants.session_done(outcome)
        self.waterfall.session_done(outcome)
        self._ended(outcome.arrival_s, outcome.end_s)
        entered_s = self._entered_s.pop(outcome.id, outcome.end_s)
        self.waiting_sessions.spread(outcome.arrival_s, entered_s)
        self.inside_sessions.spread(entered_s, max(entered_s, outcome.end_s))

    def sample(self, at_s: float, replicas: Sequence[ReplicaSample]) -> None:
        kv_used = sum(each.kv_used for each in replicas) / len(replicas)
        self.kv_used.look(at_s, kv_used)
        self.kv_used_most = max(self.kv_used_most, kv_used)
        self.running.look(at_s, sum(each.running for each in replicas))
        self.queued.look(at_s, sum(each.waiting for each in replicas))
        prompt = sum(each.prompt_tokens for each in replicas)
        if prompt:
            self.hits.look(at_s, sum(each.cached_tokens for each in replicas) / prompt)
        self.busy_s += sum(each.busy_s for each in replicas)
        for each in replicas:
            self.replica_busy_s[each.replica] = self.replica_busy_s.get(each.replica, 0.0) + each.busy_s

    def record(self, record: Record) -> None:
        """Nothing is measured by the stream."""

    def _ended(self, arrival_s: float, end_s: float) -> None:
        self.ended += 1
        if self.first_arrival_s is None or arrival_s < self.first_arrival_s:
            self.first_arrival_s = arrival_s
        self.last_end_s = max(self.last_end_s, end_s)
        if self.ended in self._steady_at:
            self.steady_s.append((self.ended, self.last_end_s))

    @property
    def window_s(self) -> float:
        """From the first arrival to the last end."""
        return self.last_end_s - (self.first_arrival_s or 0.0)

    @property
    def steady_sessions_per_h(self) -> float | None:
        """Sessions that end in an hour, while the run is neither filling nor draining."""
        if len(self.steady_s) < 2 or self.steady_s[1][1] <= self.steady_s[0][1]:
            return None
        (early, early_s), (late, late_s) = self.steady_s
        return (late - early) * 3600 / (late_s - early_s)
