"""What this machine lacks to reach replicas: descriptors, ports, memory, DNS. Counted; told if it lasts."""

from collections import Counter
from typing import Final

from gateway.upstream.errors import LOCAL_KINDS

LASTING_S: Final = 10.0
"""Faults over this long, without a connection between them, are told to whoever asks whether we are ready."""


class LocalFaults:
    """One for the process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(LOCAL_KINDS, 0))
        """By kind; those that never happened are there with 0."""
        self._spells: dict[str, tuple[float, float]] = {}
        """By kind: the first and the last fault since a connection could be made."""

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
        """The kinds that last."""
        return sorted(
            kind
            for kind, (first, last) in self._spells.items()
            if last - first >= LASTING_S and now - last <= LASTING_S
        )
