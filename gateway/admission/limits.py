"""Limits of a pool: its window and KV budget, moved about once a second by signals of engines and turns.

Invariants: an empty pool has room; a decrease states how many sessions have to go, and `evictor.py` which.
"""

import math
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.gpu_pressure import GpuPressure
from gateway.admission.sessions import Member, Places
from gateway.admission.settings import AdmissionConfig
from gateway.admission.tenants.promises import Promises
from gateway.admission.throughput import Throughput
from gateway.admission.update_window import Window, WindowInputs
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decay import DecayedMean
from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.records import Record

# Reasons to wait that another session's place would remove.
SCARCE: Final = (WaitReason.WINDOW_FULL, WaitReason.TOOLS_FULL, WaitReason.KV_FULL)
# With their next turns the admitted sessions would exceed the capacity.
OVERFLOW: Final = "kv_overflow"
# Overcommitment begins, or ends.
HAVE_TIME, HAVE_NO_TIME = "engines_have_time", "engines_have_no_time"
_UPDATE_S: Final = 1.0
# Of the capacity of several replicas: the fullest holds more than the mean. One alone is used whole, since an
# overflow costs the prefill of the smallest idle session. Used whole, four replicas are 1.06 times as slow.
_KV_SHARE_OF_SEVERAL: Final = 0.9
# Until an evicted session has left: its live turn, and the next. With 1, too many run with a full cache.
_TURNS_AHEAD: Final = 2.0


class BlockingLimit(NamedTuple):
    reason: WaitReason
    with_it: float
    """With the session, in the reason's unit: expected KV tokens, sessions, those with tools, or a charge."""
    limit: float


class Excess(NamedTuple):
    """What admitted sessions take beyond a limit."""

    amount: float
    """Places, or KV tokens."""
    why: str
    is_of_tools: bool = False
    """Places of sessions with heavy tools alone."""
    is_in_tokens: bool = False


