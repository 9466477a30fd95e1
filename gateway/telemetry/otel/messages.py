"""The contents of requests and answers, as JSON of OpenTelemetry's conventions (pure).

Source: semantic conventions for generative AI, v1.41 (`gen-ai-input-messages.json`, `-output-messages.json`,
`-system-instructions.json`, `-tool-definitions.json`).

Deviations: media are named and left out. A tool's definition has only type and name: the rest is not
recommended there, and would come again with each turn. Of several answers to one request the first is
written.

Invariants: the output is valid JSON of at most `max_bytes`, whatever the request is; what is left out or cut
short is marked. The answer gets half of the bytes, then what stands before the conversation, then messages,
the newest first; a text takes at most half of the rest, so that no long one hides all others.
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

# Its name, and JSON.
Attribute = tuple[str, bytes]

# Ends a text that was cut short.
_MARK: Final = "…"
# What a part takes beside its texts, and a message beside its parts, at most.
_PART_BYTES: Final = 80
# With fewer bytes left, no further message is written: hardly a line of its text would fit.
_LEAST_BYTES: Final = 4 * _PART_BYTES
# Why answers ended, in the conventions' words, where they have one.
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
# Kinds of parts of which the conventions require more than a name.
_SHAPED: Final = frozenset(
    (
        *("text", "reasoning", "tool_call", "tool_call_response", "server_tool_call"),
        *("server_tool_call_response", "blob", "file", "uri"),
    )
)
_MEDIA: Final = ("image", "audio", "video")


class _Prompt(msgspec.Struct):
    prompt: Raw = ABSENT


_PROMPT: Final = msgspec.json.Decoder(_Prompt)
_ANY: Final = msgspec.json.Decoder()
_TEXTS: Final = msgspec.json.Decoder(str | list[str])
_RAW: Final = msgspec.json.Decoder(Raw)


class ByteBudget:
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

    def text(self, text: str) -> str:
        most = self.left // 2 - len(_MARK.encode())
        kept, size = text[: max(0, most)].encode(errors="replace").decode(), 0
        is_whole = len(kept) == len(text)
        while kept and (size := len(msgspec.json.encode(kept)) - 2) > most:
            kept, is_whole = kept[: len(kept) * most // size], False
        if not is_whole:
            self.is_cut = True
            kept = kept and kept + _MARK
            size += len(_MARK.encode())
        self.left -= size if kept else 0
        return kept

    def value(self, content: Any) -> Any:
        if isinstance(content, str):
            return self.text(content)
        encoded = bytes(content) if isinstance(content, Raw) else msgspec.json.encode(content)
        if len(encoded) > self.left // 2:
            return self.text(encoded.decode(errors="replace"))
        self.left -= len(encoded)
        return Raw(encoded)


def describing(
    protocol: Protocol, body: bytes, parts: Sequence[Part], finish_reason: str, *, max_bytes: int
) -> Generator[None, None, tuple[list[Attribute], int, bool]]:
    """Attributes, how many messages were left out, and whether anything was cut or left out; in slices.
    `body`: of the request, as its protocol has it; unreadable parts are left out."""
    found: list[Attribute] = []
    left, is_cut = max_bytes, False

    def add(name: str, encoded: bytes, budget: ByteBudget) -> None:
        nonlocal left, is_cut
        is_cut |= budget.is_cut
        if encoded:
            found.append((f"gen_ai.{name}", encoded))
            left -= len(encoded)

    if parts:
        add("output.messages", _output(parts, finish_reason, budget := ByteBudget(left // 2)), budget)
    yield
    try:
        fields = yield from decoding_body(body, is_responses=protocol is Protocol.RESPONSES)
        items = _items(protocol, fields, body)
    except UNREADABLE:
        return found, 0, True
    before, tools = ByteBudget(left // 4), ByteBudget(left // 8)
    add("system_instructions", _instructions(fields.system, fields.instructions, before), before)
    add("tool.definitions", _tools(fields.tools or (), tools), tools)
    yield
    newest_first: list[bytes] = []
    budget = ByteBudget(left)
    for item in reversed(items):
        most = budget.left - 3  # a comma, and the brackets around all
        if budget.left < _LEAST_BYTES or not budget.has_another():
            break
        message = _message(item, budget)
        if len(message) > most:
            break
        budget.left = most + 2 - len(message)
        newest_first.append(message)
        yield
    if newest_first:
        add("input.messages", b"[%s]" % b",".join(reversed(newest_first)), budget)
    left_out = len(items) - len(newest_first)
    return found, left_out, is_cut or left_out > 0


def input_messages(protocol: Protocol, body: bytes, *, max_bytes: int) -> Iterator[bytes]:
    """In the conventions' JSON, the oldest first, each of at most `max_bytes`; none of an unreadable body."""
    with contextlib.suppress(*UNREADABLE):
        fields = finish(decoding_body(body, is_responses=protocol is Protocol.RESPONSES))
        for item in _items(protocol, fields, body):
            yield _message(item, ByteBudget(max_bytes))


