"""Answers of `/v1/chat/completions` and `/v1/completions`: one shape, streamed or whole.

A streamed tool call comes in pieces that share an index; its id and name stand in the first piece, and
arguments follow. Engines differ in small ways, all of which occur: the id repeated in every piece, the
name one piece late, no index at all, index 0 for every call. So a new id under an old index is a new
call, and a piece is a call as soon as its id and name are known.

What is typed `Any` may be of any type without spoiling the rest; only the type that we look for counts.
"""

from operator import attrgetter
from typing import Any

import msgspec

from gateway.responses.content import Kind, ResponseContent
from gateway.responses.errors import ErrorFields, is_error
from gateway.responses.event_template import CALL, TEXT, THOUGHT, Piece, Pieces
from gateway.responses.observed import MAX_CALLS, CachedTokens, ObservedResponse

_DONE = b"[DONE]"
# Finish reasons of answers that are not cut short.
_WHOLE = frozenset({"tool_calls", "stop", "function_call"})
_NOTHING: tuple[object, ...] = (None, "", [], {})
_THOUGHTS = ("reasoning", "reasoning_content")
_DELTA_FIELDS = ("tool_calls", "content", *_THOUGHTS, "refusal", "function_call", "audio")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None
    input: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: _Function | None = None


class _Delta(msgspec.Struct):
    """A streamed delta, or a whole message."""

    tool_calls: list[_Call] | None = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    function_call: Any = None
    audio: Any = None


_NO_DELTA = _Delta()


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    text: Any = None
    error: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class _Completion(ErrorFields):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    id: Any = None
    model: Any = None


_BESIDE = attrgetter("tool_calls", *_THOUGHTS, "refusal", "function_call", "audio")
_NOTHING_BESIDE = _BESIDE(_NO_DELTA)
_COMPLETION = msgspec.json.Decoder(_Completion)


class ChatReader:
    knows_answers = True

    def __init__(self) -> None:
        # Per choice and index: the id of the newest call there, and its name if known.
        self._open_calls: dict[tuple[int, int], tuple[str, str | None]] = {}
        # Of what was read last.
        self._choices: list[_Choice] | None = None
        self._pieces = Pieces(_piece_of)
        self.learn = self._pieces.learn

    def take(self, chunk: bytes, observed: ObservedResponse) -> bool | None:
        pieces = self._pieces
        text = pieces.text_of(chunk)
        if text is None:
            return None
        kind, content = pieces.kind, observed.content
        if kind is TEXT:
            observed.add_text(text)
            if content is not None:
                content.add(TEXT, TEXT, text)
        elif kind is THOUGHT:
            observed.count(text)
            if content is not None and text:
                field = str(pieces.place)
                content.add(field, THOUGHT, text, field=field)
        else:
            key = (pieces.place, self._open_calls.get(pieces.place, ("", None))[0])  # type: ignore[call-overload]
            if content is not None and not pieces.place[0]:  # type: ignore[index]
                content.add(key, CALL, text, id=key[1])
            return observed.add_arguments(key, text)
        return False

    def read_event(self, data: bytes, observed: ObservedResponse) -> None:
        if data == _DONE or data.strip() == _DONE:
            observed.has_terminal = True
            return
        completion = _COMPLETION.decode(data)
        self._choices = completion.choices
        if not observed.has_first_token:
            observed.has_first_token = any(map(_has_content, completion.choices or ()))
        if observed.response_id is None or observed.model is None:
            observed.add_names(completion.id, completion.model)
        for choice in completion.choices or ():
            message = choice.delta or choice.message
            content = choice.text if message is None else message.content
            if content:
                # Clients go on with the first choice.
                text = None if choice.index else content if type(content) is str else joined_text(content)
                if text:
                    observed.add_text(text)
                else:
                    observed.count(content)
            if observed.content is not None and not choice.index:
                _keep(choice, observed.content)
            if message is not None and _BESIDE(message) != _NOTHING_BESIDE:
                self._read_beside(choice, message, observed)
            if choice.finish_reason is not None:
                self._finished(choice.index or 0, choice.finish_reason, observed)
            if choice.error and is_error(choice.error):
                observed.fail(choice.error)
        if (usage := completion.usage) is not None:
            details = usage.prompt_tokens_details or CachedTokens()
            observed.merge_usage(usage.prompt_tokens, details.cached_tokens, usage.completion_tokens)
        if completion.error or completion.choices is None:
            if (error := completion.reported()) is not None:
                observed.fail(error)

    def read_body(self, data: bytes, observed: ObservedResponse) -> None:
        if data.strip() == _DONE:
            raise ValueError("the end of a stream")
        self.read_event(data, observed)
        observed.has_terminal |= self._choices is not None
        observed.has_first_token |= bool(self._choices)

    def _read_beside(self, choice: _Choice, message: _Delta, observed: ObservedResponse) -> None:
        if thought := message.reasoning or message.reasoning_content:
            observed.count(thought)
        if other := message.refusal or message.function_call or message.audio:
            observed.count(other)
        read_call = self._read_piece if choice.delta is not None else _read_call
        for call in message.tool_calls or ():
            read_call(choice.index or 0, call, observed)

    def _finished(self, index: int, reason: str, observed: ObservedResponse) -> None:
        if self._open_calls and reason in _WHOLE:
            for place in tuple(self._open_calls):
                if place[0] == index:
                    observed.close_call((place, self._open_calls.pop(place)[0]))
        observed.finish(reason)

    def _read_piece(self, choice: int, call: _Call, observed: ObservedResponse) -> None:
        place = (choice, call.index or 0)
        function = call.function or call.custom or _Function()
        old_id, old_name = self._open_calls.get(place, ("", None))
        is_same = call.id is None or call.id in ("", old_id)
        call_id = old_id if is_same else call.id or ""
        name = function.name or (old_name if is_same else None)
        if len(self._open_calls) < MAX_CALLS or place in self._open_calls:
            self._open_calls[place] = (call_id, name)
        key = (place, call_id)
        observed.add_call(call_id, name, key=key, is_json=call.custom is None)
        if function.arguments or function.input:
            _read_arguments(key, function, observed)
        if observed.content is not None and not choice:
            _keep_call(key, call, call_id, observed.content)


