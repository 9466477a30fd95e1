"""What of vLLM's objects is replaced, and how it is put back."""

from typing import Any

_ABSENT = object()


class Seams:
    """Attributes of single objects. What was there before is there again after `restore`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """The last that was replaced comes first."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
