"""How long tools take and how much they say: by agent type and tool, learned from what was seen.

Source: MARS (§4.1), moving averages of tool durations; SAGA (§4.2, Alg. 1), latency histories by tool type,
and (§4.1) observation lengths by moving average.

Symbols: H_t → `Tool.durations`; n̂_obs → `Tool.observation_bytes`.

Deviations: calls of one batch end together, as far as anybody outside can tell, so the batch's duration is
that of the call that was expected to take longest, and is learned for that tool alone. A tool that an agent
type has hardly used is what it is for all agents, and a tool that nobody has used is what tools are. A
result that came after longer than `max_s` teaches no more than that: a person was in between.

Invariants: what one tenant's calls taught is read for that tenant alone; at most `max_tools` pairs of agent
type and tool are remembered, of the tenant that has most the longest unused is forgotten; names are told
apart by their first `_NAME` characters.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.tool_probe.quantiles import LogQuantiles

_NAME: Final = 64
_LOW_S: Final = 0.001
_LOW_BYTES: Final = 8.0
_EMA: Final = 0.1
_ENOUGH: Final = 4.0
"""Observations after which an agent type's own are used."""
ANY_AGENT: Final = 0
_ALONE: Final = TenantId("")


class DurationsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_tools: Annotated[int, Meta(ge=2)] = 4096
    """Pairs of agent type and tool remembered."""
    max_s: Annotated[float, Meta(gt=0)] = 3600.0
    """Durations are cut to this."""
    half_life_calls: Annotated[float, Meta(gt=0)] = 300.0
    """What a call taught weighs half as much after so many later ones."""


class Tool:
    """What is known of one tool of one agent type."""

    __slots__ = ("calls", "durations", "failed", "lately_s", "observation_bytes")

    def __init__(self, half_life: float) -> None:
        self.durations = LogQuantiles(low=_LOW_S, half_life=half_life)
        self.observation_bytes = LogQuantiles(low=_LOW_BYTES, half_life=half_life)
        self.lately_s = 0.0
        """Moving average of its durations."""
        self.failed = 0.0
        """Moving average of how often it says that it failed."""
        self.calls = 0

    def add(self, duration_s: float, observation_bytes: float, *, has_failed: bool) -> None:
        self.durations.add(duration_s)
        if observation_bytes > 0:
            self.observation_bytes.add(observation_bytes)
        self.calls += 1
        step = max(_EMA, 1.0 / self.calls)
        self.lately_s += step * (duration_s - self.lately_s)
        self.failed += step * (has_failed - self.failed)


Tools = TenantLru[TenantId, tuple[int, str], Tool]
"""By tenant, and by agent type and name."""


class Durations:
    """Of the tools of one tenant."""

    def __init__(
        self,
        config: DurationsConfig,
        tools: Tools | None = None,
        owner: TenantId = _ALONE,
    ) -> None:
        """`tools`: kept together with those of other tenants, so that one bound holds for all."""
        self._config = config
        self._tools: Tools = tools if tools is not None else TenantLru(config.max_tools)
        self._owner = owner
        self._all = Tool(config.half_life_calls)

    def __len__(self) -> int:
        return len(self._tools)

    def add(
        self,
        agent: int,
        names: Sequence[str],
        duration_s: float,
        *,
        observation_bytes: int = 0,
        has_failed: bool = False,
    ) -> None:
        if not names:
            return
        name = self.slowest(agent, names)
        size = observation_bytes / len(names)
        duration_s = min(duration_s, self._config.max_s)
        for known in (self._keep(agent, name), self._keep(ANY_AGENT, name), self._all):
            known.add(duration_s, size, has_failed=has_failed)

    def of(self, agent: int, name: str) -> Tool:
        for key in ((agent, name[:_NAME]), (ANY_AGENT, name[:_NAME])):
            known = self._tools.get(self._owner, key)
            if known is not None and known.durations.weight >= _ENOUGH:
                return known
        return self._all

    def slowest(self, agent: int, names: Sequence[str]) -> str:
        if len(names) == 1 or len(set(names)) == 1:
            return names[0]
        return max(names, key=lambda name: self.of(agent, name).lately_s)

    def quantile_s(self, agent: int, names: Sequence[str], share: float) -> float | None:
        """Of a batch of these calls; None while nothing was ever seen."""
        if not names:
            return None
        return self.of(agent, self.slowest(agent, names)).durations.quantile(share)

    def observation_bytes(self, agent: int, names: Sequence[str]) -> float:
        """How much their results are expected to be; 0 while nothing was ever seen."""
        return sum(self.of(agent, name).observation_bytes.quantile(0.5) or 0.0 for name in names[:64])

    def _keep(self, agent: int, name: str) -> Tool:
        key = (agent, name[:_NAME])
        known = self._tools.get(self._owner, key)
        if known is None:
            known = Tool(self._config.half_life_calls)
            self._tools.put(self._owner, key, known)
        return known
