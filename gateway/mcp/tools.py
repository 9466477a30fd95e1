"""One tool call, told in two ways: by the model's answer that asks for it, and by the agent that makes it.

The agent parses the model's arguments and writes them anew, so they are compared as values. It shows a tool
to its model under a longer name (`mcp__SERVER__tool`, `SERVER__tool`), in which only letters that model APIs
allow are left.
"""

import hashlib
import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.wire.body import UNREADABLE

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_DEPTH: Final = 64
_MAX_BYTES: Final = 1 << 17
"""Larger arguments are not compared: it would take milliseconds."""


class ToolUse(msgspec.Struct, frozen=True, gc=False):
    """The params of a `tools/call`."""

    name: str
    arguments: bytes
    """As they stand there."""
    meta: bytes = b""
    has_more: bool = False
    """It says more than that, such as that it is to run as a task."""
    call_id: str | None = None
    """Of the call in the model's answer, where the agent says so."""
    call_id_field: str = ""
    """In which field of `meta` it says so."""


class _Params(msgspec.Struct):
    name: str
    arguments: Raw = Raw(b"{}")
    meta: Raw = msgspec.field(name="_meta", default=Raw())


_PARAMS: Final = msgspec.json.Decoder(_Params)
_KEYS: Final = msgspec.json.Decoder(dict[str, Raw])
_KNOWN: Final = frozenset(("name", "arguments", "_meta"))
CALL_ID_FIELDS: Final = ("claudecode/toolUseId", "callId")
"""Claude Code's; Codex's."""


class _Meta(msgspec.Struct):
    of_claude_code: str | None = msgspec.field(name=CALL_ID_FIELDS[0], default=None)
    of_codex: str | None = msgspec.field(name=CALL_ID_FIELDS[1], default=None)


_META: Final = msgspec.json.Decoder(_Meta)


def read_tool_use(params: bytes) -> ToolUse | None:
    """None if it is none."""
    try:
        read, keys = _PARAMS.decode(params), _KEYS.decode(params)
    except UNREADABLE:
        return None
    has_more = not _KNOWN.issuperset(keys)
    meta = bytes(read.meta)
    return ToolUse(read.name, bytes(read.arguments), meta, has_more, *_call_id(meta))


def _call_id(meta: bytes) -> tuple[str | None, str]:
    if meta:
        try:
            said = _META.decode(meta)
        except UNREADABLE:
            return None, ""
        for value, field in zip((said.of_claude_code, said.of_codex), CALL_ID_FIELDS, strict=True):
            if value is not None:
                return value, field
    return None, ""


def arguments_key(arguments: bytes) -> bytes | None:
    """Equal for arguments that are equal as values; None if they are no JSON object, or too large."""
    if len(arguments) > _MAX_BYTES:
        return None
    try:
        values = msgspec.json.decode(arguments.strip() or b"{}")
        values = {} if values is None else values
        if not isinstance(values, dict):
            return None
        canonical = msgspec.json.encode(_canonical(values, _MAX_DEPTH), order="deterministic")
    except UNREADABLE:
        return None
    return hashlib.blake2b(canonical, digest_size=16).digest()


def _canonical(value: Any, depth: int) -> Any:
    """JavaScript writes 1.0 as 1."""
    if not depth:
        raise ValueError("too deep")
    if isinstance(value, dict):
        return {name: _canonical(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_canonical(each, depth - 1) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def prefix_of(shown: str, tool: str) -> str | None:
    """What stands before the tool's own name in the one that its agent shows to the model; None if that is
    another tool's."""
    shown, tool = _allowed(shown), _allowed(tool)
    if not tool or not shown.endswith(tool):
        return None
    prefix = shown[: len(shown) - len(tool)]
    return prefix if not prefix or prefix[-1] in "_-" else None


def _allowed(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)
