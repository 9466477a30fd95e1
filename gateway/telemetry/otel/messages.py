"""What requests and answers say, in the JSON that OpenTelemetry's conventions give it (pure).

Source: semantic conventions for generative AI, v1.41 (`gen-ai-input-messages.json`, `-output-messages.json`,
`-system-instructions.json`, `-tool-definitions.json`).

Deviations: media are named and left out. Of a tool's definition only type and name are told: the rest is not
recommended there, and would come again with each turn. Of several answers to one request the first is told.

Invariants: all that is written is valid JSON of at most `max_bytes`, whatever the request is; what is left
out or cut short for want of room is said. The answer has half of the room, then what stands before the
conversation, then messages, the newest first; a text takes at most half of what is left, so that no long one
hides all others.
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.domain.request import Protocol
from gateway.identity.agent_type import TOOL, Tool
from gateway.identity.items import is_large
from gateway.responses.chat import joined_text
from gateway.responses.content import Kind, Part
from gateway.wire.body import (
    ABSENT,
    ROLE,
    UNREADABLE,
    RequestBody,
    ResponsesBody,
    Role,
    decoding_body,
    read_as,
)
from gateway.wire.slices import finish

Attribute = tuple[str, bytes]
"""Its name, and JSON."""

_MARK: Final = "…"
"""Ends a text that was cut short."""
_PART_BYTES: Final = 80
"""What a part takes beside its texts, and a message beside its parts, at most."""
_LEAST_BYTES: Final = 4 * _PART_BYTES
"""With less room, no further message is told: of its text hardly a line would be left."""
_REASONS: Final = {
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "tool_use": "tool_call",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "refusal": "content_filter",
    "failed": "error",
}
"""Why answers ended, in the conventions' words, where they have one."""
_SHAPED: Final = frozenset(
    (
        *("text", "reasoning", "tool_call", "tool_call_response", "server_tool_call"),
        *("server_tool_call_response", "blob", "file", "uri"),
    )
)
"""Kinds of parts of which the conventions ask for more than a name."""
_MEDIA: Final = ("image", "audio", "video")
_DATA_URL: Final = "data:"


class _Prompt(msgspec.Struct):
    prompt: Raw = ABSENT


_PROMPT: Final = msgspec.json.Decoder(_Prompt)
_ANY: Final = msgspec.json.Decoder()
_TEXTS: Final = msgspec.json.Decoder(str | list[str])
_RAW: Final = msgspec.json.Decoder(Raw)


class Room:
    """What may still be written, in bytes of JSON."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_cut = False

    def has_another(self) -> bool:
        if self.left < _PART_BYTES:
            self.is_cut = True
            return False
        self.left -= _PART_BYTES
        return True

    def text(self, said: str) -> str:
        most = self.left // 2 - len(_MARK.encode())
        kept, size = said[: max(0, most)].encode(errors="replace").decode(), 0
        is_whole = len(kept) == len(said)
        while kept and (size := len(msgspec.json.encode(kept)) - 2) > most:
            kept, is_whole = kept[: len(kept) * most // size], False
        if not is_whole:
            self.is_cut = True
            kept = kept and kept + _MARK
            size += len(_MARK.encode())
        self.left -= size if kept else 0
        return kept

    def value(self, said: Any) -> Any:
        if isinstance(said, str):
            return self.text(said)
        encoded = bytes(said) if isinstance(said, Raw) else msgspec.json.encode(said)
        if len(encoded) > self.left // 2:
            return self.text(encoded.decode(errors="replace"))
        self.left -= len(encoded)
        return Raw(encoded)


def describing(
    protocol: Protocol, body: bytes, parts: Sequence[Part], finish_reason: str, *, max_bytes: int
) -> Generator[None, None, tuple[list[Attribute], int, bool]]:
    """Attributes, how many messages were left out, and whether anything was cut or left out; in slices.

    `body`: of the request, as its protocol has it; what cannot be read of it is not told.
    """
    found: list[Attribute] = []
    left, is_cut = max_bytes, False

    def tell(name: str, said: bytes, room: Room) -> None:
        nonlocal left, is_cut
        is_cut |= room.is_cut
        if said:
            found.append((f"gen_ai.{name}", said))
            left -= len(said)

    if parts:
        tell("output.messages", _output(parts, finish_reason, room := Room(left // 2)), room)
    yield
    try:
        fields = yield from decoding_body(body, is_responses=protocol is Protocol.RESPONSES)
        items = _items(protocol, fields, body)
    except UNREADABLE:
        return found, 0, True
    before, tools = Room(left // 4), Room(left // 8)
    tell("system_instructions", _instructions(fields.system, fields.instructions, before), before)
    tell("tool.definitions", _tools(fields.tools or (), tools), tools)
    yield
    newest_first: list[bytes] = []
    room = Room(left)
    for item in reversed(items):
        most = room.left - 3  # a comma, and the brackets around all
        if room.left < _LEAST_BYTES or not room.has_another():
            break
        message = _message(item, room)
        if len(message) > most:
            break
        room.left = most + 2 - len(message)
        newest_first.append(message)
        yield
    if newest_first:
        tell("input.messages", b"[%s]" % b",".join(reversed(newest_first)), room)
    left_out = len(items) - len(newest_first)
    return found, left_out, is_cut or left_out > 0


def input_messages(protocol: Protocol, body: bytes, *, max_bytes: int) -> Iterator[bytes]:
    """In the conventions' JSON, the oldest first, each of at most `max_bytes`; none of an unreadable body."""
    with contextlib.suppress(*UNREADABLE):
        fields = finish(decoding_body(body, is_responses=protocol is Protocol.RESPONSES))
        for item in _items(protocol, fields, body):
            yield _message(item, Room(max_bytes))