def _piece_of(data: bytes) -> Piece | None:
    completion = _COMPLETION.decode(data)
    choices = completion.choices or []
    if completion.usage is not None or completion.error or len(choices) != 1:
        return None
    choice = choices[0]
    delta = choice.delta
    if choice.finish_reason is not None or choice.message is not None or choice.error:
        return None
    if delta is None:
        is_first = type(choice.text) is str and not choice.index
        return Piece(Kind.TEXT, None, choice.text) if is_first else None
    filled = {each: value for each in _DELTA_FIELDS if (value := getattr(delta, each)) is not None}
    if choice.text is not None or len(filled) != 1:
        return None
    [(field, value)] = filled.items()
    if field == "tool_calls":
        return _arguments_in(choice.index or 0, value)
    if type(value) is not str or choice.index:
        return None
    if field == "content":
        return Piece(Kind.TEXT, None, value)
    return Piece(Kind.THOUGHT, field, value) if field in _THOUGHTS else None


def _arguments_in(choice: int, calls: list[_Call]) -> Piece | None:
    if len(calls) != 1 or calls[0].id or calls[0].custom is not None or calls[0].function is None:
        return None
    function = calls[0].function
    if function.name or function.input is not None or type(function.arguments) is not str:
        return None
    return Piece(Kind.CALL, (choice, calls[0].index or 0), function.arguments)


def _keep(choice: _Choice, content: ResponseContent) -> None:
    message = choice.delta or choice.message
    if message is None:
        if type(choice.text) is str:
            content.add(Kind.TEXT, Kind.TEXT, choice.text)
        return
    if any(each not in _NOTHING for each in (message.refusal, message.function_call, message.audio)):
        content.is_known = False
    for field in _THOUGHTS:
        thought = getattr(message, field)
        if type(thought) is str and thought:
            content.add(field, Kind.THOUGHT, thought, field=field)
    if message.content not in _NOTHING:
        content.add(Kind.TEXT, Kind.TEXT, joined_text(message.content))


def _keep_call(place: object, call: _Call, call_id: str | None, content: ResponseContent) -> None:
    function = call.function
    name, piece = (function.name, function.arguments) if function is not None else (None, None)
    if call.custom is not None or not isinstance(piece, str | None):
        content.is_known = False
        function = call.custom or _Function()
        name, piece = function.name, function.input if type(function.input) is str else None
    content.add(place, Kind.CALL, piece, id=call_id, name=name)


def _read_call(choice: int, call: _Call, observed: ObservedResponse) -> None:
    function = call.function or call.custom
    if function is not None:
        key = call.id or call.index
        observed.add_call(call.id, function.name, key=key, is_json=False)
        _read_arguments(key, function, observed)
        arguments = function.arguments
        if call.custom is not None or not isinstance(arguments, str) or arguments.rstrip().endswith("}"):
            observed.close_call(key)  # else it was cut
        if observed.content is not None and not choice:
            _keep_call(call.id, call, call.id, observed.content)


def _read_arguments(call: object, function: _Function, observed: ObservedResponse) -> None:
    for piece in (function.arguments, function.input):
        if type(piece) is str:
            observed.add_arguments(call, piece)


def joined_text(content: object) -> str | None:
    if type(content) is str:
        return content
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join([text for text in texts if isinstance(text, str)])


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta or _NO_DELTA
    thoughts = delta.reasoning, delta.reasoning_content
    for part in (delta.content, delta.tool_calls, choice.text, *thoughts, delta.refusal, delta.function_call):
        if part not in _NOTHING:
            return True
    return delta.audio not in _NOTHING