class Limits:
    overcommit_sessions = 0.0
    """Sessions that may be admitted beyond the KV budget (`throughput.py`); 0 with a fixed limit."""

    def __init__(
        self, pool: PoolId, config: AdmissionConfig, places: Places, cpu: CpuPressure, records: list[Record]
    ) -> None:
        self._pool = pool
        self._config = config
        self._is_fixed = config.policy != "sessions"
        self._places = places
        self._cpu = cpu
        self._records = records
        self.window = Window(config.window)
        if config.policy == "session-cap":
            self.window.sessions = float(config.session_cap)
        self.gpu = GpuPressure()
        # From one turn to the next.
        self.cycle_s = DecayedMean(half_life=100)
        # Tokens per turn.
        self.grown = DecayedMean(half_life=100)
        self.throughput = Throughput()
        self.update_due_s = -math.inf
        # The last decrease: losses before it are no evidence.
        self.changed_s = -math.inf
        # This gateway's share of the pool (`partition.py`).
        self.part = 1.0
        self._up: tuple[ReplicaId, ...] = ()
        self.promises = Promises(config.fair_share.alpha)
        self.seen: WindowInputs | None = None

    # --- is there room? ------------------------------------------------------------------------------

    def why_not(self, member: Member, *, taking: int = 1) -> BlockingLimit | None:
        places, window = self._places, self.window
        if places.count == 0:
            return None
        count = places.count + taking
        pays = count <= self.overcommit_sessions
        if count > window.sessions and not pays:
            return BlockingLimit(WaitReason.WINDOW_FULL, count, window.sessions)
        tool_limit = window.tool_limit()
        if math.isfinite(tool_limit) and not self._cpu.is_light(member.agent):
            if (count := self._with_tools() + 1) > tool_limit:
                return BlockingLimit(WaitReason.TOOLS_FULL, count, tool_limit)
        if math.isinf(window.budget) or pays:
            return None
        places.recompute_demand()
        demand = places.demand_of(member)
        peak = places.residents.peak(also=demand, agent=member.agent)
        limit = self.kv_limit()
        if peak > limit:
            return BlockingLimit(WaitReason.KV_FULL, peak, limit)
        return None

    def kv_limit(self) -> float:
        """Expected tokens of admitted sessions at most; infinite where unknown."""
        return min(self.window.budget, self.throughput.knee_tokens)

    def overflow(self) -> float:
        """KV tokens beyond the capacity within the next turns, without the sessions that are to leave."""
        seen, places = self.seen, self._places
        if seen is None or seen.capacity is None or self._is_fixed:
            return 0.0
        if places.count <= max(1.0, self.overcommit_sessions):
            return 0.0
        grows = _TURNS_AHEAD * places.live * self.grown.mean(0.0)
        leaving = sum(each.demand[0] for each in places.marked.values())
        return max(0.0, places.residents.now() + grows - leaving - seen.capacity)

    def max_idle_hold_s(self) -> float | None:
        """How long an idle session's place is worth holding; None if unknown."""
        token_s, budget = self.throughput.token_s, self.window.budget
        if token_s is None or math.isinf(budget):
            return None
        return token_s * budget / self._replicas

    def _with_tools(self) -> int:
        places, is_light = self._places, self._cpu.is_light
        found = (places.residents.agents, places.with_tools)
        return max(sum(count for agent, count in each.items() if not is_light(agent)) for each in found)

    def is_over_full(self) -> bool:
        count, window = self._places.count, self.window
        is_beyond = count > window.sessions or self._places.residents.now() > window.budget
        return is_beyond and count > self.overcommit_sessions

    def kv_pressure(self) -> float:
        budget = self.window.budget
        return self._places.residents.peak() / budget if math.isfinite(budget) else 0.0

    # --- how they move -------------------------------------------------------------------------------

    def fleet_changed(self, up: Collection[ReplicaId]) -> None:
        for replica in set(self._up) - set(up):
            self.gpu.replica_left(replica)
        self._up = tuple(up)

    @property
    def _replicas(self) -> float:
        return self.part * max(1, len(self._up))

    def update(
        self, waiting: int, peaks: float, *, blocked_by: WaitReason | None, now: float
    ) -> Excess | None:
        """Moves the window; returns the sessions to evict. Call from `update_due_s` on. `waiting`: sessions
        in the queue; `peaks`: their expected tokens."""
        places, window = self._places, self.window
        self.update_due_s = now + _UPDATE_S
        places.recompute_demand()
        window.set_feedback(self.cycle_s.mean(10.0))
        had_time = self.overcommit_sessions > 0
        self.throughput.update(
            sessions=places.count,
            waiting=waiting,
            peaks=peaks,
            replicas=self.part * len(self._up),
            held=places.residents.now(),
            demand=places.residents.peak(),
            budget=window.reference,
        )
        self.overcommit_sessions = 0.0 if self._is_fixed else self.throughput.most
        self.seen = self._look(blocked_by, now=now)
        change = window.update(self.seen, now=now)
        if change is not None:
            self.record_change(change.reason, waiting=waiting, now=now)
        elif (self.overcommit_sessions > 0) is not had_time:
            self.record_change(HAVE_NO_TIME if had_time else HAVE_TIME, waiting=waiting, now=now)
        if change is not None and change.is_of_tools:
            if (count := _beyond(self.seen.with_tools, window.tool_limit())) > 0:
                return Excess(count, change.reason, is_of_tools=True)
        elif change is not None and change.is_decrease:
            self.gpu.start_afresh()
            self.changed_s = now
            if (count := _beyond(places.count, window.sessions)) > 0:
                return Excess(count, change.reason)
        if (tokens := self.overflow()) > 0:
            self.record_change(OVERFLOW, waiting=waiting, now=now)
            return Excess(tokens, OVERFLOW, is_in_tokens=True)
        return None

    def record_change(self, reason: str, *, waiting: int, now: float) -> None:
        if (seen := self.seen) is None:
            return
        window, level = self.window, self.promises.level
        limit = min(window.sessions, window.tool_limit() + seen.admitted - seen.with_tools)
        self._records.append(
            WindowUpdated(
                at_s=now,
                pool=self._pool,
                sessions=limit if math.isfinite(limit) else None,
                kv_budget=window.budget if math.isfinite(window.budget) else None,
                admitted=seen.admitted,
                waiting=waiting,
                demand=seen.demand,
                gpu_pressure=seen.gpu.pressure,
                cpu_pressure=seen.cpu.pressure,
                reason=reason,
                level=level if math.isfinite(level) else None,
                overcommit_sessions=seen.overcommit_sessions > 0,
            )
        )

    def _look(self, blocked_by: WaitReason | None, *, now: float) -> WindowInputs:
        places = self._places
        gpu = self.gpu.read(
            sessions=places.count / self._replicas,
            replicas=self._replicas,
            expected_recompute=0.0 if self._is_fixed else self.throughput.lost,
            feedback_s=self.window.feedback_s,
            now=now,
        )
        cpu = self._cpu.read(now=now)
        if self._is_fixed:  # only the capacity is followed
            gpu = msgspec.structs.replace(gpu, pressure=0.75)
            cpu = msgspec.structs.replace(cpu, pressure=0.75)
        elif not self._config.limit_by_tool_load:
            cpu = msgspec.structs.replace(cpu, pressure=0.0)
        with_tools = self._with_tools()
        cpu_floor, cpu_limit = self._cpu.limits(with_tools, cpu, pool=self._pool)
        return WindowInputs(
            gpu=gpu,
            cpu=cpu,
            cpu_limit=cpu_limit,
            cpu_floor=cpu_floor,
            admitted=places.count,
            overcommit_sessions=self.overcommit_sessions,
            with_tools=with_tools,
            held=max(places.residents.now(), 0.0),
            demand=places.residents.peak(),
            capacity=self.capacity() if self._config.policy != "session-cap" else None,
            kv_share=1.0 if sum(map(self.gpu.caches, self._up)) == 1 else _KV_SHARE_OF_SEVERAL,
            blocked_by=blocked_by,
        )

    def capacity(self, *, is_whole: bool = False) -> float | None:
        """Stated KV tokens: this gateway's part, or the whole pool's."""
        stated = self.gpu.capacity(self._up, host_tokens=self._config.host_kv_tokens)
        if stated is None:
            return None
        device, beyond = stated
        # Host memory counts as far as sessions can load it back between turns, with half of the bandwidth.
        rate = self._config.host_kv_tokens_per_s * max(1, len(self._up))
        whole = device + min(beyond, 0.5 * rate * self.window.feedback_s)
        return whole if is_whole else self.part * whole


def _beyond(count: int, limit: float) -> int:
    return count - math.ceil(limit) if math.isfinite(limit) else 0
