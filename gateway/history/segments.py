"""The directory of a store: its segments, oldest first, each a SQLite file of its own.

What is old goes with its file, at once: rows that are deleted one by one would cost as much as they did when
they were written, and leave holes. One process at a time has the directory.
"""

import contextlib
import fcntl
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

SEGMENTS: Final = 8
"""Into so many parts size and age are divided: so much of either goes at a time."""
_NAME: Final = re.compile(r"segment-(\d{6,18})-(\d{1,18})\.sqlite")
"""Its number, and when it was begun, in Unix seconds."""
_BESIDE: Final = ("", "-wal", "-shm")
_DAMAGED: Final = "damaged.sqlite"


_SLACK_BYTES: Final = 4 << 20
"""By so much a segment may exceed its part: a transaction, and what SQLite has beside the file."""


class Segment(NamedTuple):
    number: int
    born_s: int
    path: Path

    @property
    def size(self) -> int:
        """In bytes, with what SQLite has beside it; 0 if it is gone."""
        return sum(_size(Path(f"{self.path}{beside}")) for beside in _BESIDE)


class InUseError(OSError):
    """Another process has the directory."""


class Segments:
    """Raises OSError wherever the directory cannot be read or changed."""

    def __init__(self, path: Path, *, max_bytes: int, max_age_s: float) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._part = max_bytes // (SEGMENTS + 1)
        """That a segment may grow to."""
        self._max_age_s = max_age_s
        self._lock: int | None = None

    def open(self) -> None:
        """Makes the directory if it is not there, and takes it."""
        if self._lock is not None:
            return
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise InUseError(error.errno, "another process writes there") from error
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def current(self, *, now: float) -> Segment:
        """Where to write: the newest segment, or a new one if that is large or old enough."""
        segments = self.all()
        if segments and not self.is_full(segments[-1], now=now):
            return segments[-1]
        return self.begin(now=now)

    def begin(self, *, now: float) -> Segment:
        """A new one, whatever the newest is like."""
        number = max((each.number for each in self.all()), default=0) + 1
        path = self.path / f"segment-{number:06d}-{max(0, int(now))}.sqlite"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        return Segment(number, int(now), path)

    def is_full(self, segment: Segment, *, now: float) -> bool:
        return segment.size >= self._part or now - segment.born_s >= self._max_age_s / SEGMENTS

    def set_aside(self, segment: Segment) -> None:
        """One that cannot be read: it is kept for whoever wants to look, in place of an earlier one."""
        for beside in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{segment.path}{beside}", f"{self.path / _DAMAGED}{beside}")

    def prune(self, *, now: float) -> int:
        """Removes what is too old or too much, but never the newest; the bytes that are left."""
        segments = self.all()
        total = sum(each.size for each in segments) + _size(self.path / _DAMAGED)
        for segment, newer in pairwise(segments):
            # Nothing is in there from after the next one was begun.
            is_old = now - newer.born_s > self._max_age_s
            if is_old or total > self._max_bytes - self._part - _SLACK_BYTES:  # the newest still grows
                total -= segment.size
                for beside in _BESIDE:
                    Path(f"{segment.path}{beside}").unlink(missing_ok=True)
        return total

    def all(self) -> list[Segment]:
        """Oldest first. For one who only reads, any of them may be gone a moment later."""
        names = [told for name in os.listdir(self.path) if (told := _NAME.fullmatch(name)) is not None]
        return sorted(Segment(int(told[1]), int(told[2]), self.path / told[0]) for told in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
