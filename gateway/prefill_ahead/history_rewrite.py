"""How a client sends an answer back, in the next request of its conversation.

The contents stay, but clients drop reasoning or keep it, under one name or another, serialise arguments anew,
cut white space off, write no text as null or as an empty one, turn texts into parts, and calls into text. An
`EchoManner` is one client's set of these changes, learned from an answer and its echo.

Invariants: a new manner changes only what was observed; nothing here raises for what a client sent.
"""

import json
from enum import Enum
from typing import Any, Final

import msgspec

from gateway.domain.request import Protocol
from gateway.identity.items import canonical_arguments
from gateway.responses.content import Kind, Part, ResponseContent
from gateway.wire.body import UNREADABLE

# Strict: what an engine would not read is not sent.
_JSON: Final = msgspec.json.Decoder()
_CALLS_AS_TEXT: Final = "Calling tools:\n"
_THOUGHTS: Final = ("reasoning", "reasoning_content")
# A mark that clients move about; it is no part of the prompt.
_MOVES: Final = "cache_control"


class Thought(Enum):
    DROPPED = ""
    REASONING = "reasoning"
    REASONING_CONTENT = "reasoning_content"
    BLOCK = "thinking"


class NoText(Enum):
    """What stands for a text where an answer has none."""

    NULL = 1
    BLANK = 2
    ABSENT = 3


class Arguments(Enum):
    AS_SAID = 1
    COMPACT = 2
    """As JavaScript writes them."""
    SPACED = 3
    """As Python does."""


class EchoManner(msgspec.Struct, frozen=True):
    thought: Thought = Thought.DROPPED
    is_stripped: bool = False
    """No white space at either end of a text."""
    is_parts: bool = False
    """A text is a list of one part."""
    no_text: NoText = NoText.NULL
    arguments: Arguments = Arguments.AS_SAID
    are_calls_text: bool = False
    """smolagents writes calls behind the text, as Python literals."""


_PLAIN: Final = EchoManner()
_PLAIN_MESSAGES: Final = EchoManner(thought=Thought.BLOCK)


def plain_manner(protocol: Protocol) -> EchoManner:
    return _PLAIN_MESSAGES if protocol is Protocol.MESSAGES else _PLAIN


def echo(protocol: Protocol, response: ResponseContent, manner: EchoManner) -> dict[str, Any]:
    """The answer as a message of the next request. Raises one of `body.UNREADABLE` for arguments that are
    no JSON."""
    if protocol is Protocol.MESSAGES:
        return {"role": "assistant", "content": [*_blocks(response.parts, manner)]}
    texts, thoughts, calls = _by_kind(response.parts)
    text = "".join(part.text for part in texts)
    if manner.is_stripped:
        text = text.strip()
    if calls and manner.are_calls_text:
        listed = [_call(part, manner) for part in calls]
        for part, call in zip(calls, listed, strict=True):
            call["function"]["arguments"] = canonical_arguments(part.text)
        text, calls = f"{text}\n{_CALLS_AS_TEXT}{listed}", []
    message: dict[str, Any] = {"role": "assistant"}
    if text:
        message["content"] = [{"type": "text", "text": text}] if manner.is_parts else text
    elif manner.no_text is not NoText.ABSENT:
        message["content"] = None if manner.no_text is NoText.NULL else ""
    if thoughts and manner.thought is not Thought.DROPPED:
        message[manner.thought.value] = "".join(part.text for part in thoughts)
    if calls:
        message["tool_calls"] = [_call(part, manner) for part in calls]
    return message


