"""What this machine lacks to reach replicas: descriptors, ports, memory, DNS; or time, while its event loop
stands still. Counted; reported if it lasts. None of it is a replica's fault."""

from collections import Counter, deque
from typing import Final

from gateway.upstream.errors import LOCAL_KINDS

# An event loop that is later than this stood still.
STALL_S: Final = 0.1
# Faults over this long, without a connection between them, appear in `GET /turnpike/readyz`.
LASTING_S: Final = 10.0


class LocalFaults:
    """One for the process."""

    def __init__(self) -> None:
        # By kind; those that never happened are there with 0.
        self.counts: Counter[str] = Counter(dict.fromkeys(LOCAL_KINDS, 0))
        # By kind: the first and the last fault since a connection could be made.
        self._spells: dict[str, tuple[float, float]] = {}
        self._tick_s = float("inf")
        self._stalls: deque[tuple[float, float]] = deque(maxlen=256)

    def ticked(self, *, period_s: float, now: float) -> None:
        """To be called every so many seconds, as far as the event loop gets to it."""
        if now - self._tick_s > STALL_S:
            self._stalls.append((now, now - self._tick_s))
        self._tick_s = now + period_s

    def lost_s(self, since_s: float, *, now: float) -> float:
        """How long the event loop stood still since then: what came meanwhile may not have been read."""
        lost_s = sum(late_s for ended_s, late_s in self._stalls if ended_s > since_s)
        late_s = now - self._tick_s
        return min(now - since_s, lost_s + late_s if late_s > STALL_S else lost_s)

    def saw(self, kind: str, *, now: float) -> None:
        self.counts[kind] += 1
        first, last = self._spells.get(kind, (now, now))
        if now - last > LASTING_S:  # nobody tried in between: it may have been well again
            first = now
        self._spells[kind] = (first, now)

    def connected(self) -> None:
        """A connection could be made: nothing lacks."""
        self._spells.clear()

    def lasting(self, *, now: float) -> list[str]:
        return sorted(
            kind
            for kind, (first, last) in self._spells.items()
            if last - first >= LASTING_S and now - last <= LASTING_S
        )
