"""Answers of `/v1/responses` and `/v1/conversations`, streamed or whole.

Items come twice in a stream: in events of their own, and in the response that ends it. Some engines
give an item another id the second time, and clients echo either one, so all ids are kept.
"""

from typing import Any

import msgspec
from msgspec import Raw

from gateway.responses.chat import joined_text
from gateway.responses.content import Kind, ResponseContent
from gateway.responses.errors import reported
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


class _Stored(msgspec.Struct):
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
    error: Any = None
    type: Any = None
    object: Any = None
    code: Any = None


class _Event(msgspec.Struct):
    type: str | None = None
    response: _Stored | None = None
    item: _Item | None = None
    output_index: int | None = None
    error: Any = None
    object: Any = None
    code: Any = None


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


# OpenAI says of what kind an event is before everything else, vLLM behind it.
_TEXT_STARTS, _TEXT_ENDS = _kinds("{", _TEXTS, ","), _kinds("", _TEXTS, "}")
_CALL = ("function_call_arguments",)
_CALL_STARTS, _CALL_ENDS = _kinds("{", _CALL, ","), _kinds("", _CALL, "}")
_LAST_TEXT_ENDS = tuple(each + end for each in _TEXT_ENDS for end in (b"\n\n", b"\r\n\r\n"))

_UNPACED_BELOW_BYTES, _TOKEN_BYTES, _FIELDS_BYTES = 256, 8, 48
"""An event of no more than that brings a token or two; of a larger one, all but its fields' names is text."""
_PIECE = msgspec.json.Decoder(_Piece)
_EVENT = msgspec.json.Decoder(_Event)
_STORED = msgspec.json.Decoder(_Stored)


class ResponsesReader:
    """Reads responses."""

    knows_answers = True

    def __init__(self) -> None:
        self._calls: dict[object, str] = {}
        """The ids of calls whose arguments come in pieces, by their places in the output."""
        self._was_said = False
        """Items came whole, before the response that repeats them."""
        self._told = 0
        """Items that came so, of whatever kind."""
        self._pieces = Pieces(_piece_of)
        self.learn = self._pieces.learn

    def take(self, chunk: bytes, sighting: ObservedResponse) -> bool | None:
        if chunk.endswith(_LAST_TEXT_ENDS) and _is_one(chunk):
            size = len(chunk)  # as `_count`, for each token
            sighting.streamed_bytes += size - _FIELDS_BYTES if size > _UNPACED_BELOW_BYTES else _TOKEN_BYTES
            return False
        pieces = self._pieces
        text = None if pieces.gap is None else pieces.gap.text_of(chunk)
        if text is None:
            return None
        call_id = self._calls.get(pieces.place)
        if call_id is None:
            _count(chunk, sighting)
            return False
        return sighting.add_arguments(call_id, text)

    def read_event(self, data: bytes, sighting: ObservedResponse) -> None:
        if data.endswith(_TEXT_ENDS) or data.startswith(_TEXT_STARTS):
            sighting.has_first_token = True
            _count(data, sighting)
            return
        if data.endswith(_CALL_ENDS) or data.startswith(_CALL_STARTS):
            sighting.has_first_token = True
            self._read_piece(data, sighting)
            return
        event = _EVENT.decode(data)
        kind = event.type or ""
        if kind.endswith(".delta"):
            sighting.has_first_token = True
            if kind == "response.function_call_arguments.delta":
                self._read_piece(data, sighting)
            else:
                _count(data, sighting)
            return
        if event.item is not None and kind.startswith("response.output_item."):
            _read_item(event.item, sighting)
            if kind == "response.output_item.done":
                _read_content(event.item, sighting)
                self._was_said = self._was_said or sighting.has_said
                self._told += 1
                if sighting.said is not None:
                    _keep(self._told, event.item, sighting.said)
            elif event.item.type == "function_call" and event.output_index is not None:
                if event.item.call_id is not None and len(self._calls) < MAX_CALLS:
                    self._calls[event.output_index] = event.item.call_id
        if event.response is not None:
            _read_stored(event.response, sighting, was_said=self._was_said, was_told=bool(self._told))
        if kind in _TERMINALS:
            sighting.has_terminal = True
        error = reported(event.error, kind, event.object, event.code)
        if error is not None or (kind == "response.failed" and not sighting.error_status):
            sighting.fail(error)

    def _read_piece(self, data: bytes, sighting: ObservedResponse) -> None:
        piece = _PIECE.decode(data) if self._calls else _Piece()
        call_id = self._calls.get(piece.output_index) if piece.output_index is not None else None
        if call_id is not None:
            sighting.add_arguments(call_id, piece.delta)
        else:
            _count(data, sighting)

    def read_body(self, data: bytes, sighting: ObservedResponse) -> None:
        stored = _STORED.decode(data)
        if self._is_answer(stored):
            _read_stored(stored, sighting, was_said=False, was_told=False)
            sighting.has_first_token = sighting.has_terminal = True
        elif (error := _error_of(stored)) is not None:
            sighting.fail(error)

    def _is_answer(self, stored: _Stored) -> bool:
        is_named = isinstance(stored.object, str) and stored.object.startswith("response")
        return is_named or stored.output is not None or stored.status in _STATUSES


