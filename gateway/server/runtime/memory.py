"""How this process keeps memory: what it may use for bodies, what the garbage collector looks at, when large
buffers are given back."""

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Final

from gateway.config.http_limits import HttpLimits

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Buffers from here on are mapped one by one. That is a system call each: most prompts are smaller.
_LARGE_BYTES: Final = 1 << 20
# Free memory at the end of the heap that is kept, so that usual prompts do not fetch it again each time.
_SPARE_BYTES: Final = 4 << 20
_BODIES_BYTES: Final = 2 << 30
# Of cgroups v2, and of v1, as a container sees them.
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# Of the memory there is, one part in so many: a body that is read and sent on takes more than its bytes.
_BODIES_SHARE: Final = 4


def memory_limit() -> int | None:
    """Bytes that the container may use; None if it has no limit."""
    for place in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            return int(place.read_text(encoding="ascii"))
    return None


def max_buffered_bytes(limits: HttpLimits, *, processes: int = 1) -> int:
    if limits.max_buffered_bytes is not None:
        return limits.max_buffered_bytes
    limit = memory_limit()
    return _BODIES_BYTES if limit is None else min(_BODIES_BYTES, max(1, limit // _BODIES_SHARE // processes))


def set_up_memory() -> None:
    """To be called once, when everything is imported."""
    _calm_the_garbage_collector()
    _give_large_buffers_back()


def _give_large_buffers_back() -> None:
    """glibc maps large buffers, but only those larger than any that was freed before: the others lie in the
    heap, where a small object behind one keeps it from the system (mallopt(3), `M_MMAP_THRESHOLD`)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return  # another C library, with ways of its own
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)


def _calm_the_garbage_collector() -> None:
    """What requests, connections and sessions leave behind dies by reference count; collections are for
    what does not, by a mistake of ours. No request moves during one, so none may walk over every session:
    what survives all but the youngest is not looked at again, and each looks only at what was made since
    the last: a full one over a large body's objects took 100 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 1)
    gc.callbacks.append(_set_survivors_aside)


def _set_survivors_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] >= 1:
        gc.freeze()
