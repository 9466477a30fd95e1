"""CPU pressure: do tools take longer than they used to, because so many run at once?

Source: MARS (§4.1): active tools and a moving average of tool durations, acting on persistent contention.

Symbols: *execution time*, EMA → `inflation`.

Deviations: durations differ by orders of magnitude between tools, so each counts as a ratio to the same
tool's usual duration, in logarithms. The pressure counts in standard deviations of that ratio, so no duration
has to be set. Usual durations, and the effect of load on an agent type's tools, are learned per tenant; the
present inflation is a measurement of the hosts, over all tenants. MARS derives no limit: under processor
sharing, tools that take k times as long are k times too many (`limits`). Hosts may report runnable processes
and cores: a probe beside the tools, as in MARS. Which tool runs on which host is unknown, so hosts count
together.

Invariants: tools that usually take no time are no load; fewer active tools than usual are no contention,
however long they take; durations alone never remove more than half of the sessions; sessions whose tools
find a core each are never too many, whatever else runs on a host; a silent host is forgotten; at most
`_MAX_TOOLS` names, as many agent types, and `_MAX_HOSTS` hosts are kept.
"""

import math
from collections import OrderedDict, deque
from typing import Final

import msgspec

from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decay import DecayedMean
from gateway.domain.engine import HostSignals
from gateway.domain.ids import PoolId, TenantId
from gateway.domain.tenant_lru import TenantLru

_MAX_TOOLS: Final = 512
_MAX_UNREAD: Final = 256
# Tool calls over which the present is averaged (half-life).
_LATELY: Final = 30.0
_USUALLY: Final = 1000.0
_STEPS: Final = 24
_ENOUGH: Final = 20
_ENOUGH_OF_TYPE: Final = 12.0
_LIGHT: Final = 1.4
_LEAST_INFLATION: Final = 2.0
# Shorter tools wait for the client or the gateway, not for a core.
_NO_LOAD_S: Final = 0.1
_DEVIATIONS: Final = 4.0
# Runnable processes per core.
_HOST_IS_OVERLOADED: Final = 1.5
# Sessions run tools for a part of the time. Too few starve the host; too many only share it.
_PER_CORE: Final = 8.0
_MAX_HOSTS: Final = 1024
_SILENT_S: Final = 30.0


class CpuReading(msgspec.Struct, frozen=True, kw_only=True):
    pressure: float
    """From 1 on overload; below 0.5 health."""
    reason: str
    active: int = 0
    inflation: float = 1.0
    host_load: float = 0.0
    """Runnable processes per core; 0 without reports."""
    cores: float = 0.0

    @property
    def slower(self) -> float:
        """Factor by which tools take longer than alone."""
        return max(self.inflation, self.host_load, 1.0)


