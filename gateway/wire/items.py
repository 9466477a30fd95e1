"""The canonical content of one item of a conversation, in any of the three protocols.

Clients rewrite what they echo: `cache_control` moves, reasoning is dropped, `name` and `index` appear,
explicit nulls come and go, arguments are serialised anew, texts become lists of parts. What is left after
all that is an item's role, its text and its calls (CLIENTS: rule 5).
"""

import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from gateway.wire.body import UNREADABLE
from gateway.wire.marks import text_hash

SYSTEM: Final = 0
USER: Final = 1
ASSISTANT: Final = 2
TOOL: Final = 3
NOTHING: Final = 4
"""Reasoning, references, and what we do not know: no part of a conversation's content."""

_ROLES: Final = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
THOUGHT: Final = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
"""Reasoning that a template left in the text; clients cut it out before they echo it."""
_MAX_DEPTH: Final = 8


class Item(NamedTuple):
    """One item, understood."""

    kind: int
    hash: int
    text: int
    """Hash of its text alone; 0 if it has none."""
    has_calls: bool = False


_DECODER: Final = msgspec.json.Decoder()
_NO_ITEM: Final = Item(NOTHING, 0, 0)


def read_item(raw: Raw) -> Item:
    """What an item says. Never raises: what cannot be read is nothing."""
    content = _decode(raw)
    kind, texts, calls = _understand(content)
    if kind == NOTHING:
        return _NO_ITEM
    return _item(kind, texts, calls)


def user_item(text: str) -> Item:
    """The item that a bare text stands for."""
    return _item(USER, [text], [])


def _item(kind: int, texts: list[str], calls: list[Any]) -> Item:
    said = THOUGHT.sub("", "\n".join(texts)) if kind == ASSISTANT else "\n".join(texts)
    text = text_hash(said)
    canonical = msgspec.json.encode((kind, text, calls), order="sorted")
    return Item(kind, xxh3_64_intdigest(canonical), text, bool(calls))


def read_texts(raw: Raw) -> list[str]:
    """The texts of an item, without tool results: what a person or a program wrote."""
    kind, texts, _ = _understand(_decode(raw))
    return texts if kind in (USER, ASSISTANT, SYSTEM) else []


def _decode(raw: Raw) -> Any:
    try:
        return _DECODER.decode(raw)
    except UNREADABLE:
        return None


def _understand(item: Any) -> tuple[int, list[str], list[Any]]:
    """Kind, texts, and the calls and results as plain values."""
    if not isinstance(item, dict):
        return NOTHING, [], []
    kind = item.get("type")
    if isinstance(kind, str) and kind.endswith("_call"):
        arguments = item.get("arguments", item.get("input", item.get("action")))
        return ASSISTANT, [], [[item.get("call_id"), item.get("name"), canonical_arguments(arguments)]]
    if isinstance(kind, str) and kind.endswith("_output"):
        return TOOL, _texts(item.get("output"), []), [item.get("call_id")]
    role = item.get("role")
    found = _ROLES.get(role, NOTHING) if isinstance(role, str) else NOTHING
    calls: list[Any] = []
    texts = _texts(item.get("content"), calls)
    if found == TOOL:
        calls.append(item.get("tool_call_id"))
    if found == USER and calls and not texts:
        found = TOOL
    for call in item.get("tool_calls") or () if found == ASSISTANT else ():
        if isinstance(call, dict):
            function = call.get("function") or call.get("custom") or {}
            if isinstance(function, dict):
                arguments = canonical_arguments(function.get("arguments", function.get("input")))
                calls.append([call.get("id"), function.get("name"), arguments])
    return found, texts, calls


def _texts(content: Any, calls: list[Any]) -> list[str]:
    """The texts in a content; calls and results found between them are put into `calls`."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            _read_part(part, texts, calls)
    return texts


def _read_part(part: dict[str, Any], texts: list[str], calls: list[Any]) -> None:
    kind = part.get("type")
    text = part.get("text")
    if isinstance(text, str):
        texts.append(text)
    elif isinstance(kind, str) and kind.endswith("tool_use"):
        calls.append([part.get("id"), part.get("name"), part.get("input")])
    elif isinstance(kind, str) and kind.endswith("tool_result"):
        inner: list[Any] = []
        calls.append([part.get("tool_use_id"), _texts(part.get("content"), inner)])
    elif isinstance(kind, str) and ("image" in kind or "file" in kind or "audio" in kind):
        calls.append({name: value for name, value in part.items() if name != "cache_control"})


def canonical_arguments(arguments: Any) -> Any:
    """Arguments as values: clients serialise them anew, so the text that carried them means nothing."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except UNREADABLE:
        return arguments.strip()


def argument_texts(arguments: Any, depth: int = _MAX_DEPTH) -> list[str]:
    """Every text in the arguments of a call."""
    if isinstance(arguments, str):
        return [arguments]
    if depth == 0 or not isinstance(arguments, dict | list):
        return []
    values = arguments.values() if isinstance(arguments, dict) else arguments
    return [text for value in values for text in argument_texts(value, depth - 1)]
