"""The canonical content of one item of a conversation, in any of the three protocols.

Clients rewrite what they echo: `cache_control` moves, reasoning is dropped, `name` and `index` appear,
explicit nulls come and go, arguments are serialised anew, texts become lists of parts. What is left after
all that is an item's role, its text and its calls.
"""

import contextlib
import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.domain.ids import MAX_ID_CHARS, is_well_formed_id
from gateway.identity.media import COUNTS_AS, MARKS, media_bytes
from gateway.wire.body import ABSENT, UNREADABLE, read_as, read_text, structure_of
from gateway.wire.hashing import digest, digest_all, text_hash

SYSTEM: Final = 0
USER: Final = 1
ASSISTANT: Final = 2
TOOL: Final = 3
NOTHING: Final = 4
# Reasoning, references: the model's, but no part of a conversation's content.
ASIDE: Final = 5

_ROLES: Final = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
_THOUGHT_TAG: Final = "<think"
# Around reasoning that a template left in the text; clients cut it out before they echo it.
_THOUGHT_TAGS: Final = re.compile(r"<(/?)think(?:ing)?>")
_CALLS_AS_TEXT: Final = "Calling tools:"
# smolagents rewrites tool calls into the assistant's text, as Python literals.
_CALL_AS_TEXT: Final = re.compile(r"\{'id': '([!-&(-\[\]-~]{1,256})', 'type': 'function'")
INPUT: Final = "Action Input:"
OBSERVED: Final = "\nObservation:"
_OBSERVATION: Final = "Observation:"
# Characters at either end of a text: `<retur…put>`, `Observ…`, `…ash-$`.
_LOOK: Final = 6
# Patterns of failures, each after a word that it contains: the word's search takes a tenth of the time.
_FAILED: Final = (
    (
        b"rror",
        re.compile(
            rb'(?<="is_e)rror": ?true|(?:(?<="E)|(?<=\\nE))rror\b|(?:(?<="e)|(?<=\\ne))rror:'
            rb'|(?:(?<="<e)|(?<=\\n<e))rror>'
        ),
    ),
    (b"ERROR", re.compile(rb'(?:(?<=")|(?<=\\n))ERROR\b')),
    (b"Traceback", re.compile(rb"Traceback \(most")),
    (b"xit", re.compile(rb"(?<=[Ee])xit code:? [1-9]")),
    (b"not found", re.compile(rb"(?<=command )not found")),
    (b"No such", re.compile(rb"No such file or directory")),
)
# A larger item is known by its bytes alone: it takes milliseconds to read, and is an image more often than
# not.
_MAX_BYTES: Final = 2**20
# Of a larger one pictures count by their bytes, too: to read them takes some 4 ms a megabyte.
_MAX_PICTURES: Final = 2**22
# So is one of more values: each becomes an object. Results of tools hold a few thousand commas at most.
MAX_STRUCTURE: Final = 2**14
_MAX_IDS: Final = 256
# Bytes at the beginning of a result in which a failure is looked for.
_FAILS_NEAR: Final = 2000


class Item(msgspec.Struct, frozen=True, gc=False):
    kind: int
    hash: int
    text: int
    """Hash of its text alone; 0 if it has none."""
    has_calls: bool = False
    ids: tuple[str, ...] = ()
    """Of the calls that it makes, or whose results it brings."""
    is_observation: bool = False
    """Results as plain text, which belong to calls as plain text."""
    looks: tuple[int, ...] = ()
    """Hashes of how a user's text begins and ends."""
    has_failed: bool = False
    """The results report a failure of their tool."""
    media_bytes: int = 0


_DECODER: Final = msgspec.json.Decoder()
_CANONICAL: Final = msgspec.json.Encoder(order="sorted")
_MISSING: Final = object()
_NO_ITEM: Final = Item(NOTHING, 0, 0)
_ASIDE: Final = Item(ASIDE, 0, 0)


