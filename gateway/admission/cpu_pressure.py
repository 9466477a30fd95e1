"""CPU pressure: do tools take longer than they used to, because so many run at once?

Source: MARS (§4.1): active tools and a moving average of tool durations, acting on persistent contention.

Symbols: *active tools* → `active`; *execution time*, EMA → `inflation`.

Deviations: durations differ by orders of magnitude between tools, so each is compared with what the same
tool usually takes, as a ratio, in logarithms; the pressure counts in standard deviations of that ratio, so
no duration has to be set. MARS derives no limit: under processor sharing tools that take k times as long
are k times too many, which gives one (`limit`). A host that reports its load (`host_load`, 1 = all cores
busy) is believed.

Invariants: fewer active tools than usual are no contention, however long they take; at most `_MAX_TOOLS`
names are remembered.
"""

import math
from collections import OrderedDict, deque
from typing import Final

import msgspec

from gateway.admission.decay import DecayedMean

_MAX_TOOLS: Final = 512
_MAX_UNREAD: Final = 256
_LATELY: Final = 12.0
"""Tool calls over which the present is averaged (half-life)."""
_USUALLY: Final = 1000.0
_ENOUGH: Final = 20
_LEAST_INFLATION: Final = 1.5
_DEVIATIONS: Final = 2.5
_HOST_IS_OVERLOADED: Final = 1.5


class CpuReading(msgspec.Struct, frozen=True, kw_only=True):
    pressure: float
    """1 and more is overload; below a half all is well."""
    reason: str
    active: int = 0
    inflation: float = 1.0


class CpuPressure:
    def __init__(self) -> None:
        self._usual: OrderedDict[str, DecayedMean] = OrderedDict()
        self._lately = DecayedMean(half_life=_LATELY)
        self._ratio = DecayedMean(half_life=_USUALLY)
        self._ratio_squared = DecayedMean(half_life=_USUALLY)
        self._active_usual = DecayedMean(half_life=_USUALLY)
        self._seen = 0
        self._unread: deque[tuple[tuple[str, ...], float, int]] = deque(maxlen=_MAX_UNREAD)
        """Learned from when somebody asks; of more than so many in between, the newest teach."""
        self.active = 0
        self.host_load: float | None = None

    def saw_tool(self, names: tuple[str, ...], duration_s: float) -> None:
        """A session's tools came back; those of one answer run in parallel and count as one."""
        self._unread.append((names, duration_s, self.active))

    def _learn(self) -> None:
        for names, duration_s, active in self._unread:
            self._learn_from(names, duration_s, active)
        self._unread.clear()

    def _learn_from(self, names: tuple[str, ...], duration_s: float, active: int) -> None:
        name = "+".join(sorted(set(names)))[:256]
        value = math.log(max(duration_s, 1e-3))
        usual = self._usual.get(name)
        if usual is None:
            usual = self._usual[name] = DecayedMean(half_life=_USUALLY)
            if len(self._usual) > _MAX_TOOLS:
                self._usual.popitem(last=False)
        else:
            self._usual.move_to_end(name)
            ratio = value - usual.mean(0.0, 0.0)
            self._lately.add(ratio)
            self._ratio.add(ratio)
            self._ratio_squared.add(ratio * ratio)
            self._seen += 1
        usual.add(value)
        self._active_usual.add(float(active))

    def read(self) -> CpuReading:
        self._learn()
        host = (self.host_load or 0.0) / _HOST_IS_OVERLOADED
        ratio = self._lately.mean(0.0, 4.0)
        inflation = math.exp(max(0.0, ratio))
        pressure = 0.0
        if self._seen >= _ENOUGH and self.active >= self._active_usual.mean(0.0):
            spread = math.sqrt(max(0.0, self._ratio_squared.mean(0.0) - self._ratio.mean(0.0) ** 2))
            noise = spread * math.sqrt(math.log(2.0) / (2.0 * _LATELY))
            pressure = max(0.0, ratio) / max(math.log(_LEAST_INFLATION), _DEVIATIONS * noise)
        reason = "host_load" if host > pressure else "tools_slow" if pressure > 0 else "none"
        return CpuReading(
            pressure=max(pressure, host), reason=reason, active=self.active, inflation=inflation
        )

    def limit(self, admitted: int, reading: CpuReading) -> float:
        """Sessions whose tools the host can bear; infinite while there is no contention."""
        if reading.pressure < 1.0:
            return math.inf
        slower = max(reading.inflation, (self.host_load or 0.0))
        return max(1.0, 1.25 * admitted / max(slower, 1.0))
