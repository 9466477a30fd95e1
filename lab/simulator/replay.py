"""`turnpike replay LOG`: the brain is told again what it was told, and must answer what it answered.

That is how one brain in two drivers is checked: a log that the live gateway recorded is driven here.
"""

import argparse
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.assembly import assemble
from gateway.core.events import Event
from gateway.domain.ids import SessionId
from gateway.domain.printable import printable
from gateway.identity.hashed_words import words_of_hashes
from gateway.telemetry.event_log import VERSION, Beginning, encode_answer
from gateway.telemetry.recorder import KEY_SUFFIX
from gateway.wire.hashing import hash_secret, hash_seed, key_hashes, seed_hashes

_SHOWN: Final = 4000


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    event: Event
    commands: msgspec.Raw
    records: msgspec.Raw


class RecordedIds(Iterator[SessionId]):
    """The names that sessions got, for a brain that is told a log again."""

    def __init__(self) -> None:
        self._next: deque[SessionId] = deque()

    def read(self, entry: Entry) -> None:
        """Before the brain is told this entry's event."""
        self._next.clear()
        if _STARTED in bytes(entry.records):
            records = _told.decode(entry.records)
            self._next += [told.session for told in records if told.type == "session_start" and told.session]

    def __next__(self) -> SessionId:
        """A session that nobody started then is a difference, and is shown under this name."""
        return self._next.popleft() if self._next else SessionId("s-not-recorded")


class _Told(msgspec.Struct):
    type: str
    session: SessionId | None = None


_STARTED: Final = b'"session_start"'
_told: Final = msgspec.json.Decoder(list[_Told])
_entry: Final = msgspec.json.Decoder(Entry, dec_hook=words_of_hashes)
_beginning: Final = msgspec.json.Decoder(Beginning)


class _Version(msgspec.Struct):
    turnpike_events: int


def decode_beginning(line: bytes) -> Beginning:
    """Raises ValueError."""
    stated = msgspec.json.decode(line, type=_Version).turnpike_events  # first: settings change, too
    if stated != VERSION:
        raise ValueError(f"an event log of version {stated}, not {VERSION}")
    return _beginning.decode(line)


def decode_entry(line: bytes) -> Entry:
    """Raises ValueError."""
    return _entry.decode(line)


class Replayed(msgspec.Struct, kw_only=True):
    events: int = 0
    commands: int = 0
    """Records included."""


class Difference(Exception):  # noqa: N818 - what is wrong is the brain, not the caller
    """A brain that answers otherwise: the line of the log, and both answers."""


def replay(log: Path) -> Replayed:
    """Raises Difference at the first answer that is another, and ValueError for what is no event log, or
    misses its key."""
    seed, secret = hash_seed(), hash_secret()
    try:
        with log.open("rb") as lines:
            beginning = decode_beginning(next(lines, b""))
            if beginning.needs_key:
                key_hashes(_key_of(log))
            return _compare(beginning, lines)
    finally:
        if secret is not None:
            key_hashes(secret)
        else:
            seed_hashes(seed)


def _key_of(log: Path) -> bytes:
    key = log.with_name(log.name + KEY_SUFFIX)
    try:
        return bytes.fromhex(key.read_text(encoding="ascii"))
    except OSError as error:
        raise ValueError(f"its hashes need their key, {key}: {error.strerror}") from None


def _compare(beginning: Beginning, lines: Iterator[bytes]) -> Replayed:
    ids = RecordedIds()
    brain = assemble(beginning.settings, session_ids=ids)
    done = Replayed()
    for number, line in enumerate(lines, start=2):
        try:
            entry = decode_entry(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: {error}") from None
        ids.read(entry)
        commands = brain.handle(entry.event, now=entry.at_s)
        for then, now in zip(
            map(bytes, (entry.commands, entry.records)), encode_answer(commands), strict=True
        ):
            if then != now:
                raise Difference(
                    f"line {number}, {type(entry.event).__name__}:\n"
                    f"  recorded {then[:_SHOWN].decode()}\n  replayed {now[:_SHOWN].decode()}"
                )
        done.events += 1
        done.commands += len(commands)
    return done


def add_replay(commands: Any) -> None:
    """The `replay` command, below the `turnpike` command's."""
    parser = commands.add_parser("replay", help="replay a recording (serve --record) and compare decisions")
    parser.add_argument("log", metavar="FILE", help="a recording")
    parser.set_defaults(command=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    try:
        done = replay(Path(arguments.log))
    except Difference as difference:
        print(printable(f"{arguments.log}: the brain answers otherwise in {difference}"))
        return 1
    except ValueError as error:
        raise ValueError(f"{arguments.log}: {error}") from None
    print(f"{arguments.log}: {done.events} events, {done.commands} commands, all identical")
    return 0
