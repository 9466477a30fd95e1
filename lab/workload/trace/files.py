"""Reads and writes workload files, a session at a time.

Invariants: what is read and what is written has a header in its first line, sessions that pass `check`, in
order of arrival, with ids of their own. Memory holds one session, and a number for each id.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

import msgspec

from lab.workload.files import members, write_whole
from lab.workload.records import Member
from lab.workload.trace.format import READ, Header, Session, check

_HEADER: Final = msgspec.json.Decoder(Header)
_SESSION: Final = msgspec.json.Decoder(Session)


class _Version(msgspec.Struct):
    turnpike_workload: int


_VERSION: Final = msgspec.json.Decoder(_Version)


def read_workload(source: str) -> tuple[Header, Iterator[Session]]:
    """The header, and the sessions as they are read. Raises ValueError with file and line, then or later."""
    found = members(source)
    member = next(found, None)
    if member is None:
        raise ValueError(f"{source}: holds no workload")
    lines = _numbered(source, member)
    number, line = next(lines, (1, b""))
    try:
        version = _VERSION.decode(line).turnpike_workload
        if version not in READ:
            raise ValueError(f"a workload of version {version}; this program reads {READ[0]} to {READ[-1]}")
        header = _HEADER.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{source}, line {number}: not the header of a workload: {error}") from error
    except ValueError as error:
        raise ValueError(f"{source}, line {number}: {error}") from error
    return header, _sessions(source, lines, found)


def _numbered(source: str, member: Member) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(member.lines, start=1) if line.strip())


def _sessions(
    source: str, lines: Iterator[tuple[int, bytes]], further: Iterator[Member]
) -> Iterator[Session]:
    order = _Order()
    for number, line in lines:
        try:
            session = _SESSION.decode(line)
            order.check(session)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"{source}, line {number}: {error}") from error
        yield session
    if next(further, None) is not None:
        raise ValueError(f"{source}: holds more than one file")


def write_workload(target: str, header: Header, sessions: Iterable[Session]) -> int:
    """Writes the file, whole or not at all; how many sessions. Raises ValueError for an invalid one."""
    if not target.endswith((".jsonl", ".jsonl.gz", ".jsonl.xz")):
        raise ValueError(f"{target}: a workload's name ends in .jsonl, .jsonl.gz or .jsonl.xz")
    encoder = msgspec.json.Encoder()
    order = _Order()
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        for session in sessions:
            order.check(session)
            if not count:
                yield encoder.encode(header) + b"\n"
            yield encoder.encode(session) + b"\n"
            count += 1

    write_whole(target, lines())
    return count


class _Order:
    """What holds between the sessions of a file."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()
        self._latest_s = 0.0

    def check(self, session: Session) -> None:
        check(session)
        if session.arrival_s < self._latest_s:
            what = f"arrives at {session.arrival_s}, before the one above ({self._latest_s})"
            raise ValueError(f"session {session.id!r}: {what}")
        self._latest_s = session.arrival_s
        digest = blake2b(session.id.encode(), digest_size=8).digest()
        if digest in self._ids:
            raise ValueError(f"session {session.id!r}: its id has been used above")
        self._ids.add(digest)
