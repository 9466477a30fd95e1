"""The contract between a gateway and the engine: what a hint may state about a session, and how.

Standard library only; a gateway imports this module and nothing else of the plugin. A hint is a
JSON object:

    {"v": 1, "session": "s-4f1c", "thread": "s-4f1c.1", "seq": 17, "class": "reactive", "retain_s": 6.5}

It travels in a request's ``vllm_xargs`` under `XARGS_KEY` (as a JSON string), as ``hint`` of an action
(`ACTION_TYPE`) of vLLM's ``kv_hints`` envelope, or in ``POST /turnpike/hints`` while no request of the
session is in flight.

What clients write in a request reaches the engine. So a hint there is signed (`sign`) with the key that
``GET /turnpike/key`` tells, which no client of a gateway can read; others are refused (`parse_signed`).

What a reader may rely on:

* Every time is a duration in seconds from receipt; no clock of the sender appears.
* ``seq`` grows with every hint about a thread. A hint that is not newer than the last one is stale; the order
  in which hints arrive does not matter, nor that one arrives twice.
* `parse` never raises. What it does not understand is a `Refusal`, which the engine counts and ignores.
* Fields left out keep their last value within a turn. A wrong field refuses the whole hint; one that
  this version does not know is ignored, so that a newer gateway may send more than an older engine follows.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from typing import Any, Final

VERSION: Final = 1
# The key of ``vllm_xargs``; its value is a JSON string, because nested objects are refused there.
XARGS_KEY: Final = "turnpike"
ACTION_TYPE: Final = "turnpike.session"
ACTION_VERSION: Final = str(VERSION)

# Characters of one hint.
MAX_TEXT: Final = 16_384
# Hints of one ``POST``.
MAX_HINTS: Final = 256
MAX_ID: Final = 256
MAX_SECONDS: Final = 3_600.0
_MAX_COUNT: Final = 1 << 53


class Refusal(Enum):
    """Why a hint is not followed. The value is the counter's label."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    """Another version, or another action."""
    UNSIGNED = "unsigned"
    """It came in a request, and was not signed with the engine's key: a client's own, and no gateway's."""
    STALE = "stale"
    """Not newer than what is known about the thread. Found by whoever keeps the sequence."""


class ServiceClass(IntEnum):
    """Who waits for the answer. The order is the order of service."""

    REACTIVE = 0
    """Somebody does."""
    PROACTIVE = 1
    """Nobody does: background work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What a gateway says about one thread of a session. ``None``: nothing new."""

    session: str
    seq: int
    thread: str = ""
    """The conversation within the session; what is retained is retained by thread."""
    service: ServiceClass | None = None
    age_s: float | None = None
    """How long ago the session's task began."""
    retain_s: float | None = None
    """How long to hold the thread's KV after its turn ends, or from now if none runs. 0 lets go."""
    reuse: float | None = None
    """How likely the held state is used again."""
    is_final: bool = False
    """The turn that this request answers is the task's last: its output will not be a prompt."""
    is_finished: bool = False
    """The session is over."""
    prefetch_in_s: float | None = None
    """When the next turn is expected."""

    def as_dict(self) -> dict[str, Any]:
        """As `parse` reads it; fields that say nothing are left out."""
        stated: dict[str, Any] = {"v": VERSION}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                stated[_WIRE_NAMES.get(field.name, field.name)] = value
        if self.service is not None:
            stated["class"] = self.service.name.lower()
        return stated

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), separators=(",", ":"))


_WIRE_NAMES: Final = {
    "service": "class",
    "is_final": "final",
    "is_finished": "finish",
}


def parse(raw: object) -> Hint | Refusal:
    """Read one hint: JSON text, or an object that JSON text became."""
    if isinstance(raw, str | bytes):
        if len(raw) > MAX_TEXT:
            return Refusal.MALFORMED
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            return Refusal.MALFORMED
    if not isinstance(raw, Mapping):
        return Refusal.MALFORMED
    if raw.get("v") != VERSION or isinstance(raw.get("v"), bool):
        return Refusal.UNKNOWN if "v" in raw else Refusal.MALFORMED
    try:
        return _Reader(raw).hint()
    except _WrongFieldError:
        return Refusal.MALFORMED


