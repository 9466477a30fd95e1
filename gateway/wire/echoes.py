"""Call ids that come back: the tail of a conversation, read from its end.

A request repeats the model's newest tool calls and brings their results. If a backend behind us minted
those ids, they say which response the request follows (DESIGN.md, session identity 3). Only the newest
*assistant block* matters: the run of items that one response left behind. If it made no call, the
newest block that did is the best witness left.

Each item is decoded on its own and only as far as needed; an item that does not fit is passed over.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from gateway.domain.ids import is_well_formed_id
from gateway.domain.request import Protocol
from gateway.wire.body import ABSENT, read_as, read_text

MAX_ITEMS = 128
"""How far back we look. Larger batches of parallel calls are recognised by their newest ones."""

MAX_IDS = 256


class Echoes(NamedTuple):
    """What a conversation's tail says; ids are unique and newest first."""

    echoed_ids: tuple[str, ...] = ()
    tool_result_ids: tuple[str, ...] = ()


class _Item(msgspec.Struct):
    """A message of chat or Messages, or an item of Responses. One type: their names do not collide."""

    role: Raw = ABSENT
    type: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    tool_calls: Raw = ABSENT
    call_id: Raw = ABSENT
    content: Raw = ABSENT


class _Part(msgspec.Struct):
    """A tool call of chat, or a content block of Messages."""

    type: Raw = ABSENT
    id: Raw = ABSENT
    tool_use_id: Raw = ABSENT


class _Seen(NamedTuple):
    """One item, understood."""

    is_assistant: bool
    call_ids: list[str]
    result_ids: list[str]
    is_observation: bool = False
    """Results as plain text, which belong to calls as plain text."""


_ITEM = msgspec.json.Decoder(_Item)
_PARTS = msgspec.json.Decoder(list[_Part])

_CALLS_AS_TEXT = b"Calling tools:"
_CALL_AS_TEXT = re.compile(rb"\{'id': '([!-&(-\[\]-~]{1,256})', 'type': 'function'")
"""smolagents rewrites tool calls into the assistant's text, as Python literals."""
_OBSERVATION = b'"Observation:'
_OPENING_BYTES = 64


def read_echoes(protocol: Protocol, items: Sequence[Raw]) -> Echoes:
    """The call ids in the newest assistant block that has any, and the results after the newest one."""
    read_item = _READERS.get(protocol)
    if read_item is None:
        return Echoes()
    results: dict[str, None] = {}
    calls: dict[str, None] = {}
    has_left_tail = has_observation = False
    for raw in reversed(items[-MAX_ITEMS:]):
        seen = read_item(raw)
        if seen.is_assistant:
            has_left_tail = True
            calls.update(dict.fromkeys(reversed(seen.call_ids)))
        elif calls:
            break
        elif not has_left_tail:
            results.update(dict.fromkeys(reversed(seen.result_ids)))
            has_observation = has_observation or seen.is_observation
        if len(calls) + len(results) > MAX_IDS:
            break
    if has_observation and not results:
        results = calls
    result_ids = tuple(results)[:MAX_IDS]
    return Echoes(tuple({**results, **calls})[:MAX_IDS], result_ids)


def _read_chat_item(raw: Raw) -> _Seen:
    item = read_as(_ITEM, raw) or _Item()
    role = bytes(item.role)
    if role == b'"tool"':
        return _Seen(False, [], _well_formed([item.tool_call_id]))
    if role != b'"assistant"':
        opening = bytes(memoryview(item.content)[:_OPENING_BYTES])
        return _Seen(False, [], [], role == b'"user"' and _OBSERVATION in opening)
    calls = [part.id for part in read_as(_PARTS, item.tool_calls) or ()]
    return _Seen(True, _well_formed(calls) if calls else _read_calls_in_text(item.content), [])


def _read_messages_item(raw: Raw) -> _Seen:
    item = read_as(_ITEM, raw) or _Item()
    is_assistant = bytes(item.role) == b'"assistant"'
    # Text content is not a list of parts, so it reads as no parts at all.
    parts = read_as(_PARTS, item.content) or ()
    if is_assistant:
        return _Seen(True, _well_formed([p.id for p in parts if bytes(p.type).endswith(b'tool_use"')]), [])
    return _Seen(False, [], _well_formed([part.tool_use_id for part in parts]))


def _read_responses_item(raw: Raw) -> _Seen:
    item = read_as(_ITEM, raw) or _Item()
    kind = bytes(item.type).strip(b'"')
    if kind.endswith(b"_output"):
        return _Seen(False, [], _well_formed([item.call_id]))
    if kind in (b"", b"message"):
        return _Seen(bytes(item.role) == b'"assistant"', [], [])
    # Whatever else there is, the model said: calls, reasoning, references to what it said before.
    return _Seen(True, _well_formed([item.call_id]) if kind.endswith(b"_call") else [], [])


_READERS = {
    Protocol.CHAT: _read_chat_item,
    Protocol.MESSAGES: _read_messages_item,
    Protocol.RESPONSES: _read_responses_item,
}


def _read_calls_in_text(content: Raw) -> list[str]:
    text = bytes(content)
    if _CALLS_AS_TEXT not in text:
        return []
    return [match.decode("ascii") for match in _CALL_AS_TEXT.findall(text)]


def _well_formed(ids: Sequence[Raw]) -> list[str]:
    texts = (read_text(raw) for raw in ids[:MAX_IDS])
    return [text for text in texts if text is not None and is_well_formed_id(text)]