def _output(parts: Sequence[Part], finish_reason: str, room: Room) -> bytes:
    written: list[Any] = []
    reason = room.text(_REASONS.get(finish_reason, finish_reason)) if room.has_another() else ""
    for part in parts:
        if not room.has_another():
            break
        if part.kind is Kind.CALL:
            written.append(_call(part.id, part.name, part.text, room))
        else:
            written.append(_text(part.text, room, "text" if part.kind is Kind.TEXT else "reasoning"))
    return msgspec.json.encode([{"role": "assistant", "parts": written, "finish_reason": reason}])


def _items(protocol: Protocol, fields: RequestBody, body: bytes) -> Sequence[Raw | str]:
    if protocol is Protocol.COMPLETIONS:
        raw = _PROMPT.decode(body).prompt
        prompt = None if is_large(raw) else read_as(_TEXTS, raw)  # tokens are no words
        return [prompt] if isinstance(prompt, str) else prompt or ()
    if isinstance(fields, ResponsesBody):
        return [fields.input] if isinstance(fields.input, str) else fields.input or ()
    return fields.messages or ()


def _instructions(system: Raw, instructions: Raw, room: Room) -> bytes:
    texts = [text for each in (system, instructions) if (text := joined_text(read_as(_ANY, each)))]
    written = [_text(text, room) for text in texts if room.has_another()]
    return msgspec.json.encode(written) if written else b""


def _tools(tools: Sequence[Raw], room: Room) -> bytes:
    written: list[bytes] = []
    for each in tools:
        tool = read_as(TOOL, each) or Tool()
        kind = tool.type or "function"
        said = msgspec.json.encode({"type": kind, "name": tool.called or kind})
        if len(said) + 3 > room.left:
            room.is_cut = True
            break
        room.left -= len(said) + 1
        written.append(said)
    return b"[%s]" % b",".join(written) if written else b""


def _message(item: Raw | str, room: Room) -> bytes:
    if isinstance(item, str):
        return _written("user", [_text(item, room)])
    said = None if is_large(item) else read_as(_ANY, item)
    if not isinstance(said, dict):  # too large to be read, or no message
        room.is_cut = True
        return _written(room.text((read_as(ROLE, item) or Role()).role or "user"), [])
    role, parts = _understood(said, room)
    name = said.get("name") if "role" in said else None
    return _written(role, parts, room.text(name) if isinstance(name, str) else None)


def _written(role: str, parts: list[Any], name: str | None = None) -> bytes:
    of = {"name": name} if name else {}
    return msgspec.json.encode({"role": role, "parts": parts, **of})


