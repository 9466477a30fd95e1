"""What of vLLM's objects is replaced, and how it is put back."""

from typing import Any

# A plugin that failed begins anew after so long; twice as long after each failure.
RETRY_AFTER_S = 60.0
MAX_RETRIES = 3
_ABSENT = object()


class MethodPatches:
    """Attributes of single objects. What was there before is there again after `restore`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        # To look into its ``__dict__`` would make every attribute of the object slower from then on.
        is_of_class = getattr(before, "__func__", _ABSENT) is getattr(type(owner), name, None)
        self._replaced.append((owner, name, _ABSENT if is_of_class else before))
        setattr(owner, name, value)

    def restore(self) -> None:
        """The last that was replaced comes first."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
