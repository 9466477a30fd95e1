"""How many sessions may be in a pool: its window and KV budget, and what they follow from.

Engines and turns say what happens; about once a second that becomes a move of the window.

Invariants: a pool with nobody in it has room; a decrease says how many have to go, and who goes is not
decided here.
"""

import math
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from gateway.admission.applicant import TurnOutcome
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.gpu_pressure import GpuPressure
from gateway.admission.promises import Promises
from gateway.admission.sessions import Member, Places
from gateway.admission.settings import AdmissionConfig
from gateway.admission.throughput import Throughput
from gateway.admission.window import Window, WindowInputs, host_tier_tokens, window_updated
from gateway.domain.decay import DecayedMean
from gateway.domain.decision import WaitReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.records import Record

SCARCE: Final = {
    WaitReason.WINDOW_FULL: "sessions",
    WaitReason.TOOLS_FULL: "tools",
    WaitReason.KV_FULL: "kv",
}
"""Reasons to wait that somebody else's place would remove, as the window calls them."""
OVERFLOW: Final = "kv_overflow"
"""Why the newest sessions wait at their next turn: with it those who are in would hold more than fits."""
HAVE_TIME, HAVE_NO_TIME = "engines_have_time", "engines_have_no_time"
"""Why sessions may be in that do not fit, or may no longer."""
_UPDATE_S: Final = 1.0
_TURNS_AHEAD: Final = 2.0
"""Turns by which those that run now grow before somebody who has to leave has left: the one that runs, and
its next. With 1, too many run when the cache is full."""


class Bound(NamedTuple):
    """What keeps a session out."""

    reason: WaitReason
    with_it: float
    """What would be in with it, as the reason counts: KV tokens as expected at most, sessions, or sessions
    with tools; what its tenant is charged, in sessions."""
    limit: float
    """As much may be in."""


class Excess(NamedTuple):
    """How many of those that are in should not be, after a decrease."""

    sessions: int
    why: str
    is_of_tools: bool = False
    """Only those whose tools are no light ones are meant."""


