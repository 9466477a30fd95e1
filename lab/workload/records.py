"""What importers read from: the members of a source, and the JSON records in their lines."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from lab.workload.problems import Problems

Record = TypeVar("Record")


class Member(msgspec.Struct, frozen=True):
    """One file of a source: the source itself, or a file of an archive or folder.

    `lines` can be read once, and only before the next member is asked for.
    """

    name: str
    """As it stands in the archive or folder, without the endings of its format."""
    lines: Iterable[bytes]


def lines_as(kind: type[Record], member: Member, problems: Problems) -> Iterator[tuple[int, Record]]:
    """Each line's number and record; those that do not fit `kind` go to `problems`."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(member.lines, start=1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problems.add(f"{member.name}, line {number}", error)
            continue
        yield number, record


def whole_as(kind: type[Record], member: Member, problems: Problems) -> Record | None:
    """The member as one record, or None (and a problem) where it does not fit `kind`."""
    try:
        return msgspec.json.decode(b"".join(member.lines), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problems.add(member.name, error)
        return None
