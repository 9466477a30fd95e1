"""A bounded memory that keeps what is used."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Memory(Generic[T]):
    """Remembers what was used lately: at least the newer half of `size`, which is a sum of weights."""

    def __init__(self, size: int) -> None:
        self._half = size // 2
        # To look into at once, where a call counts; what is not there may be among the older.
        self.newer: dict[int, T] = {}
        self.older: dict[int, T] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def get(self, key: int) -> T | None:
        known = self.newer.get(key)
        if known is None:
            known = self.older.get(key)
            if known is not None:
                self.put(key, known)
        return known

    def put(self, key: int, value: T, *, weight: int = 1) -> None:
        if self._weight >= self._half:
            self._turn_over()
        self.newer[key] = value
        self._weight += weight

    def put_all(self, values: dict[int, T], *, weight: int) -> None:
        """One batch; `weight` is the sum of theirs. A large one may displace part of the newer half."""
        if self._weight + weight > self._half:
            self._turn_over()
        self.newer |= values
        self._weight += weight

    def _turn_over(self) -> None:
        self.older, self.newer, self._weight = self.newer, {}, 0