class Limits:
    def __init__(
        self,
        pool: PoolId,
        config: AdmissionConfig,
        *,
        places: Places,
        cpu: CpuPressure,
        said: list[Record],
    ) -> None:
        self._pool = pool
        self._config = config
        self._places = places
        self._cpu = cpu
        self._said = said
        window = config.window
        if config.policy == "footprint":
            window = msgspec.structs.replace(window, kv_share=config.footprint_share)
        self.window = Window(window)
        if config.policy == "session-cap":
            self.window.sessions = float(config.session_cap)
        self.gpu = GpuPressure()
        self.cycle_s = DecayedMean(half_life=100)
        """What sessions take from one turn to the next."""
        self.grown = DecayedMean(half_life=100)
        """Tokens by which a turn makes its session longer."""
        self.throughput = Throughput()
        self.update_due_s = -math.inf
        self.changed_s = -math.inf
        """When the window was last decreased: what was lost before says nothing about now."""
        self.part = 1.0
        """The share of the pool that is this gateway's (`partition.py`)."""
        self._up: tuple[ReplicaId, ...] = ()
        self.promises = Promises(config.fair_share.alpha)
        self.seen: WindowInputs | None = None

    # --- is there room? ------------------------------------------------------------------------------

    def why_not(self, member: Member, *, taking: int = 1) -> Bound | None:
        places, window = self._places, self.window
        if places.count == 0:
            return None
        count = places.count + taking
        pays = count <= self.beyond_kv()
        if count > window.limit() and not pays:
            return Bound(WaitReason.WINDOW_FULL, count, window.limit())
        tool_limit = window.tool_limit()
        if math.isfinite(tool_limit) and not self._cpu.is_light(member.agent):
            if (count := self._with_tools() + 1) > tool_limit:
                return Bound(WaitReason.TOOLS_FULL, count, tool_limit)
        if math.isinf(window.budget) or pays:
            return None
        places.count_anew()
        demand = places.demand_of(member)
        peak = places.residents.peak(also=demand, agent=member.agent)
        limit = self.kv_limit()
        if peak > limit:
            return Bound(WaitReason.KV_FULL, peak, limit)
        return None

    def kv_limit(self) -> float:
        """Tokens that those who are in may be expected to hold; infinite where that is not known."""
        return min(self.window.budget, self.throughput.enough_tokens)

    def beyond_kv(self) -> float:
        """Sessions that may be in whether they fit or not (`throughput.py`); 0 where a fixed limit is asked
        for."""
        return self.throughput.most if self._config.policy == "sessions" else 0.0

    def too_many(self, leaving: float) -> int:
        """So many sessions should give their places back, since those who are in will hold more than engines
        have with their next turns, and these have no time to compute what is lost then. `leaving`: tokens of
        those that are about to leave."""
        seen, places = self.seen, self._places
        if seen is None or seen.capacity is None or self._config.policy != "sessions":
            return 0
        if places.count <= max(1.0, self.beyond_kv()):
            return 0
        soon = places.residents.now() + _TURNS_AHEAD * places.live * self.grown.mean(0.0) - leaving
        return math.ceil(max(0.0, soon - seen.capacity) * places.count / max(soon, 1.0))

    def worth_s(self) -> float | None:
        """For how long a session's place is worth holding while it is silent; None if that is not known."""
        token_s, budget = self.throughput.token_s, self.window.budget
        if token_s is None or math.isinf(budget):
            return None
        return token_s * budget / self._replicas

    def _with_tools(self) -> int:
        places, is_light = self._places, self._cpu.is_light
        found = (places.residents.agents, places.with_tools)
        return max(sum(count for agent, count in each.items() if not is_light(agent)) for each in found)

    def is_over_full(self) -> bool:
        count = self._places.count
        if count <= self.beyond_kv():
            return False
        return count > self.window.limit() or self._places.residents.now() > self.window.budget

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

    def saw_turn(self, outcome: TurnOutcome, *, may_find_warm: bool) -> None:
        """`may_find_warm`: what its session left behind was still there when it began, for all we know."""
        usage, prompt, left, token_s = outcome.usage, outcome.usage.prompt_tokens, outcome.left, None
        if outcome.grown is not None:
            self.grown.add(outcome.grown)
        if left is None or prompt is None or not may_find_warm:
            self.gpu.saw_turn()
            return
        if outcome.prefill_s is not None:
            token_s = outcome.prefill_s / max(1, prompt - (usage.cached_tokens or 0))
        self.gpu.saw_turn(min(left, prompt), usage.cached_tokens, token_s=token_s)

    def update(
        self, waiting: int, peaks: float, *, blocked_by: WaitReason | None, now: float
    ) -> Excess | None:
        """Moves the window; to be asked from `update_due_s` on. `waiting`: sessions in the queue, which are
        expected to hold `peaks` tokens at most."""
        self.update_due_s = now + _UPDATE_S
        self._places.count_anew()
        self.window.set_feedback(self.cycle_s.mean(10.0))
        had = self.beyond_kv() > 0
        self._look_ahead(waiting, peaks)
        self.seen = seen = self._look(blocked_by, now=now)
        change = self.window.update(seen, now=now)
        if change is None:
            if (self.beyond_kv() > 0) is not had:
                self.say(HAVE_TIME if not had else HAVE_NO_TIME, waiting=waiting, now=now)
            return None
        excess = None
        if change.is_decrease:
            self.gpu.start_afresh()
            self.changed_s = now
            excess = self._excess(change.reason)
        self.say(change.reason, waiting=waiting, now=now)
        return excess

    def _look_ahead(self, waiting: int, peaks: float) -> None:
        residents = self._places.residents
        self.throughput.update(
            sessions=self._places.count,
            waiting=waiting,
            peaks=peaks,
            replicas=self.part * len(self._up),
            held=residents.now(),
            demand=residents.peak(),
            budget=self.window.reference,
        )

    def say(self, reason: str, *, waiting: int, now: float) -> None:
        if self.seen is not None:
            level = self.promises.level
            self._said.append(
                window_updated(
                    self._pool, self.window, self.seen, reason, level=level, waiting=waiting, now=now
                )
            )

    def _excess(self, why: str) -> Excess | None:
        if (count := _beyond(self._places.count, self.window.limit())) > 0:
            return Excess(count, why)
        if (count := _beyond(self._with_tools(), self.window.tool_limit())) > 0:
            return Excess(count, why, is_of_tools=True)
        return None

    def _look(self, blocked_by: WaitReason | None, *, now: float) -> WindowInputs:
        sessions = self._places.count / self._replicas
        gpu = self.gpu.read(
            sessions=sessions,
            replicas=self._replicas,
            reckoned_with=self.throughput.lost if self._config.policy == "sessions" else 0.0,
            feedback_s=self.window.feedback_s,
            now=now,
        )
        cpu = self._cpu.read(now=now)
        if self._config.policy != "sessions":  # fixed; only the capacity is followed
            gpu = msgspec.structs.replace(gpu, pressure=0.75)
            cpu = msgspec.structs.replace(cpu, pressure=0.75)
        elif not self._config.follows_tools:
            cpu = msgspec.structs.replace(cpu, pressure=0.0)
        residents, with_tools = self._places.residents, self._with_tools()
        return WindowInputs(
            gpu=gpu,
            cpu=cpu,
            cpu_limit=self._cpu.limit(with_tools, cpu, pool=self._pool),
            cpu_floor=self._cpu.floor(with_tools, cpu, pool=self._pool),
            admitted=self._places.count,
            beyond_kv=self.beyond_kv(),
            with_tools=with_tools,
            held=max(residents.now(), 0.0),
            demand=residents.peak(),
            capacity=self.capacity() if self._config.policy != "session-cap" else None,
            blocked_by=SCARCE.get(blocked_by) if blocked_by else None,
        )

    def capacity(self, *, is_whole: bool = False) -> float | None:
        """KV tokens that the engines state: this gateway's part, or the whole pool's."""
        stated = self.gpu.capacity(self._up, host_tokens=self._config.host_kv_tokens)
        if stated is None:
            return None
        device, beyond = stated
        rate = self._config.host_kv_tokens_per_s * max(1, len(self._up))
        whole = device + host_tier_tokens(beyond, tokens_per_s=rate, cycle_s=self.window.feedback_s)
        return whole if is_whole else self.part * whole


def _beyond(count: int, limit: float) -> int:
    return count - math.ceil(limit) if math.isfinite(limit) else 0