class StoredReader(ResponsesReader):
    """Reads what is stored: responses, conversations, items, and that they were deleted."""

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


def _read_stored(stored: _Stored, sighting: ObservedResponse, *, was_said: bool, was_told: bool) -> None:
    if stored.deleted:
        return
    sighting.add_names(stored.id, stored.model)
    sighting.add_state_id(stored.id)
    sighting.add_state_id(read_text_or_id(stored.conversation))
    for place, item in enumerate(stored.output or ()):
        _read_item(item, sighting)
        if not was_said:
            _read_content(item, sighting)
        if not was_told and sighting.said is not None:
            _keep(place, item, sighting.said)
    for item in stored.data or ():
        sighting.add_state_id(item.id)
    if stored.usage is not None:
        _read_usage(stored.usage, sighting)
    details = stored.incomplete_details
    if details is not None and details.reason is not None:
        sighting.finish_reason = details.reason
    elif stored.status is not None and stored.status not in _UNFINISHED:
        sighting.finish_reason = stored.status
    if (error := _error_of(stored)) is not None:
        sighting.fail(error, "failed" if stored.status == "failed" else ERROR_FINISH)


def _error_of(stored: _Stored) -> object | None:
    error = reported(stored.error, stored.type, stored.object, stored.code)
    return {} if error is None and stored.status == "failed" else error


def _read_item(item: _Item, sighting: ObservedResponse) -> None:
    sighting.add_state_id(item.id)
    if item.call_id is not None and item.type is not None and item.type.endswith("_call"):
        sighting.has_first_token = True
        # Calls of built-in tools (local_shell_call, computer_call) are named by their type alone.
        name = item.name or item.type.removesuffix("_call")
        if item.namespace:
            name = f"{item.namespace}__{name}"
        sighting.add_call(item.call_id, name, key=item.call_id, is_json=item.type == "function_call")


def _keep(place: int, item: _Item, said: ResponseContent) -> None:
    kind = item.type or ""
    if kind == "message":
        said.add(place, Kind.TEXT, joined_text(item.content))
    elif kind == "reasoning":
        thoughts = (joined_text(item.summary), joined_text(item.content))
        said.add(place, Kind.THOUGHT, "\n".join(filter(None, thoughts)))
    elif kind.endswith("_call"):
        arguments = read_text(item.arguments) or read_text(item.input)
        name = item.name or kind.removesuffix("_call")
        said.add(place, Kind.CALL, arguments, id=item.call_id or item.id, name=name)


def _count(event: bytes, sighting: ObservedResponse) -> None:
    is_large = len(event) > _UNPACED_BELOW_BYTES
    sighting.streamed_bytes += len(event) - _FIELDS_BYTES if is_large else _TOKEN_BYTES


def _read_content(item: _Item, sighting: ObservedResponse) -> None:
    if item.type == "message":
        said = joined_text(item.content)
        sighting.add_text(said)
        if not said:
            sighting.count(item.content)
    elif item.type == "reasoning":
        sighting.count(item.summary)
        sighting.count(item.content)
    elif item.call_id is not None:
        if arguments := read_text(item.arguments) or read_text(item.input):
            sighting.set_arguments(item.call_id, arguments)
        sighting.close_call(item.call_id)


def _read_usage(usage: _Usage, sighting: ObservedResponse) -> None:
    details = usage.input_tokens_details
    cached_tokens = None if details is None else details.cached_tokens
    sighting.merge_usage(usage.input_tokens, cached_tokens, usage.output_tokens)
