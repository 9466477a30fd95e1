"""The state of one response while it is read: protocol readers write it, the observer's user reads it."""

from typing import Protocol as Interface

import msgspec

from gateway.domain.ids import clean_name, is_well_formed_id
from gateway.domain.request import Answer, ToolCall, Usage, Utterance
from gateway.identity.items import as_run, without_thought
from gateway.responses.content import ResponseContent
from gateway.responses.errors import error_status
from gateway.responses.response_text import ResponseText
from gateway.wire.hashing import text_hash
from gateway.wire.object_end import ObjectEnd

MAX_CALLS = 1024
MAX_STATE_IDS = 1024
# Text and arguments of calls. A longer response is not recognised by its content.
MAX_OUTPUT_BYTES = 2**18
# More in a usage count is a fault of the engine's.
MAX_TOKENS = 2**40

# The finish reason of an answer that began well and then reported an error in its body.
ERROR_FINISH = "error"


class CachedTokens(msgspec.Struct):
    """Beside the count of a prompt's tokens."""

    cached_tokens: int | None = None


class _OpenCall(msgspec.Struct, eq=False):
    """A call whose arguments are still coming."""

    call: ToolCall
    end: ObjectEnd | None
    """Of its arguments; None if they are any text."""
    seen: int = 0
    """Bytes of its arguments in which the end was looked for: it is nowhere but at a brace."""