def _output(parts: Sequence[Part], finish_reason: str, budget: ByteBudget) -> bytes:
    written: list[Any] = []
    reason = budget.text(_REASONS.get(finish_reason, finish_reason)) if budget.has_another() else ""
    for part in parts:
        if not budget.has_another():
            break
        if part.kind is Kind.CALL:
            written.append(_call(part.id, part.name, part.text, budget))
        else:
            written.append(_text(part.text, budget, "text" if part.kind is Kind.TEXT else "reasoning"))
    return msgspec.json.encode([{"role": "assistant", "parts": written, "finish_reason": reason}])


def _items(protocol: Protocol, fields: RequestBody, body: bytes) -> Sequence[Raw | str]:
    if protocol is Protocol.COMPLETIONS:
        raw = _PROMPT.decode(body).prompt
        prompt = None if is_large(raw) else read_as(_TEXTS, raw)  # tokens are no words
        return [prompt] if isinstance(prompt, str) else prompt or ()
    if isinstance(fields, ResponsesBody):
        return [fields.input] if isinstance(fields.input, str) else fields.input or ()
    return fields.messages or ()


def _instructions(system: Raw, instructions: Raw, budget: ByteBudget) -> bytes:
    texts = [text for each in (system, instructions) if (text := joined_text(read_as(_ANY, each)))]
    written = [_text(text, budget) for text in texts if budget.has_another()]
    return msgspec.json.encode(written) if written else b""


def _tools(tools: Sequence[Raw], budget: ByteBudget) -> bytes:
    written: list[bytes] = []
    for each in tools:
        tool = read_as(TOOL, each) or Tool()
        kind = tool.type or "function"
        encoded = msgspec.json.encode({"type": kind, "name": tool.called or kind})
        if len(encoded) + 3 > budget.left:
            budget.is_cut = True
            break
        budget.left -= len(encoded) + 1
        written.append(encoded)
    return b"[%s]" % b",".join(written) if written else b""


def _message(item: Raw | str, budget: ByteBudget) -> bytes:
    if isinstance(item, str):
        return _written("user", [_text(item, budget)])
    fields = None if is_large(item) else read_as(_ANY, item)
    if not isinstance(fields, dict):  # too large to be read, or no message
        budget.is_cut = True
        return _written(budget.text((read_as(ROLE, item) or Role()).role or "user"), [])
    role, parts = _role_and_parts(fields, budget)
    name = fields.get("name") if "role" in fields else None
    return _written(role, parts, budget.text(name) if isinstance(name, str) else None)


def _written(role: str, parts: list[Any], name: str | None = None) -> bytes:
    of = {"name": name} if name else {}
    return msgspec.json.encode({"role": role, "parts": parts, **of})