class CpuPressure:
    def __init__(self) -> None:
        self._usual: TenantLru[TenantId, str, DecayedMean] = TenantLru(_MAX_TOOLS)
        self._lately = DecayedMean(half_life=_LATELY)
        self._ratio = DecayedMean(half_life=_USUALLY)
        self._ratio_squared = DecayedMean(half_life=_USUALLY)
        self._active_lately = DecayedMean(half_life=_LATELY)
        # The ratio by active tools: each step is 1.5 times the one before.
        self._by_active = [DecayedMean(half_life=_USUALLY / 5) for _ in range(_STEPS)]
        self._seen = 0
        # The ratio by agent type: without and with overload.
        self._types: TenantLru[TenantId, AgentKey, tuple[DecayedMean, DecayedMean]] = TenantLru(_MAX_TOOLS)
        self._is_overloaded = False
        # Learned at the next `read`; the newest if there are more.
        self._unread: deque[tuple[tuple[str, ...], float, int, AgentKey]] = deque(maxlen=_MAX_UNREAD)
        # Admitted sessions when tools became slow.
        self._began_with: dict[PoolId | None, int] = {}
        self.active = 0
        # At the last `read`.
        self.are_hosts_overloaded = False
        # With the time of the report; the newest is last.
        self._hosts: OrderedDict[str, tuple[float, HostSignals]] = OrderedDict()

    def host_reported(self, host: str, signals: HostSignals, *, now: float) -> None:
        self._hosts[host] = (now, signals)
        self._hosts.move_to_end(host)
        if len(self._hosts) > _MAX_HOSTS:
            self._hosts.popitem(last=False)

    def saw_tool(self, names: tuple[str, ...], duration_s: float, agent: AgentKey = UNKNOWN_AGENT) -> None:
        """The tools of one answer run in parallel and count as one."""
        self._unread.append((names, duration_s, self.active, agent))

    def is_light(self, agent: AgentKey) -> bool:
        """Overload does not slow this agent type's tools: they need no core."""
        calm, overloaded = self._types.get(agent.owner, agent) or (None, None)
        if calm is None or overloaded is None or min(calm.weight, overloaded.weight) < _ENOUGH_OF_TYPE:
            return False
        return overloaded.mean(0.0, 0.0) - calm.mean(0.0, 0.0) < math.log(_LIGHT)

    def _learn(self, names: tuple[str, ...], duration_s: float, active: int, agent: AgentKey) -> None:
        name = names[0][:256] if len(names) == 1 else "+".join(sorted(set(names)))[:256]
        value = math.log(max(duration_s, 1e-3))
        usual = self._usual.get(agent.owner, name)
        if usual is None:
            usual = DecayedMean(half_life=_USUALLY)
            self._usual.put(agent.owner, name, usual)
        elif usual.mean(0.0, 0.0) < math.log(_NO_LOAD_S):
            for of_type in self._of_type(agent):
                of_type.add(0.0)
        else:
            ratio = value - usual.mean(0.0, 0.0)
            self._lately.add(ratio)
            self._ratio.add(ratio)
            self._ratio_squared.add(ratio * ratio)
            self._by_active[_step(active)].add(ratio)
            self._of_type(agent)[self._is_overloaded].add(ratio)
            self._seen += 1
        usual.add(value)
        self._active_lately.add(float(active))

    def _of_type(self, agent: AgentKey) -> tuple[DecayedMean, DecayedMean]:
        found = self._types.get(agent.owner, agent)
        if found is None:
            found = (DecayedMean(half_life=100), DecayedMean(half_life=100))
            self._types.put(agent.owner, agent, found)
        return found

    def read(self, *, now: float) -> CpuReading:
        for unread in self._unread:
            self._learn(*unread)
        self._unread.clear()
        while self._hosts and next(iter(self._hosts.values()))[0] < now - _SILENT_S:
            self._hosts.popitem(last=False)
        cores = sum(signals.cores for _, signals in self._hosts.values())
        runnable = sum(signals.runnable for _, signals in self._hosts.values())
        host_load = runnable / cores if cores else 0.0
        self.are_hosts_overloaded = host_load >= _HOST_IS_OVERLOADED
        host = max(0.0, (host_load - 1.0) / (_HOST_IS_OVERLOADED - 1.0)) if self.active else 0.0
        ratio = self._lately.mean(0.0, 4.0) - self._with_fewer()
        inflation = math.exp(max(0.0, ratio))
        pressure = 0.0
        if self._seen >= _ENOUGH:
            spread = math.sqrt(max(0.0, self._ratio_squared.mean(0.0) - self._ratio.mean(0.0) ** 2))
            noise = spread * math.sqrt(math.log(2.0) / (2.0 * _LATELY))
            pressure = max(0.0, ratio) / max(math.log(_LEAST_INFLATION), _DEVIATIONS * noise)
        if cores and self.active <= cores:
            pressure, host = min(pressure, 0.75), min(host, 0.75)
        self._is_overloaded = max(pressure, host) >= 1.0
        reason = "host_load" if host > pressure else "tools_slow" if pressure > 0 else "none"
        return CpuReading(
            pressure=max(pressure, host),
            reason=reason,
            active=self.active,
            inflation=inflation,
            host_load=host_load,
            cores=cores,
        )

    def _with_fewer(self) -> float:
        lately = _step(self._active_lately.mean(0.0, 0.0) if self._active_lately.weight else 0.0)
        weight = total = 0.0
        for seen in self._by_active[: max(0, lately - 1)]:
            if seen.weight:
                weight += seen.weight
                total += seen.weight * seen.mean(0.0, 0.0)
            if weight >= _ENOUGH:
                return total / weight
        below = sum(seen.weight for seen in self._by_active[:lately])
        is_crowded = below >= 0.5 * sum(seen.weight for seen in self._by_active)
        return 0.0 if is_crowded else math.inf

    def limits(
        self, admitted: int, reading: CpuReading, *, pool: PoolId | None = None
    ) -> tuple[float, float]:
        """The floor and the limit of a pool's sessions with tools, infinite without contention. Durations
        have many causes, so alone they halve a window at most; where hosts report overload, cores count."""
        if reading.pressure < 1.0:
            self._began_with.pop(pool, None)
            return 0.0, math.inf
        began_with = self._began_with.setdefault(pool, admitted)
        if reading.host_load < _HOST_IS_OVERLOADED:
            floor = 0.5 * began_with
        else:
            finds_a_core = reading.cores * admitted / reading.active if reading.active else 0.0
            floor = max(finds_a_core, _PER_CORE * reading.cores)
        floor = min(float(admitted), floor)
        return floor, max(1.0, floor, 1.25 * admitted / reading.slower)


def _step(active: float) -> int:
    return min(_STEPS - 1, int(math.log(max(active, 1.0)) / math.log(1.5)))