def read_item(raw: Raw) -> Item:
    """Never raises: an unreadable item is `NOTHING`."""
    if len(memoryview(raw)) > MAX_STRUCTURE and is_large(raw):
        return _outline(raw)
    is_observation = False
    looks: tuple[int, ...] = ()
    try:
        content = _DECODER.decode(raw)
        kind, texts, calls, ids = understand(content)
        if kind in (ASIDE, NOTHING):
            return _ASIDE if kind == ASIDE else _NO_ITEM
        joined = texts[0] if len(texts) == 1 else "\n".join(texts)
        if kind == ASSISTANT:
            if not ids and _CALLS_AS_TEXT in joined:
                ids = _CALL_AS_TEXT.findall(joined)
            if _THOUGHT_TAG in joined:
                joined = without_thought(joined)
        elif kind == USER:
            is_observation = joined.startswith(_OBSERVATION)
            looks = _looks(joined)
        text = whole = text_hash(joined) if joined else 0
        if kind == ASSISTANT and INPUT in joined:
            text = text_hash(as_run(joined))
        hashed = digest(_CANONICAL.encode((kind, whole, calls))) if calls else hash((kind, whole))
        media = media_bytes(content) if len(memoryview(raw)) > COUNTS_AS else 0
    except UNREADABLE:
        return _NO_ITEM
    known: tuple[str, ...] = ()
    for each in ids[-_MAX_IDS:]:  # `is_well_formed_id` costs a call
        if type(each) is str and 0 < len(each) <= MAX_ID_CHARS and each.isprintable():
            known += (each,)
    has_failed = kind == TOOL and _has_failed(raw)
    return Item(kind, hashed, text, bool(calls), known, is_observation, looks, has_failed, media)


class _Outline(msgspec.Struct):
    """Fields that determine an item's kind and its call."""

    role: Raw = ABSENT
    type: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    call_id: Raw = ABSENT


_OUTLINE: Final = msgspec.json.Decoder(_Outline)


def is_large(raw: Raw) -> bool:
    size = len(memoryview(raw))
    return size > MAX_STRUCTURE and (size > _MAX_BYTES or structure_of(bytes(raw)) > MAX_STRUCTURE)


def _outline(raw: Raw) -> Item:
    outline = read_as(_OUTLINE, raw)
    if outline is None:
        return _NO_ITEM
    fields = {name: read_text(getattr(outline, name)) for name in _Outline.__struct_fields__}
    kind, _, _, ids = understand(fields)
    if kind in (ASIDE, NOTHING):
        return _ASIDE if kind == ASIDE else _NO_ITEM
    media, whole = 0, bytes(raw) if len(memoryview(raw)) <= _MAX_PICTURES else b""
    if any(mark in whole for mark in MARKS) and structure_of(whole) <= MAX_STRUCTURE:
        with contextlib.suppress(*UNREADABLE):
            media = media_bytes(_DECODER.decode(raw))
    known = tuple(filter(is_well_formed_id, filter(None, ids)))
    return Item(kind, hash((kind, digest(raw))), 0, False, known, media_bytes=media)


def _looks(text: str) -> tuple[int, ...]:
    head, tail = " ".join(text[: 4 * _LOOK].split()), " ".join(text[-4 * _LOOK :].split())
    if not head or not tail:
        return ()
    begins, ends = head[:_LOOK], tail[-_LOOK:]
    return tuple(digest_all([begins.encode("utf-8", "replace"), ends.encode("utf-8", "replace")]))


def _has_failed(raw: Raw) -> bool:
    near = bytes(memoryview(raw)[:_FAILS_NEAR])
    for word, pattern in _FAILED:
        at = near.find(word)
        while at >= 0:
            if pattern.match(near, at) is not None:
                return True
            at = near.find(word, at + 1)
    return False


def as_run(text: str) -> str:
    """What an agent's program reads of a ReAct answer: up to where its model makes up what comes back. In the
    next request the program's own observation stands there."""
    before, called, behind = text.partition(INPUT)
    return before + called + behind.partition(OBSERVED)[0]