def sign(text: str, key: str) -> str:
    """A hint as it travels in a request."""
    return f"{_signature(text, key)} {text}"


def parse_signed(raw: object, key: str | None) -> Hint | Refusal:
    """Read what `sign` wrote with the same key; None: what is not signed."""
    if key is None:
        return parse(raw)
    if not isinstance(raw, str) or len(raw) > _SIGNATURE_CHARACTERS + 1 + MAX_TEXT:
        return Refusal.UNSIGNED
    signature, _, text = raw.partition(" ")
    # Other characters than ASCII cannot be compared.
    if not signature.isascii() or not hmac.compare_digest(signature, _signature(text, key)):
        return Refusal.UNSIGNED
    return parse(text)


def _signature(text: str, key: str) -> str:
    return hmac.digest(_bytes(key), _bytes(text), "sha256").hex()


def _bytes(text: str) -> bytes:
    """Also of a lone surrogate, which JSON can spell."""
    return text.encode("utf-8", "surrogatepass")


_SIGNATURE_CHARACTERS: Final = 64


def parse_many(raw: object) -> list[Hint | Refusal]:
    """Read the body of ``POST /turnpike/hints``: one hint, or ``{"hints": [...]}``."""
    if isinstance(raw, Mapping) and set(raw) == {"hints"}:
        several = raw["hints"]
        if not isinstance(several, list) or len(several) > MAX_HINTS:
            return [Refusal.MALFORMED]
        return [parse(each) for each in several]
    return [parse(raw)]


def parse_actions(actions: object, key: str | None) -> list[Hint | Refusal]:
    """Read the actions of a ``kv_hints`` envelope that are ours; others are none of our business."""
    found: list[Hint | Refusal] = []
    for action in actions if isinstance(actions, list | tuple) else ():
        if getattr(action, "action_type", None) != ACTION_TYPE or len(found) == MAX_HINTS:
            continue
        if getattr(action, "action_version", None) == ACTION_VERSION:
            payload = getattr(action, "payload", None)
            found.append(parse_signed(payload.get("hint") if isinstance(payload, Mapping) else None, key))
        else:
            found.append(Refusal.UNKNOWN)
    return found


class _WrongFieldError(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class _Reader:
    raw: Mapping[str, Any]

    def hint(self) -> Hint:
        session, seq = self.identifier("session"), self.count("seq")
        if session is None or seq is None:
            raise _WrongFieldError
        return Hint(
            session=session,
            seq=seq,
            thread=self.identifier("thread") or "",
            service=self.service(),
            age_s=self.number("age_s", 1e9),
            retain_s=self.number("retain_s", MAX_SECONDS),
            reuse=self.number("reuse", 1.0),
            is_final=self.flag("final"),
            is_finished=self.flag("finish"),
            prefetch_in_s=self.number("prefetch_in_s", MAX_SECONDS),
        )

    def identifier(self, name: str) -> str | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not 0 < len(value) <= MAX_ID or not value.isprintable():
            raise _WrongFieldError
        return value

    def count(self, name: str) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
            raise _WrongFieldError
        return value

    def number(self, name: str, most: float) -> float | None:
        value = self.raw.get(name)
        return None if value is None else _within(value, most)

    def flag(self, name: str) -> bool:
        value = self.raw.get(name, False)
        if not isinstance(value, bool):
            raise _WrongFieldError
        return value

    def service(self) -> ServiceClass | None:
        value = self.raw.get("class")
        if value is None:
            return None
        if not isinstance(value, str) or value not in _CLASSES:
            raise _WrongFieldError
        return _CLASSES[value]


def _within(value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise _WrongFieldError  # NaN compares false
    return float(value)


_CLASSES: Final = {each.name.lower(): each for each in ServiceClass}
