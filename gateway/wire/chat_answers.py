"""Answers of `/v1/chat/completions` and `/v1/completions`: one shape, streamed or whole.

A streamed tool call comes in pieces that share an index; its id and name stand in the first piece, and
arguments follow. Engines differ in small ways, all of which occur: the id repeated in every piece, the
name one piece late, no index at all, index 0 for every call. So a new id under an old index is a new
call, and a piece is a call as soon as its id and name are known.
"""

import msgspec
from msgspec import Raw

from gateway.domain.request import Usage
from gateway.wire.body import ABSENT
from gateway.wire.sighting import ERROR_FINISH, MAX_CALLS, Sighting

_DONE = b"[DONE]"
_NOTHING = frozenset({b"", b"null", b'""', b"[]", b"{}"})


class _Function(msgspec.Struct):
    name: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: _Function | None = None


class _Delta(msgspec.Struct):
    """A streamed delta, or a whole message."""

    tool_calls: list[_Call] | None = None
    content: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    refusal: Raw = ABSENT
    function_call: Raw = ABSENT


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    text: Raw = ABSENT
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Raw = ABSENT


_COMPLETION = msgspec.json.Decoder(_Completion)


class ChatReader:
    """Reads chat completions and text completions."""

    def __init__(self) -> None:
        self._open_calls: dict[tuple[int, int], tuple[str, str | None]] = {}
        """Per choice and index: the id of the newest call there, and its name if known."""

    def read_event(self, data: bytes, sighting: Sighting) -> None:
        if data.strip() == _DONE:
            sighting.has_terminal = True
        else:
            self._read(_COMPLETION.decode(data), sighting)

    def read_body(self, data: bytes, sighting: Sighting) -> None:
        self._read(_COMPLETION.decode(data), sighting)
        sighting.has_first_token = sighting.has_terminal = True

    def _read(self, completion: _Completion, sighting: Sighting) -> None:
        for choice in completion.choices or ():
            delta = choice.delta or choice.message or _Delta()
            if not sighting.has_first_token and _has_content(choice, delta):
                sighting.has_first_token = True
            for call in delta.tool_calls or ():
                self._read_call(choice.index or 0, call, sighting)
            if choice.finish_reason is not None:
                sighting.finish_reason = choice.finish_reason
        if completion.usage is not None:
            sighting.merge_usage(_to_usage(completion.usage))
        if bytes(completion.error) not in _NOTHING:
            sighting.finish_reason = ERROR_FINISH

    def _read_call(self, choice: int, call: _Call, sighting: Sighting) -> None:
        place = (choice, call.index or 0)
        function = call.function or call.custom or _Function()
        old_id, old_name = self._open_calls.get(place, ("", None))
        is_same = call.id is None or call.id in ("", old_id)
        call_id = old_id if is_same else call.id or ""
        name = function.name or (old_name if is_same else None)
        if len(self._open_calls) < MAX_CALLS or place in self._open_calls:
            self._open_calls[place] = (call_id, name)
        sighting.add_call(call_id, name)


def _has_content(choice: _Choice, delta: _Delta) -> bool:
    parts = (
        choice.text,
        delta.content,
        delta.reasoning,
        delta.reasoning_content,
        delta.refusal,
        delta.function_call,
    )
    return bool(delta.tool_calls) or any(bytes(part) not in _NOTHING for part in parts)


def _to_usage(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details or _PromptDetails()
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=details.cached_tokens,
        output_tokens=usage.completion_tokens,
    )