def without_thought(text: str) -> str:
    """Without what stands between a tag that opens reasoning and the next one that closes it."""
    if _THOUGHT_TAG not in text:
        return text
    kept: list[str] = []
    at = 0
    opened: int | None = None
    for tag in _THOUGHT_TAGS.finditer(text):
        if not tag[1]:
            opened = tag.start() if opened is None else opened
        elif opened is not None:
            kept.append(text[at:opened])
            at, opened = tag.end(), None
    kept.append(text[at:])
    return "".join(kept)


def understand(item: Any) -> tuple[int, list[str], list[Any], list[Any]]:
    if type(item) is not dict:  # `isinstance` costs a call, and what was decoded is of no other type
        return NOTHING, [], [], []
    kind = item.get("type")
    if type(kind) is str and kind != "message":
        found = _understand_typed(kind, item)
        if found is not None:
            return found
    role = item.get("role")
    found_kind = _ROLES.get(role, NOTHING) if type(role) is str else NOTHING
    calls: list[Any] = []
    ids: list[Any] = []
    content = item.get("content")
    texts = [content] if type(content) is str else _texts(content, calls, ids)
    if found_kind == ASSISTANT:
        if made := item.get("tool_calls"):
            _read_calls(made, calls, ids)
    elif found_kind == TOOL:
        call_id = item.get("tool_call_id")
        calls.append(call_id)
        ids.append(call_id)
    elif found_kind == USER and calls and not texts:
        found_kind = TOOL
    return found_kind, texts, calls, ids


def _understand_typed(kind: str, item: dict[str, Any]) -> tuple[int, list[str], list[Any], list[Any]] | None:
    """An item of the responses protocol that is no message; None if it is one after all."""
    if kind.endswith("_call"):
        arguments = item.get("arguments", item.get("input", item.get("action")))
        call_id = item.get("call_id")
        return ASSISTANT, [], [[call_id, item.get("name"), canonical_arguments(arguments)]], [call_id]
    if kind.endswith("_output"):
        call_id = item.get("call_id")
        return TOOL, _texts(item.get("output"), [], []), [call_id], [call_id]
    return (ASIDE, [], [], []) if kind and item.get("role") is None else None


def _read_calls(made: Any, calls: list[Any], ids: list[Any]) -> None:
    for call in made if type(made) is list else ():
        if type(call) is dict:
            function = call.get("function") or call.get("custom") or {}
            if type(function) is dict:
                call_id, arguments = call.get("id"), function.get("arguments", _MISSING)
                if arguments is _MISSING:
                    arguments = function.get("input")
                calls.append([call_id, function.get("name"), canonical_arguments(arguments)])
                ids.append(call_id)


def _texts(content: Any, calls: list[Any], ids: list[Any]) -> list[str]:
    """The texts in a content; calls and results found between them are put into `calls`."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            _read_part(part, texts, calls, ids)
    return texts


def _read_part(part: dict[str, Any], texts: list[str], calls: list[Any], ids: list[Any]) -> None:
    kind = part.get("type")
    text = part.get("text")
    if isinstance(text, str):
        texts.append(text)
    elif isinstance(kind, str) and kind.endswith("tool_use"):
        calls.append([part.get("id"), part.get("name"), part.get("input")])
        ids.append(part.get("id"))
    elif isinstance(kind, str) and kind.endswith("tool_result"):
        calls.append([part.get("tool_use_id"), _texts(part.get("content"), [], [])])
        ids.append(part.get("tool_use_id"))
    elif isinstance(kind, str) and ("image" in kind or "file" in kind or "audio" in kind):
        calls.append({name: value for name, value in part.items() if name != "cache_control"})


def canonical_arguments(arguments: Any) -> Any:
    """Arguments as values: clients serialise them anew."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return _DECODER.decode(arguments)
    except UNREADABLE:
        return arguments.strip()
