"""Answers of `/v1/responses` and `/v1/conversations`, streamed or whole.

Items come twice in a stream: in events of their own, and in the response that ends it. Some engines
give an item another id the second time, and clients echo either one, so all ids are kept.
"""

from typing import Any

import msgspec
from msgspec import Raw

from gateway.wire.body import ABSENT, read_text, read_text_or_id
from gateway.wire.chat_answers import read_said
from gateway.wire.sighting import ERROR_FINISH, Sighting

_TERMINALS = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})
_UNFINISHED = frozenset({"queued", "in_progress"})


class _Item(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    content: Any = None
    arguments: Raw = ABSENT
    input: Raw = ABSENT


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class _Stored(msgspec.Struct):
    """A response, a conversation, or a list of items."""

    id: str | None = None
    deleted: bool | None = None
    output: list[_Item] | None = None
    data: list[_Item] | None = None
    status: str | None = None
    incomplete_details: _IncompleteDetails | None = None
    usage: _Usage | None = None
    conversation: Raw = ABSENT


class _Event(msgspec.Struct):
    type: str | None = None
    response: _Stored | None = None
    item: _Item | None = None


_EVENT = msgspec.json.Decoder(_Event)
_STORED = msgspec.json.Decoder(_Stored)


class ResponsesReader:
    """Reads responses, and what is stored beside them."""

    def is_dull(self, block: bytes) -> bool:
        return False

    def read_dull(self, block: bytes, sighting: Sighting) -> None:
        """Nothing is dull here."""

    def read_event(self, data: bytes, sighting: Sighting) -> None:
        event = _EVENT.decode(data)
        kind = event.type or ""
        if kind.endswith(".delta"):
            sighting.has_first_token = True
            return
        if event.item is not None and kind.startswith("response.output_item."):
            _read_item(event.item, sighting)
            if kind == "response.output_item.done":
                _read_content(event.item, sighting)
        if event.response is not None:
            _read_stored(event.response, sighting)
        if kind in _TERMINALS:
            sighting.has_terminal = True
        elif kind == "error":
            sighting.has_terminal = True
            sighting.finish_reason = ERROR_FINISH

    def read_body(self, data: bytes, sighting: Sighting) -> None:
        _read_stored(_STORED.decode(data), sighting)
        sighting.has_first_token = sighting.has_terminal = True


def _read_stored(stored: _Stored, sighting: Sighting) -> None:
    if stored.deleted:
        return
    sighting.add_state_id(stored.id)
    sighting.add_state_id(read_text_or_id(stored.conversation))
    was_said = sighting.has_said  # streamed before
    for item in stored.output or ():
        _read_item(item, sighting)
        if not was_said:
            _read_content(item, sighting)
    for item in stored.data or ():
        sighting.add_state_id(item.id)
    if stored.usage is not None:
        _read_usage(stored.usage, sighting)
    details = stored.incomplete_details
    if details is not None and details.reason is not None:
        sighting.finish_reason = details.reason
    elif stored.status is not None and stored.status not in _UNFINISHED:
        sighting.finish_reason = stored.status


def _read_item(item: _Item, sighting: Sighting) -> None:
    sighting.add_state_id(item.id)
    if item.call_id is not None and item.type is not None and item.type.endswith("_call"):
        sighting.has_first_token = True
        # Calls of built-in tools (local_shell_call, computer_call) are named by their type alone.
        sighting.add_call(item.call_id, item.name or item.type.removesuffix("_call"))


def _read_content(item: _Item, sighting: Sighting) -> None:
    if item.type == "message":
        sighting.add_text(read_said(item.content))
    elif item.call_id is not None:
        for piece in (item.arguments, item.input):
            sighting.add_arguments(item.call_id, read_text(piece))


def _read_usage(usage: _Usage, sighting: Sighting) -> None:
    details = usage.input_tokens_details
    cached_tokens = None if details is None else details.cached_tokens
    sighting.merge_usage(usage.input_tokens, cached_tokens, usage.output_tokens)
