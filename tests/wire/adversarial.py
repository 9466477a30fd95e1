"""Texts and bodies that are made to be slow to read: of every word that any rule looks for, over and over."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import gateway
from gateway.domain.request import Protocol

READERS = (
    *("gateway.wire", "gateway.identity", "gateway.requests", "gateway.responses", "gateway.prefill_ahead"),
    *("gateway.tool_probe", "gateway.workflow", "gateway.telemetry.vllm_metrics"),
)
"""Where texts of clients and engines are read."""


NOT_TEXT = ("gateway.wire.endpoints", "gateway.identity.explicit_ids", "gateway.wire.hop_by_hop")
"""What these look for are paths and names of header fields."""


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if found.name.startswith(READERS):
            yield importlib.import_module(found.name)


def patterns() -> dict[str, re.Pattern[Any]]:
    """Every regular expression that a module keeps, by its place."""
    found: dict[str, re.Pattern[Any]] = {}
    for module in modules():
        for name, value in vars(module).items():
            for at, each in enumerate(_flatten(value)):
                if isinstance(each, re.Pattern):
                    found[f"{module.__name__}.{name}" + (f"[{at}]" if isinstance(value, tuple) else "")] = (
                        each
                    )
    return found


def tokens() -> list[str]:
    """Every word that a rule looks for: literals of expressions, and constants that are texts."""
    found: set[str] = {"{", "}", "[", "]", '"', "\\", "\n", " ", "<", ">", "a", "é", "0", ":", ",", "''"}
    for place, pattern in patterns().items():
        if place.startswith(NOT_TEXT):
            continue
        parsed = parser.parse(pattern.pattern, pattern.flags & re.VERBOSE)
        found |= set(_literals(parsed)) | {_example(parsed, is_short=True), _example(parsed, is_short=False)}
    for module in modules():
        if module.__name__.startswith(NOT_TEXT):
            continue
        for name, value in vars(module).items():
            if name.isupper() and not name.startswith("__"):
                found |= {_text(each) for each in _flatten(value) if isinstance(each, str | bytes)}
    return sorted(each for each in found if 0 < len(each) <= 64)


def texts(token: str, size: int) -> Iterator[str]:
    """About `size` characters of it: alone, on lines of its own, with blanks behind it, nested, as words."""
    times = max(1, size // (len(token) + 1))
    yield token * times
    yield f"{token}\n" * times
    yield f"{token} " * times
    yield token + " " * size
    yield f"\n{token}" + "\t" * size + "x"
    yield token * (times // 2) + token[::-1] * (times // 2)


def requests(text: str) -> Iterator[tuple[str, Protocol, bytes]]:
    """The text in every place where a request may have it."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": text})}}
    chat = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": text},
        {"role": "assistant", "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
    ]
    yield "/v1/chat/completions", Protocol.CHAT, _encode({"model": text, "messages": chat})
    items = [
        {"type": "message", "role": "user", "content": text},
        {"type": "function_call", "call_id": "c", "name": text, "arguments": text},
        {"type": "function_call_output", "call_id": "c", "output": text},
    ]
    yield "/v1/responses", Protocol.RESPONSES, _encode({"model": "m", "instructions": text, "input": items})
    yield "/v1/responses", Protocol.RESPONSES, _encode({"model": "m", "input": text})
    uses = [{"type": "tool_use", "id": "c", "name": text, "input": {"x": text}}]
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [{"type": "text", "text": text}, *uses]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text}]},
    ]
    yield "/v1/messages", Protocol.MESSAGES, _encode({"model": "m", "system": text, "messages": messages})
    yield "/v1/completions", Protocol.COMPLETIONS, _encode({"model": "m", "prompt": text})


def answers(text: str) -> Iterator[tuple[Protocol, str, bytes]]:
    """The text in every place where an answer may have it, as a stream and whole."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": text}}
    events: dict[Protocol, list[dict[str, Any]]] = {
        Protocol.CHAT: [
            {"choices": [{"delta": {"content": text}}]},
            {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": text}]},
        ],
        Protocol.RESPONSES: [
            {"type": "response.output_item.done", "item": {"type": "message", "content": [{"text": text}]}},
            {"type": "response.completed", "response": {"id": "r", "output": [{"type": text}]}},
        ],
        Protocol.MESSAGES: [
            {"type": "content_block_delta", "index": 0, "delta": {"text": text}},
            {"type": "content_block_delta", "index": 1, "delta": {"partial_json": text}},
            {"type": "message_stop"},
        ],
    }
    for protocol, parts in events.items():
        yield protocol, "text/event-stream", b"".join(b"data: " + _encode(part) + b"\n\n" for part in parts)
        yield protocol, "text/event-stream", text.encode("utf-8", "replace")
    message = {"role": "assistant", "content": text, "tool_calls": [call]}
    yield Protocol.CHAT, "application/json", _encode({"choices": [{"message": message}]})
    yield Protocol.MESSAGES, "application/json", _encode({"content": [{"type": "text", "text": text}]})


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list | frozenset | set):
        for each in value:
            yield from _flatten(each)
    else:
        yield value


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _literals(parsed: Any) -> Iterator[str]:
    run = ""
    for operator, value in parsed:
        if operator is constants.LITERAL:
            run += chr(value)
            continue
        if run:
            yield run
        run = ""
        for each in _flatten(value):
            if isinstance(each, parser.SubPattern):
                yield from _literals(each)
    if run:
        yield run


def _example(parsed: Any, *, is_short: bool) -> str:
    """A text that the pattern matches, with what is optional left out or put in."""
    said = ""
    for operator, value in parsed:
        if operator is constants.LITERAL:
            said += chr(value)
        elif operator is constants.IN:
            kind, of = value[0]
            said += chr(of) if kind is constants.LITERAL else chr(of[0]) if kind is constants.RANGE else "a"
        elif operator in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            least, most, inner = value
            said += _example(inner, is_short=is_short) * (least if is_short else min(most, max(least, 2)))
        elif operator is constants.SUBPATTERN:
            said += _example(value[3], is_short=is_short)
        elif operator is constants.BRANCH:
            said += _example(value[1][0 if is_short else -1], is_short=is_short)
        elif operator in (constants.ANY, constants.NOT_LITERAL):
            said += "a"
    return said
