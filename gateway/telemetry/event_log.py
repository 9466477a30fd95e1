"""The event log: everything that a brain was told and everything it answered, one event a line (pure).

First a line with what the brain was made from; then each event with its time and the commands that followed.
Feeding the events to a brain made from the first line must give the very same commands: that is how one
brain in two drivers is checked, and how a decision of yesterday is looked into today. Of what was said there
are hashes alone; of settings, nothing that is secret or an address. The names of sessions are in the records,
but not the key that makes them: a reader of the log cannot foretell a name.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import msgspec

from gateway.config import Config
from gateway.config.jwt import JwtConfig
from gateway.config.kubernetes import KubernetesConfig
from gateway.config.privacy import fields_of, holds_private_text
from gateway.config.tenants import TenantConfig
from gateway.config.upstream import KvEventsConfig, ReplicaConfig
from gateway.core.commands import Command, Dispatch, Publish, Refuse, Spend
from gateway.core.events import Event
from gateway.domain.ids import SessionId
from gateway.wire.hashed_words import hash_words, words_of_hashes
from gateway.wire.hashing import hash_seed

VERSION: Final = 1


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    turnpike_events: int = VERSION
    version: str
    """Of the gateway that recorded."""
    settings: Config
    hash_seed: int = 0
    """With which texts were hashed: a replay compares hashes that it makes with those in the log."""


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
_encoder: Final = msgspec.json.Encoder(enc_hook=hash_words)
_event: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event, dec_hook=words_of_hashes)
_entry: Final = msgspec.json.Decoder(Entry, dec_hook=words_of_hashes)
_beginning: Final = msgspec.json.Decoder(Beginning)


def encode_event(event: Event) -> bytes:
    return _encoder.encode(event)


def decode_event(line: bytes) -> Event:
    return _event.decode(line)


def encode_answer(commands: list[Command]) -> tuple[bytes, bytes]:
    """What is to be done, and the records: two lists. What other gateways are told decides nothing."""
    done = [command for command in commands if isinstance(command, Dispatch | Refuse)]
    told = [command for command in commands if not isinstance(command, Dispatch | Refuse | Publish | Spend)]
    return _encoder.encode(done), _encoder.encode(told)


def encode_entry(at_s: float, event: bytes, commands: list[Command]) -> bytes:
    done, told = map(msgspec.Raw, encode_answer(commands))
    return _encoder.encode({"at_s": at_s, "event": msgspec.Raw(event), "commands": done, "records": told})


def encode_beginning(config: Config, *, version: str) -> bytes:
    settings = without_secrets(config)
    return _encoder.encode(Beginning(version=version, settings=settings, hash_seed=hash_seed()))


def decode_beginning(line: bytes) -> Beginning:
    """Raises ValueError."""
    beginning = _beginning.decode(line)
    if beginning.turnpike_events != VERSION:
        raise ValueError(f"an event log of version {beginning.turnpike_events}, not {VERSION}")
    return beginning


def decode_entry(line: bytes) -> Entry:
    """Raises ValueError."""
    return _entry.decode(line)


_SHELL: Final = frozenset(
    ("server", "picker", "upstream", "mcp", "shared", "stream", "history", "otel", "recording")
)


def without_secrets(config: Config) -> Config:
    """What the brain is made from, of its texts those that may be recorded (`config/privacy.py`). The shell's
    own settings are left at their defaults."""
    of_the_brain = {
        field.name: getattr(config, field.name) for field in fields_of(Config) if field.name not in _SHELL
    }
    shown: Config = _shown(Config(**of_the_brain), count(1))
    return shown


def _shown(value: Any, numbers: Iterator[int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_shown(each, numbers) for each in value)
    if not isinstance(value, msgspec.Struct):
        return value
    kind = type(value)
    fields: dict[str, Any] = {}
    for field in fields_of(kind):
        if not holds_private_text(field.type):
            fields[field.name] = _shown(getattr(value, field.name), numbers)
        elif (kind, field.name) in _PLACEHOLDERS:
            fields[field.name] = _PLACEHOLDERS[kind, field.name](next(numbers))
    return kind(**fields)


_PLACEHOLDERS: Final[dict[tuple[type[msgspec.Struct], str], Callable[[int], Any]]] = {
    (ReplicaConfig, "url"): lambda number: f"http://replica-{number}",
    (KvEventsConfig, "endpoint"): lambda number: f"tcp://replica-{number}:1",
    **{(JwtConfig, name): lambda _: "not-recorded" for name in ("jwks", "issuer", "audience")},
    **{(KubernetesConfig, name): lambda _: "not-recorded" for name in ("service", "namespace")},
    (TenantConfig, "key_hashes"): lambda number: (f"sha256:{number:064x}",),
}
"""For what must be set, and differ."""
