"""How clients wait when they are turned away: as long as they are told, else longer each time, as SDKs do."""

from typing import Final

_LONGEST_TOLD_S: Final = 60.0
_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 8.0


def retry_after_s(refusals: int, told_s: float | None) -> float:
    """After so many refusals of one request, the last of which said `told_s`."""
    if told_s is not None and 0 < told_s <= _LONGEST_TOLD_S:
        return told_s
    backoff_s: float = min(_BACKOFF_S * 2 ** (refusals - 1), _LONGEST_BACKOFF_S)
    return backoff_s
