"""Answers of `/v1/responses` and `/v1/conversations`, streamed or whole.

Items come twice in a stream: in events of their own, and in the response that ends it. Some engines
give an item another id the second time, and clients echo either one, so all ids are kept.
"""

from typing import Any

import msgspec
from msgspec import Raw

from gateway.responses.chat import joined_text
from gateway.responses.content import Kind, ResponseContent
from gateway.responses.errors import ErrorFields
from gateway.responses.event_template import Piece, Pieces
from gateway.responses.observed import ERROR_FINISH, MAX_CALLS, CachedTokens, ObservedResponse
from gateway.wire.body import ABSENT, read_text, read_text_or_id

_TERMINALS = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled"})
_UNFINISHED = frozenset({"queued", "in_progress"})
_STATUSES = _UNFINISHED | {each.removeprefix("response.") for each in _TERMINALS}


class _Item(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    """Of tools that a client offers together, such as those of one MCP server."""
    content: Any = None
    summary: Any = None
    """Of reasoning."""
    arguments: Raw = ABSENT
    input: Raw = ABSENT


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: CachedTokens | None = None


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class _Stored(ErrorFields):
    """A response, a conversation, or a list of items."""

    id: str | None = None
    deleted: bool | None = None
    output: list[_Item] | None = None
    data: list[_Item] | None = None
    status: str | None = None
    incomplete_details: _IncompleteDetails | None = None
    usage: _Usage | None = None
    model: Any = None
    conversation: Raw = ABSENT


class _Event(ErrorFields):
    type: str | None = None
    response: _Stored | None = None
    item: _Item | None = None
    output_index: int | None = None


class _Piece(msgspec.Struct):
    """Of a call's arguments."""

    output_index: int | None = None
    delta: str | None = None


_TEXTS = ("output_text", "reasoning_text", "reasoning_summary_text")


def _kinds(before: str, names: tuple[str, ...], after: str) -> tuple[bytes, ...]:
    return tuple(
        f'{before}"type":{blank}"response.{name}.delta"{after}'.encode()
        for name in names
        for blank in ("", " ")
    )


# OpenAI writes an event's type first, vLLM last.
_TEXT_STARTS, _TEXT_ENDS = _kinds("{", _TEXTS, ","), _kinds("", _TEXTS, "}")
_CALL = ("function_call_arguments",)
_CALL_STARTS, _CALL_ENDS = _kinds("{", _CALL, ","), _kinds("", _CALL, "}")
_LAST_TEXT_ENDS = tuple(each + end for each in _TEXT_ENDS for end in (b"\n\n", b"\r\n\r\n"))

# An event of no more than that brings a token or two; of a larger one, all but its fields' names is text.
_UNPACED_BELOW_BYTES, _TOKEN_BYTES, _FIELDS_BYTES = 256, 8, 48
_PIECE = msgspec.json.Decoder(_Piece)
_EVENT = msgspec.json.Decoder(_Event)
_STORED = msgspec.json.Decoder(_Stored)


class ResponsesReader:
    knows_answers = True

    def __init__(self) -> None:
        # The ids of calls whose arguments come in pieces, by their places in the output.
        self._calls: dict[object, str] = {}
        # Text or arguments were read from whole items, before the response that repeats them.
        self._has_output = False
        # Whole items of any kind, read before that response.
        self._item_count = 0
        self._pieces = Pieces(_piece_of)
        self.learn = self._pieces.learn

    def take(self, chunk: bytes, observed: ObservedResponse) -> bool | None:
        if chunk.endswith(_LAST_TEXT_ENDS) and _is_one(chunk):
            size = len(chunk)  # as `_count`, for each token
            observed.streamed_bytes += size - _FIELDS_BYTES if size > _UNPACED_BELOW_BYTES else _TOKEN_BYTES
            return False
        pieces = self._pieces
        text = pieces.text_of(chunk)
        if text is None:
            return None
        call_id = self._calls.get(pieces.place)
        if call_id is None:
            _count(chunk, observed)
            return False
        return observed.add_arguments(call_id, text)

    def read_event(self, data: bytes, observed: ObservedResponse) -> None:
        if data.endswith(_TEXT_ENDS) or data.startswith(_TEXT_STARTS):
            observed.has_first_token = True
            _count(data, observed)
            return
        if data.endswith(_CALL_ENDS) or data.startswith(_CALL_STARTS):
            observed.has_first_token = True
            self._read_piece(data, observed)
            return
        event = _EVENT.decode(data)
        kind = event.type or ""
        if kind.endswith(".delta"):
            observed.has_first_token = True
            if kind == "response.function_call_arguments.delta":
                self._read_piece(data, observed)
            else:
                _count(data, observed)
            return
        if event.item is not None and kind.startswith("response.output_item."):
            _read_item(event.item, observed)
            if kind == "response.output_item.done":
                _read_content(event.item, observed)
                self._has_output = self._has_output or observed.has_output
                self._item_count += 1
                if observed.content is not None:
                    _keep(self._item_count, event.item, observed.content)
            elif event.item.type == "function_call" and event.output_index is not None:
                if event.item.call_id is not None and len(self._calls) < MAX_CALLS:
                    self._calls[event.output_index] = event.item.call_id
        if event.response is not None:
            has_items = self._item_count > 0
            _read_stored(event.response, observed, has_output=self._has_output, has_items=has_items)
        if kind in _TERMINALS:
            observed.has_terminal = True
        error = event.reported()
        if error is not None or (kind == "response.failed" and not observed.error_status):
            observed.fail(error)

    def _read_piece(self, data: bytes, observed: ObservedResponse) -> None:
        piece = _PIECE.decode(data) if self._calls else _Piece()
        call_id = self._calls.get(piece.output_index) if piece.output_index is not None else None
        if call_id is not None:
            observed.add_arguments(call_id, piece.delta)
        else:
            _count(data, observed)

    def read_body(self, data: bytes, observed: ObservedResponse) -> None:
        stored = _STORED.decode(data)
        if self._is_answer(stored):
            _read_stored(stored, observed, has_output=False, has_items=False)
            observed.has_first_token = observed.has_terminal = True
        elif (error := _error_of(stored)) is not None:
            observed.fail(error)

    def _is_answer(self, stored: _Stored) -> bool:
        is_named = isinstance(stored.object, str) and stored.object.startswith("response")
        return is_named or stored.output is not None or stored.status in _STATUSES


class StoredReader(ResponsesReader):
    """Reads stored responses, conversations and items, and confirmations of their deletion."""

    def _is_answer(self, stored: _Stored) -> bool:
        return True


def _is_one(event: bytes) -> bool:
    """Whether these bytes, which end an event, are no more than that."""
    lines_end = event.find(b"\n\n")
    if lines_end < 0:  # the lines end in CRLF
        return event.find(b"\n\r\n") + 3 == len(event)
    return lines_end + 2 == len(event)


def _piece_of(data: bytes) -> Piece | None:
    if not data.endswith(_CALL_ENDS):
        return None
    piece = _PIECE.decode(data)
    return Piece(Kind.CALL, piece.output_index, piece.delta) if piece.delta is not None else None


def _read_stored(stored: _Stored, observed: ObservedResponse, *, has_output: bool, has_items: bool) -> None:
    """`has_output`, `has_items`: the stream brought them already, ahead of this response."""
    if stored.deleted:
        return
    observed.add_names(stored.id, stored.model)
    observed.add_state_id(stored.id)
    observed.add_state_id(read_text_or_id(stored.conversation))
    for place, item in enumerate(stored.output or ()):
        _read_item(item, observed)
        if not has_output:
            _read_content(item, observed)
        if not has_items and observed.content is not None:
            _keep(place, item, observed.content)
    for item in stored.data or ():
        observed.add_state_id(item.id)
    if (usage := stored.usage) is not None:
        tokens = usage.input_tokens_details or CachedTokens()
        observed.merge_usage(usage.input_tokens, tokens.cached_tokens, usage.output_tokens)
    details = stored.incomplete_details
    if details is not None and details.reason is not None:
        observed.finish_reason = details.reason
    elif stored.status is not None and stored.status not in _UNFINISHED:
        observed.finish_reason = stored.status
    if (error := _error_of(stored)) is not None:
        observed.fail(error, "failed" if stored.status == "failed" else ERROR_FINISH)


def _error_of(stored: _Stored) -> object | None:
    error = stored.reported()
    return {} if error is None and stored.status == "failed" else error


def _read_item(item: _Item, observed: ObservedResponse) -> None:
    observed.add_state_id(item.id)
    if item.call_id is not None and item.type is not None and item.type.endswith("_call"):
        observed.has_first_token = True
        # Calls of built-in tools (local_shell_call, computer_call) are named by their type alone.
        name = item.name or item.type.removesuffix("_call")
        if item.namespace:
            name = f"{item.namespace}__{name}"
        observed.add_call(item.call_id, name, key=item.call_id, is_json=item.type == "function_call")


def _keep(place: int, item: _Item, content: ResponseContent) -> None:
    kind = item.type or ""
    if kind == "message":
        content.add(place, Kind.TEXT, joined_text(item.content))
    elif kind == "reasoning":
        thoughts = (joined_text(item.summary), joined_text(item.content))
        content.add(place, Kind.THOUGHT, "\n".join(filter(None, thoughts)))
    elif kind.endswith("_call"):
        arguments = read_text(item.arguments) or read_text(item.input)
        name = item.name or kind.removesuffix("_call")
        content.add(place, Kind.CALL, arguments, id=item.call_id or item.id, name=name)


def _count(event: bytes, observed: ObservedResponse) -> None:
    is_large = len(event) > _UNPACED_BELOW_BYTES
    observed.streamed_bytes += len(event) - _FIELDS_BYTES if is_large else _TOKEN_BYTES


def _read_content(item: _Item, observed: ObservedResponse) -> None:
    if item.type == "message":
        text = joined_text(item.content)
        observed.add_text(text)
        if not text:
            observed.count(item.content)
    elif item.type == "reasoning":
        observed.count(item.summary)
        observed.count(item.content)
    elif item.call_id is not None:
        if arguments := read_text(item.arguments) or read_text(item.input):
            observed.set_arguments(item.call_id, arguments)
        observed.close_call(item.call_id)