def read_manner(
    protocol: Protocol, response: ResponseContent, echoed: dict[str, Any], known: EchoManner
) -> EchoManner | None:
    """How the answer was sent back; None if no manner makes that. `known`: of what does not show here."""
    changes: dict[str, Any] = {}
    texts, thoughts, calls = _by_kind(response.parts)
    text = "".join(part.text for part in texts)
    content = echoed.get("content")
    if thoughts:
        changes["thought"] = _thought_of(protocol, echoed, [part.text for part in thoughts])
    if protocol is not Protocol.MESSAGES:
        if text:
            changes["is_parts"] = isinstance(content, list)
        else:
            absent = NoText.NULL if "content" in echoed else NoText.ABSENT
            changes["no_text"] = NoText.BLANK if content == "" else absent
        if calls and (theirs := echoed.get("tool_calls")):
            changes["arguments"] = _arguments_of(calls, theirs, known)
        elif calls:
            changes["are_calls_text"] = True
    found = msgspec.structs.replace(known, **changes)
    for is_stripped in (known.is_stripped, not known.is_stripped):
        found = msgspec.structs.replace(found, is_stripped=is_stripped)
        try:
            if is_same_message(protocol, echo(protocol, response, found), echoed):
                return found
        except UNREADABLE:
            return None
    return None


def is_same_message(protocol: Protocol, one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _meant(protocol, one) == _meant(protocol, other)


def _blocks(parts: list[Part], manner: EchoManner) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if part.kind is Kind.CALL:
            given = _JSON.decode(part.text) if part.data else {}
            blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": given})
        elif part.kind is Kind.TEXT:
            text = part.text.strip() if manner.is_stripped else part.text
            blocks += [{"type": "text", "text": text}] if text else []
        elif manner.thought is not Thought.DROPPED:
            blocks.append({"type": "thinking", "thinking": part.text, "signature": part.signature})
    return blocks


def _call(part: Part, manner: EchoManner) -> dict[str, Any]:
    arguments = part.text
    if manner.arguments is not Arguments.AS_SAID and arguments:
        arguments = json.dumps(_JSON.decode(arguments), **_WRITTEN[manner.arguments])
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


_WRITTEN: Final[dict[Arguments, dict[str, Any]]] = {
    Arguments.COMPACT: {"ensure_ascii": False, "separators": (",", ":")},
    Arguments.SPACED: {},
}


def _by_kind(parts: list[Part]) -> tuple[list[Part], list[Part], list[Part]]:
    texts, thoughts, calls = [[part for part in parts if part.kind is kind] for kind in Kind]
    return texts, thoughts, calls


def _thought_of(protocol: Protocol, echoed: dict[str, Any], thoughts: list[str]) -> Thought:
    if protocol is Protocol.MESSAGES:
        blocks = [each for each in _listed(echoed.get("content")) if each.get("type") == "thinking"]
        return Thought.BLOCK if blocks else Thought.DROPPED
    return next((Thought(name) for name in _THOUGHTS if echoed.get(name)), Thought.DROPPED)


def _arguments_of(calls: list[Part], theirs: Any, known: EchoManner) -> Arguments:
    functions = [each.get("function") for each in _listed(theirs)]
    written = [each.get("arguments") if isinstance(each, dict) else None for each in functions]
    ways: list[Arguments] = [known.arguments, *Arguments]
    for way in ways:
        manner = EchoManner(arguments=way)
        try:
            if [_call(part, manner)["function"]["arguments"] for part in calls] == written:
                return way
        except UNREADABLE:
            continue
    return known.arguments


def _listed(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _meant(protocol: Protocol, message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    found: list[Any] = [message.get("role"), message.get("tool_call_id")]
    if isinstance(content, list):
        for block in _listed(content):
            found += _meant_block(block)
    elif content:
        found.append(["text", content])
    if protocol is not Protocol.MESSAGES:
        found += [["thought", message[name]] for name in _THOUGHTS if message.get(name)]
        for call in _listed(message.get("tool_calls")):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            arguments = canonical_arguments(function.get("arguments"))
            found.append([call.get("id"), function.get("name"), json.dumps(arguments or {})])
    return found


def _meant_block(block: dict[str, Any]) -> list[Any]:
    match block.get("type"):
        case "text":
            return [["text", block.get("text")]] if block.get("text") else []
        case "thinking":
            return [["thought", block.get("thinking")]]
        case "tool_use":
            return [[block.get("id"), block.get("name"), json.dumps(block.get("input") or {})]]
        case _:
            return [{name: value for name, value in block.items() if name != _MOVES}]