def _role_and_parts(item: dict[str, Any], budget: ByteBudget) -> tuple[str, list[Any]]:
    kind, role = item.get("type"), item.get("role")
    if isinstance(kind, str) and kind != "message" and role is None:
        of, part = _typed(kind, item, budget)
        return of, [part]
    role = budget.text(role) if isinstance(role, str) else "user"
    thoughts = (item.get(field) for field in ("reasoning", "reasoning_content"))
    parts = [
        _text(each, budget, "reasoning")
        for each in thoughts
        if isinstance(each, str) and each and budget.has_another()
    ]
    content = item.get("content")
    if role == "tool":
        parts.append(_result(item.get("tool_call_id"), content, budget))
    elif isinstance(content, str) and budget.has_another():
        parts.append(_text(content, budget))
    elif isinstance(content, list):
        parts += [_part(part, budget) for part in takewhile(lambda _: budget.has_another(), content)]
    if isinstance(calls := item.get("tool_calls"), list):
        parts += [_tool_call(call, budget) for call in takewhile(lambda _: budget.has_another(), calls)]
    return role, parts


def _tool_call(call: Any, budget: ByteBudget) -> dict[str, Any]:
    call = call if isinstance(call, dict) else {}
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input"))
    return _call(call.get("id"), function.get("name"), arguments, budget)


def _typed(kind: str, item: dict[str, Any], budget: ByteBudget) -> tuple[str, Any]:
    if kind == "reasoning":
        thought = "\n".join(filter(None, (joined_text(item.get(field)) for field in ("summary", "content"))))
        return "assistant", _text(thought, budget, "reasoning")
    if kind.endswith("_output"):
        return "tool", _result(item.get("call_id"), item.get("output"), budget)
    if kind.endswith("_call"):
        arguments = item.get("arguments", item.get("input", item.get("action")))
        name = item.get("name") or kind.removesuffix("_call")
        return "assistant", _call(item.get("call_id") or item.get("id"), name, arguments, budget)
    return "user", _other(kind, budget)


def _part(part: Any, budget: ByteBudget) -> dict[str, Any]:
    if isinstance(part, str):
        return _text(part, budget)
    if not isinstance(part, dict):
        return {"type": "unknown"}
    for field, named in (("text", "text"), ("refusal", "text"), ("thinking", "reasoning")):
        if isinstance(text := part.get(field), str):
            return _text(text, budget, named)
    kind = part.get("type")
    if not isinstance(kind, str):
        return {"type": "unknown"}
    if kind.endswith("tool_use"):
        return _call(part.get("id"), part.get("name"), part.get("input"), budget)
    if kind.endswith("tool_result"):
        return _result(part.get("tool_use_id"), part.get("content"), budget)
    modality = next((each for each in _MEDIA if each in kind), None)
    return _other(kind, budget) if modality is None else _media(modality, part, budget)


def _media(modality: str, part: dict[str, Any], budget: ByteBudget) -> dict[str, Any]:
    """Where it is, if it is elsewhere; else that it was there."""
    at = part.get(f"{modality}_url") or part.get("source") or part
    at = at.get("url", at.get("file_id")) if isinstance(at, dict) else at
    if isinstance(at, str) and not at.startswith("data:"):
        kind, field = ("uri", "uri") if ":" in at else ("file", "file_id")
        return {"type": kind, "modality": modality, field: budget.text(at)}
    budget.is_cut = True
    return {"type": "blob", "modality": modality, "content": ""}


def _other(kind: str, budget: ByteBudget) -> dict[str, Any]:
    return {"type": "unknown" if kind in _SHAPED else budget.text(kind)}


def _text(text: str, budget: ByteBudget, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "content": budget.text(text)}


def _call(call_id: Any, name: Any, arguments: Any, budget: ByteBudget) -> dict[str, Any]:
    call = {"type": "tool_call", "name": budget.text(name) if isinstance(name, str) else ""}
    if isinstance(call_id, str):
        call["id"] = budget.text(call_id)
    if isinstance(arguments, str):
        with contextlib.suppress(*UNREADABLE):  # else it is a text
            arguments = _RAW.decode(arguments) if arguments else None
    if arguments is not None:
        call["arguments"] = budget.value(arguments)
    return call


def _result(call_id: Any, content: Any, budget: ByteBudget) -> dict[str, Any]:
    text = joined_text(content)
    of = {"id": budget.text(call_id)} if isinstance(call_id, str) else {}
    return {"type": "tool_call_response", **of, "response": budget.value(content if text is None else text)}