def _understood(item: dict[str, Any], room: Room) -> tuple[str, list[Any]]:
    kind, role = item.get("type"), item.get("role")
    if isinstance(kind, str) and kind != "message" and role is None:
        of, part = _typed(kind, item, room)
        return of, [part]
    role = room.text(role) if isinstance(role, str) else "user"
    thoughts = (item.get(field) for field in ("reasoning", "reasoning_content"))
    parts = [
        _text(each, room, "reasoning")
        for each in thoughts
        if isinstance(each, str) and each and room.has_another()
    ]
    content = item.get("content")
    if role == "tool":
        parts.append(_result(item.get("tool_call_id"), content, room))
    elif isinstance(content, str) and room.has_another():
        parts.append(_text(content, room))
    elif isinstance(content, list):
        parts += [_part(part, room) for part in takewhile(lambda _: room.has_another(), content)]
    if isinstance(calls := item.get("tool_calls"), list):
        parts += [_asked(call, room) for call in takewhile(lambda _: room.has_another(), calls)]
    return role, parts


def _asked(call: Any, room: Room) -> dict[str, Any]:
    call = call if isinstance(call, dict) else {}
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input"))
    return _call(call.get("id"), function.get("name"), arguments, room)


def _typed(kind: str, item: dict[str, Any], room: Room) -> tuple[str, Any]:
    if kind == "reasoning":
        thought = "\n".join(filter(None, (joined_text(item.get(field)) for field in ("summary", "content"))))
        return "assistant", _text(thought, room, "reasoning")
    if kind.endswith("_output"):
        return "tool", _result(item.get("call_id"), item.get("output"), room)
    if kind.endswith("_call"):
        arguments = item.get("arguments", item.get("input", item.get("action")))
        name = item.get("name") or kind.removesuffix("_call")
        return "assistant", _call(item.get("call_id") or item.get("id"), name, arguments, room)
    return "user", _other(kind, room)


def _part(part: Any, room: Room) -> dict[str, Any]:
    if isinstance(part, str):
        return _text(part, room)
    if not isinstance(part, dict):
        return {"type": "unknown"}
    for field, named in (("text", "text"), ("refusal", "text"), ("thinking", "reasoning")):
        if isinstance(said := part.get(field), str):
            return _text(said, room, named)
    kind = part.get("type")
    if not isinstance(kind, str):
        return {"type": "unknown"}
    if kind.endswith("tool_use"):
        return _call(part.get("id"), part.get("name"), part.get("input"), room)
    if kind.endswith("tool_result"):
        return _result(part.get("tool_use_id"), part.get("content"), room)
    modality = next((each for each in _MEDIA if each in kind), None)
    return _other(kind, room) if modality is None else _media(modality, part, room)


def _media(modality: str, part: dict[str, Any], room: Room) -> dict[str, Any]:
    """Where it is, if it is elsewhere; else that it was there."""
    at = part.get(f"{modality}_url") or part.get("source") or part
    at = at.get("url", at.get("file_id")) if isinstance(at, dict) else at
    if isinstance(at, str) and not at.startswith(_DATA_URL):
        kind, field = ("uri", "uri") if ":" in at else ("file", "file_id")
        return {"type": kind, "modality": modality, field: room.text(at)}
    room.is_cut = True
    return {"type": "blob", "modality": modality, "content": ""}


def _other(kind: str, room: Room) -> dict[str, Any]:
    return {"type": "unknown" if kind in _SHAPED else room.text(kind)}


def _text(said: str, room: Room, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "content": room.text(said)}


def _call(call_id: Any, name: Any, arguments: Any, room: Room) -> dict[str, Any]:
    said = {"type": "tool_call", "name": room.text(name) if isinstance(name, str) else ""}
    if isinstance(call_id, str):
        said["id"] = room.text(call_id)
    if isinstance(arguments, str):
        with contextlib.suppress(*UNREADABLE):  # else it is a text
            arguments = _RAW.decode(arguments) if arguments else None
    if arguments is not None:
        said["arguments"] = room.value(arguments)
    return said


def _result(call_id: Any, content: Any, room: Room) -> dict[str, Any]:
    said = joined_text(content)
    of = {"id": room.text(call_id)} if isinstance(call_id, str) else {}
    return {"type": "tool_call_response", **of, "response": room.value(content if said is None else said)}
