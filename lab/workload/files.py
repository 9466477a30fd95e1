"""The only module here that touches files: members and lines of a source, and an output written whole.

A source is a file (plain, `.gz`, `.xz`), a tar archive (compressed or not) or a folder. Everything is read
once, from front to back, a line at a time.
"""

import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

from lab.workload.records import Member

_ENDINGS: Final = frozenset({".jsonl", ".json", ".traj", ".csv", ".gz", ".xz", ".tar", ".tgz"})
_ARCHIVES: Final = (".tar", ".tar.gz", ".tar.xz", ".tgz")


def members(source: str) -> Iterator[Member]:
    """The source's files that hold records, archives and folders in their own order and by name.

    Raises ValueError that names the file where its compression or archive is damaged.
    """
    path = Path(source)
    if not path.is_dir():
        yield from _members_of_file(path, path.name)
        return
    for file in sorted(child for child in path.rglob("*") if child.is_file()):
        if _holds_records(file.name):
            yield from _members_of_file(file, file.relative_to(path).as_posix())


def _holds_records(name: str) -> bool:
    return not _ENDINGS.isdisjoint(PurePosixPath(name).suffixes)


def _members_of_file(path: Path, name: str) -> Iterator[Member]:
    if path.name.endswith(_ARCHIVES):
        with _damage_named(path), tarfile.open(path, "r|*") as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isfile() else None
                if content is not None and _holds_records(entry.name):
                    yield Member(_stem(entry.name), _lines(path, content))
    else:
        with _opened(path) as file:
            yield Member(_stem(name), _lines(path, file))


def _lines(path: Path, content: IO[bytes]) -> Iterator[bytes]:
    with _damage_named(path):
        yield from content


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise ValueError(f"{path}: {str(error) or type(error).__name__}") from error


def _stem(name: str) -> str:
    """The name without the endings that say how it is stored."""
    while PurePosixPath(name).suffix in _ENDINGS:
        name = name.removesuffix(PurePosixPath(name).suffix)
    return name.removeprefix("./")


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.open(path))
    if path.suffix == ".xz":
        return io.BufferedReader(lzma.open(path))
    return path.open("rb")


def write_whole(target: str, lines: Iterable[bytes]) -> int:
    """Writes the lines, compressed as the target's ending says; how many they were.

    The target appears when all is written. Where it fails, or there is no line, it is left as it was.
    """
    path = Path(target)
    part = path.with_name(f".{path.name}.part")
    count = 0
    try:
        with _created(part, path.suffix) as file:
            for line in lines:
                file.write(line)
                count += 1
        if count:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


@contextmanager
def _created(path: Path, ending: str) -> Iterator[io.BufferedIOBase]:
    """The file, whose bytes depend on what is written alone: gzip's time stamp and name stay empty."""
    with path.open("wb") as raw:
        if ending == ".gz":
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                yield packed
        elif ending == ".xz":
            with lzma.open(raw, "wb", preset=1) as squeezed:
                yield squeezed
        else:
            yield raw
        raw.flush()
        os.fsync(raw.fileno())
