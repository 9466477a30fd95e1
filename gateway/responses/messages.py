"""Answers of `/v1/messages` (Anthropic), streamed or whole.

Prompt tokens are counted in three parts there: read from the cache, written to it, and neither.
"""

from typing import Any

import msgspec
from msgspec import Raw

from gateway.responses.content import Kind, ResponseContent
from gateway.responses.errors import ErrorFields
from gateway.responses.event_template import CALL, TEXT, Piece, Pieces
from gateway.responses.observed import ObservedResponse
from gateway.wire.body import ABSENT


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Block(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    input: Raw = ABSENT


class _Message(ErrorFields):
    type: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    id: Any = None
    model: Any = None


class _Delta(msgspec.Struct):
    stop_reason: str | None = None
    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None


class _Event(ErrorFields):
    type: str | None = None
    message: _Message | None = None
    index: int | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


_NO_INPUT = frozenset({b"", b"{}", b"null"})
_EVENT = msgspec.json.Decoder(_Event)
_MESSAGE = msgspec.json.Decoder(_Message)


class MessagesReader:
    knows_answers = True

    def __init__(self) -> None:
        self._usage = _Usage()
        self._pieces = Pieces(_piece_of)
        self.learn = self._pieces.learn

    def take(self, chunk: bytes, observed: ObservedResponse) -> bool | None:
        pieces = self._pieces
        text = pieces.text_of(chunk)
        if text is None:
            return None
        kind = pieces.kind
        if observed.content is not None and text:
            observed.content.add(pieces.place, kind, text)
        if kind is TEXT:
            observed.add_text(text)
        elif kind is CALL:
            return observed.add_arguments(pieces.place, text)
        else:
            observed.count(text)
        return False

    def read_event(self, data: bytes, observed: ObservedResponse) -> None:
        event = _EVENT.decode(data)
        match event.type:
            case "content_block_delta":
                observed.has_first_token = True
                if event.delta is not None:
                    observed.add_text(event.delta.text)
                    observed.count(event.delta.thinking)
                    observed.add_arguments(event.index, event.delta.partial_json)
                    if observed.content is not None:
                        _keep_piece(event.index, event.delta, observed.content)
            case "content_block_start" if event.content_block is not None:
                self._read_block(event.content_block, observed, key=event.index)
                if observed.content is not None:
                    _keep_block(event.index, event.content_block, observed.content)
            case "content_block_stop":
                observed.close_call(event.index)
            case "message_start" if event.message is not None:
                observed.add_names(event.message.id, event.message.model)
                self._read_usage(event.message.usage, observed)
            case "message_delta":
                observed.finish(event.delta.stop_reason if event.delta else None)
                self._read_usage(event.usage, observed)
            case "message_stop":
                observed.has_terminal = True
            case _:  # errors, pings, and what is not known yet
                _read_error(event, observed)

    def read_body(self, data: bytes, observed: ObservedResponse) -> None:
        message = _MESSAGE.decode(data)
        observed.add_names(message.id, message.model)
        for place, block in enumerate(message.content or ()):
            self._read_block(block, observed)
            observed.close_call(block.id)
            if observed.content is not None:
                _keep_block(place, block, observed.content)
        observed.finish(message.stop_reason)
        _read_error(message, observed)
        self._read_usage(message.usage, observed)
        observed.has_terminal |= message.content is not None or message.stop_reason is not None
        observed.has_first_token |= bool(message.content) or message.stop_reason is not None

    def _read_block(self, block: _Block, observed: ObservedResponse, key: int | None = None) -> None:
        if block.type is not None and block.type.endswith("tool_use"):
            observed.has_first_token = True
            is_whole = bytes(block.input) not in _NO_INPUT  # streamed, it begins empty and grows
            is_at_engine = block.type != "tool_use"
            place = block.id if is_whole or key is None else key
            observed.add_call(block.id, block.name, key=place, is_at_engine=is_at_engine)
            if is_whole:
                observed.add_arguments(block.id, bytes(block.input).decode())
        elif block.type == "text":
            if block.text:
                observed.add_text(block.text + "\n")
        else:
            observed.count(block.thinking)

    def _read_usage(self, usage: _Usage | None, observed: ObservedResponse) -> None:
        if usage is None:
            return
        known = {name: value for name, value in msgspec.structs.asdict(usage).items() if value is not None}
        self._usage = merged = msgspec.structs.replace(self._usage, **known)
        prompt_tokens = merged.input_tokens
        if prompt_tokens is not None:
            prompt_tokens += (merged.cache_read_input_tokens or 0) + (merged.cache_creation_input_tokens or 0)
        observed.merge_usage(prompt_tokens, merged.cache_read_input_tokens, merged.output_tokens)


def _read_error(part: _Event | _Message, observed: ObservedResponse) -> None:
    if (error := part.reported()) is not None:
        observed.fail(error)


def _piece_of(data: bytes) -> Piece | None:
    event = _EVENT.decode(data)
    delta = event.delta
    if event.type != "content_block_delta" or delta is None or event.content_block or event.message:
        return None
    values = (delta.stop_reason, delta.signature, delta.text, delta.partial_json, delta.thinking)
    if event.usage is not None or sum(each is not None for each in values) != 1:
        return None
    match delta:
        case _Delta(type="text_delta", text=str(text)):
            return Piece(Kind.TEXT, event.index, text)
        case _Delta(type="input_json_delta", partial_json=str(text)):
            return Piece(Kind.CALL, event.index, text)
        case _Delta(type="thinking_delta", thinking=str(text)):
            return Piece(Kind.THOUGHT, event.index, text)
        case _:
            return None


def _keep_block(place: int | None, block: _Block, content: ResponseContent) -> None:
    match block.type:
        case "text":
            content.add(place, Kind.TEXT, block.text)
        case "thinking":
            content.add(place, Kind.THOUGHT, block.thinking, signature=block.signature)
        case "tool_use":
            arguments = bytes(block.input).decode() if bytes(block.input) not in _NO_INPUT else None
            content.add(place, Kind.CALL, arguments, id=block.id, name=block.name)
        case _:
            content.is_known = False


def _keep_piece(place: int | None, delta: _Delta, content: ResponseContent) -> None:
    match delta.type:
        case "text_delta":
            content.add(place, Kind.TEXT, delta.text)
        case "thinking_delta":
            content.add(place, Kind.THOUGHT, delta.thinking)
        case "signature_delta":
            content.add(place, Kind.THOUGHT, signature=delta.signature)
        case "input_json_delta":
            content.add(place, Kind.CALL, delta.partial_json)
        case _:
            content.is_known = False
