"""One tool call in two forms: in the model's answer that requests it, and from the agent that makes it.

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
# Larger arguments are not compared: it would take milliseconds.
_MAX_BYTES: Final = 1 << 17


class ToolUse(msgspec.Struct, frozen=True, gc=False):
    """The params of a `tools/call`."""

    name: str
    arguments: bytes
    call_id: str | None = None
    """Of the call in the model's answer, where the agent sends it."""


class _Params(msgspec.Struct):
    name: str
    arguments: Raw = Raw(b"{}")
    meta: Raw = msgspec.field(name="_meta", default=Raw())


class _Meta(msgspec.Struct):
    of_claude_code: str | None = msgspec.field(name="claudecode/toolUseId", default=None)
    of_codex: str | None = msgspec.field(name="callId", default=None)


_PARAMS: Final = msgspec.json.Decoder(_Params)
_META: Final = msgspec.json.Decoder(_Meta)


def read_tool_use(params: bytes) -> ToolUse | None:
    try:
        read = _PARAMS.decode(params)
    except UNREADABLE:
        return None
    return ToolUse(read.name, bytes(read.arguments), _call_id(bytes(read.meta)))


def _call_id(meta: bytes) -> str | None:
    if not meta:
        return None
    try:
        ids = _META.decode(meta)
    except UNREADABLE:
        return None
    return ids.of_claude_code if ids.of_claude_code is not None else ids.of_codex


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


def is_shown_as(shown: str, tool: str) -> bool:
    """Whether an agent may show this tool to its model under that name."""
    shown, tool = _allowed(shown), _allowed(tool)
    prefix = shown.removesuffix(tool)
    return bool(tool) and (not prefix or (prefix != shown and prefix[-1] in "_-"))


def _allowed(name: str) -> str:
    return _NOT_ALLOWED.sub("_", name)