class ObservedResponse:
    """Grows as an answer is read. Ids that no request could bring back are not kept."""

    has_first_token = False
    """The model has begun: content, reasoning or a tool call was seen; or the whole answer was."""
    has_terminal = False
    usage = Usage()
    finish_reason: str | None = None
    error_status = 0
    """What an error that it reports would be as a status."""
    response_id: str | None = None
    model: str | None = None
    other_bytes = 0
    """Output beside the utterance: thoughts, refusals, further choices, unread events."""
    streamed_bytes = 0
    """Of texts that a stream repeats when they are complete."""
    content: ResponseContent | None = None
    """Collects the whole content, where it is needed."""
    milestones = 0
    """Calls and ids seen, and calls that were closed."""

    def __init__(self) -> None:
        self.tool_calls: list[ToolCall] = []
        self.call_ids: set[str] = set()
        # Those whose arguments are complete, in the order in which they became so.
        self.closed_calls: list[ToolCall] = []
        self._open_calls: dict[object, _OpenCall] = {}
        self._closed_keys: list[object] = []
        # Ids of what the replica stores for later requests, in order.
        self.state_ids: list[str] = []
        self._known_state_ids: set[str] = set()
        # Not lists of pieces: a stream has one for each token, and a small string takes 60 bytes.
        self._text = bytearray()
        self._arguments: dict[object, bytearray] = {}
        self._bytes_left = MAX_OUTPUT_BYTES

    def fail(self, error: object, finish_reason: str = ERROR_FINISH) -> None:
        self.finish_reason, self.has_terminal = finish_reason, True
        self.error_status = error_status(error)

    def finish(self, reason: str | None) -> None:
        if reason is not None:
            self.finish_reason = reason
        if reason == ERROR_FINISH:
            self.fail(None)

    def failure(self, *, is_known: bool, lacks: str = "truncated") -> str:
        """`Answer.failure`. `is_known`: all of the answer was read; `lacks`: what it is without its end."""
        if self.error_status:
            return "error" if self.error_status >= 500 else "rejected"
        if self.finish_reason is not None or not is_known:
            return ""
        return lacks if not self.has_terminal else "" if self.has_first_token else "empty"

    def add_call(
        self,
        call_id: str | None,
        name: str | None,
        *,
        key: object = None,
        is_json: bool = True,
        is_at_engine: bool = False,
    ) -> None:
        """Adds a tool call once its id and name are known. A repeated call counts once.

        `key`: the call's key in `add_arguments`; `is_json`: its arguments are an object, as mostly.
        """
        if not call_id or not name or call_id in self.call_ids or len(self.tool_calls) >= MAX_CALLS:
            return
        if is_well_formed_id(call_id):
            self.call_ids.add(call_id)
            call = ToolCall(call_id, clean_name(name), is_at_engine)
            self.tool_calls.append(call)
            self.milestones += 1
            if key is not None and not is_at_engine and self._bytes_left >= 0:
                self._open_calls[key] = _OpenCall(call, ObjectEnd() if is_json else None)
                if key in self._arguments:  # its name came late
                    self._scan(key)

    def add_names(self, response_id: object, model: object) -> None:
        if self.response_id is None and isinstance(response_id, str) and is_well_formed_id(response_id):
            self.response_id = response_id
        if self.model is None and isinstance(model, str) and model:
            self.model = clean_name(model)

    def add_state_id(self, state_id: str | None) -> None:
        if not state_id or state_id in self._known_state_ids or len(self.state_ids) >= MAX_STATE_IDS:
            return
        if is_well_formed_id(state_id):
            self._known_state_ids.add(state_id)
            self.state_ids.append(state_id)
            self.milestones += 1

    def count(self, value: object) -> None:
        """Counts output that is not in the utterance."""
        if type(value) is str:
            is_ascii = value.isascii()
            self.other_bytes += len(value) if is_ascii else len(value.encode("utf-8", "surrogatepass"))
        elif value:
            self.other_bytes += len(msgspec.json.encode(value))

    def add_text(self, text: str | None) -> None:
        if text:
            piece = text.encode("utf-8", "surrogatepass")
            self._bytes_left -= len(piece)
            if self._bytes_left >= 0:
                self._text += piece
            else:
                self._drop_output()

    def add_arguments(self, call: object, piece: str | None) -> bool:
        """Adds a piece of a call's arguments; whether they are complete with it. `call`: any key of the
        protocol's."""
        known = self._arguments.get(call)
        if not piece:
            return False
        if known is None and len(self._arguments) >= MAX_CALLS:
            self.count(piece)
            return False
        encoded = piece.encode("utf-8", "surrogatepass")
        self._bytes_left -= len(encoded)
        if self._bytes_left < 0:
            self._drop_output()
            return False
        if known is None:
            self._arguments[call] = bytearray(encoded)
        else:
            known += encoded
        return b"}" in encoded and self._scan(call)

    def set_arguments(self, call: object, whole: str) -> None:
        known = self._arguments.get(call)
        if known is not None:
            self._bytes_left += len(known)
            known.clear()
        if (opened := self._open_calls.get(call)) is not None:
            opened.end, opened.seen = opened.end and ObjectEnd(), 0
        self.add_arguments(call, whole)

    def _scan(self, key: object) -> bool:
        opened = self._open_calls.get(key)
        if opened is None or opened.end is None or not opened.end.feed(self._unseen(key, opened)):
            return False
        self._close(key, opened)
        return True

    def _unseen(self, key: object, opened: _OpenCall) -> str:
        known = self._arguments.get(key, b"")
        unseen = known[opened.seen :].decode("utf-8", "surrogatepass")
        opened.seen = len(known)
        return unseen

    def close_call(self, key: object) -> None:
        opened = self._open_calls.get(key)
        if opened is None:
            return
        if opened.end is not None:
            opened.end.feed(self._unseen(key, opened))
        if opened.end is None or not opened.end.is_inside:
            self._close(key, opened)

    def _close(self, key: object, opened: _OpenCall) -> None:
        del self._open_calls[key]
        self.closed_calls.append(opened.call)
        self.milestones += 1
        self._closed_keys.append(key)

    def arguments_of(self, number: int) -> bytes | None:
        """Of a closed call, by its place among them: as they came. None if they were too much to be kept."""
        return bytes(self._arguments.get(self._closed_keys[number], b"")) if self._bytes_left >= 0 else None

    @property
    def has_output(self) -> bool:
        return bool(self._text or self._arguments)

    def merge_usage(self, prompt: int | None, cached: int | None, output: int | None) -> None:
        counts = {"prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": output}
        known = {name: n for name, n in counts.items() if n is not None and 0 <= n < MAX_TOKENS}
        self.usage = msgspec.structs.replace(self.usage, **known)

    def answer(self, status: int, failure: str = "") -> Answer:
        return Answer(
            status=status,
            failure=failure,
            tool_calls=tuple(self.tool_calls),
            utterance=self._utterance(),
            state_ids=tuple(self.state_ids),
            usage=self.usage,
            content_bytes=max(MAX_OUTPUT_BYTES - self._bytes_left + self.other_bytes, self.streamed_bytes),
            finish_reason=clean_name(self.finish_reason) if self.finish_reason else self.finish_reason,
            response_id=self.response_id,
            model=self.model,
            has_terminal=self.has_terminal,
        )

    def _drop_output(self) -> None:
        self._text.clear()
        self._arguments.clear()
        self._open_calls.clear()

    def _utterance(self) -> Utterance:
        if self._bytes_left < 0:
            return Utterance()
        response_text = without_thought(self._text.decode("utf-8", "surrogatepass"))
        arguments = tuple(map(bytes, self._arguments.values()))
        return ResponseText(text_hash(as_run(response_text)), response_text, arguments)


class AnswerReader(Interface):
    """Reads one protocol's answers. The `read_` methods may raise one of `body.UNREADABLE`."""

    knows_answers: bool
    """What holds none of its protocol is a failure."""

    def take(self, chunk: bytes, observed: ObservedResponse) -> bool | None:
        """Takes in whole events that plainly bring a piece of text or of arguments, and need not be decoded:
        whether they bring a milestone. None if these are others; then nothing was taken.

        Cheap, and certain: no quote stands unescaped inside a JSON string, so a field's name in quotes
        is a field's name. None is always right.
        """

    def learn(self, event: bytes) -> None:
        """One event as it came, behind the first token, to know others like it by."""

    def read_event(self, data: bytes, observed: ObservedResponse) -> None:
        """One event of a stream."""

    def read_body(self, data: bytes, observed: ObservedResponse) -> None:
        """A whole answer that was not streamed."""
