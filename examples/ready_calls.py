"""Tool calls of a streamed answer, each as soon as its arguments are complete.

    async for call in ready_calls(stream):
        tasks[call.id] = asyncio.create_task(run(call.name, call.arguments))

Source: Sutradhara (§4.2): a tool is dispatched when its call is decoded, not when the answer is.

The chunks are those of OpenAI's SDK (chat completions and Responses), of Anthropic's (Messages) and of
LangChain (message chunks), as objects or as dictionaries; also the events of their streaming helpers and of
openai-agents, which hold such chunks. Others are passed over.

This module needs the standard library and nothing else: copy it into your program.

Invariants: a call comes at most once, at the chunk that completes its arguments, and none whose arguments do
not end, or are not JSON. Whoever goes through the whole answer afterwards finds every call, those too.
"""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_WHOLE: Final = frozenset({"tool_calls", "stop", "function_call", "tool_use", "end_turn", "stop_sequence"})
"""Finish reasons of answers that are not cut short."""
_STRING: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""Of a string, what is left up to its closing quote."""
_BETWEEN: Final = re.compile(r'(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""What is up to the next brace, or to the start of a string that does not end here."""


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A tool call that can be run."""

    id: str
    name: str
    arguments: Any
    """Parsed: a dictionary. The text itself for a tool that takes text (OpenAI's custom tools)."""
    raw: str
    """The arguments as they came."""


async def ready_calls(
    stream: AsyncIterable[Any], *, on_chunk: Callable[[Any], object] | None = None
) -> AsyncIterator[ReadyCall]:
    """The calls of an answer, each when it is complete; `on_chunk` gets every chunk first, in order.

    The stream is read no faster than calls are taken: start a call's tool, and go on.
    """
    reader = CallReader()
    async for chunk in stream:
        if on_chunk is not None:
            on_chunk(chunk)
        for call in reader.feed(chunk):
            yield call


def ready_calls_sync(
    stream: Iterable[Any], *, on_chunk: Callable[[Any], object] | None = None
) -> Iterator[ReadyCall]:
    """`ready_calls` for programs without asyncio."""
    reader = CallReader()
    for chunk in stream:
        if on_chunk is not None:
            on_chunk(chunk)
        yield from reader.feed(chunk)


class CallReader:
    """The same, chunk by chunk, for programs that are called with each. One for each answer."""

    def __init__(self) -> None:
        self._calls: dict[object, _Call] = {}
        """Those that are not complete, by how their protocol tells them apart."""
        self._newest: dict[object, object] = {}
        """In chat completions, by choice and index: the key of the newest call there."""
        self._seen: set[str] = set()
        """Ids of calls that were complete."""

    def feed(self, chunk: Any) -> list[ReadyCall]:
        kind = _get(chunk, "type")
        if kind == "raw_response_event":  # of openai-agents
            return self.feed(_get(chunk, "data"))
        if kind == "chunk":  # of the helper of OpenAI's SDK for chat completions
            return self.feed(_get(chunk, "chunk"))
        if choices := _get(chunk, "choices"):
            return [call for choice in choices for call in self._read_choice(choice)]
        if _get(chunk, "tool_call_chunks") is not None:
            return self._read_langchain(chunk)
        if isinstance(kind, str) and kind.startswith("response."):
            return self._read_response(kind, chunk)
        if isinstance(kind, str) and kind.startswith("content_block_"):
            return self._read_block(kind, chunk)
        return []

    # --- chat completions --------------------------------------------------------------------------

    def _read_choice(self, choice: Any) -> list[ReadyCall]:
        place = _get(choice, "index") or 0
        found = []
        for piece in _get(_get(choice, "delta"), "tool_calls") or ():
            custom = _get(piece, "custom")
            function = custom or _get(piece, "function")
            text = _get(function, "input" if custom else "arguments")
            at = place, _get(piece, "index") or 0
            found += self._add_piece(at, _get(piece, "id"), _get(function, "name"), text, is_json=not custom)
        return found + self._finish(place, _get(choice, "finish_reason"))

    def _read_langchain(self, message: Any) -> list[ReadyCall]:
        found = []
        for piece in _get(message, "tool_call_chunks"):
            at = 0, _get(piece, "index") or 0
            found += self._add_piece(at, _get(piece, "id"), _get(piece, "name"), _get(piece, "args"))
        said = _get(message, "response_metadata")
        return found + self._finish(0, _get(said, "finish_reason") or _get(said, "stop_reason"))

    def _add_piece(
        self,
        at: tuple[int, int],
        call_id: str | None,
        name: str | None,
        text: str | None,
        *,
        is_json: bool = True,
    ) -> list[ReadyCall]:
        key = self._newest.get(at)
        if key is None or (call_id and key != (at, call_id)):  # a new id under an old index is a new call
            key = self._newest[at] = (at, call_id or "")
            self._calls[key] = _Call(call_id or "", name or "", is_json=is_json)
        call = self._calls.get(key)
        if call is None:
            return []
        call.name = call.name or name or ""
        call.is_over = call.add(text or "") or call.is_over
        return self._taken(key) if call.is_over and call.name else []

    def _finish(self, choice: int, reason: str | None) -> list[ReadyCall]:
        if reason not in _WHOLE:
            return []
        keys = [key for at, key in self._newest.items() if at[0] == choice]  # type: ignore[index]
        return [call for key in keys for call in self._closed(key)]

    # --- Responses ---------------------------------------------------------------------------------

    def _read_response(self, kind: str, event: Any) -> list[ReadyCall]:
        place = _get(event, "output_index")
        match kind:
            case "response.output_item.added":
                item = _get(event, "item")
                if _get(item, "type") == "function_call":
                    self._calls[place] = _Call(_get(item, "call_id") or "", _get(item, "name") or "")
            case "response.function_call_arguments.delta":
                if place in self._calls and self._calls[place].add(_get(event, "delta") or ""):
                    return self._taken(place)
            case "response.function_call_arguments.done":
                return self._replaced(place, _get(event, "arguments"))
            case "response.output_item.done":
                return self._read_item(place, _get(event, "item"))
            case "response.completed":
                output = _get(_get(event, "response"), "output") or ()
                return [call for at, item in enumerate(output) for call in self._read_item(at, item)]
            case _:
                pass
        return []

    def _read_item(self, place: object, item: Any) -> list[ReadyCall]:
        is_json = _get(item, "type") == "function_call"
        if not is_json and _get(item, "type") != "custom_tool_call":
            return []
        call_id = _get(item, "call_id")
        if not call_id or call_id in self._seen:
            return []
        self._calls[place] = _Call(call_id, _get(item, "name") or "", is_json=is_json)
        return self._replaced(place, _get(item, "arguments" if is_json else "input"))

    def _replaced(self, place: object, text: str | None) -> list[ReadyCall]:
        call = self._calls.get(place)
        if call is None:
            return []
        call.restart()
        return self._taken(place) if call.add(text or "") else self._closed(place)

    # --- Messages ----------------------------------------------------------------------------------

    def _read_block(self, kind: str, event: Any) -> list[ReadyCall]:
        place = _get(event, "index")
        match kind:
            case "content_block_start":
                block = _get(event, "content_block")
                if _get(block, "type") == "tool_use":
                    self._calls[place] = call = _Call(_get(block, "id") or "", _get(block, "name") or "")
                    given = _get(block, "input")
                    if given and call.add(json.dumps(given)):  # streamed, it begins empty and grows
                        return self._taken(place)
            case "content_block_delta":
                piece = _get(_get(event, "delta"), "partial_json")
                if place in self._calls and self._calls[place].add(piece or ""):
                    return self._taken(place)
            case "content_block_stop":
                return self._closed(place)
            case _:
                pass
        return []

    # --- all of them -------------------------------------------------------------------------------

    def _closed(self, key: object) -> list[ReadyCall]:
        call = self._calls.get(key)
        return self._taken(key) if call is not None and not call.end.is_inside else []

    def _taken(self, key: object) -> list[ReadyCall]:
        call = self._calls.pop(key)
        if call.id:
            self._seen.add(call.id)
        raw = "".join(call.pieces)
        try:
            arguments = json.loads(raw or "{}") if call.is_json else raw
        except ValueError:
            return []
        return [ReadyCall(call.id, call.name, arguments, raw)]


class _Call:
    """A call whose arguments are still coming."""

    __slots__ = ("end", "id", "is_json", "is_over", "name", "pieces")

    def __init__(self, call_id: str, name: str, *, is_json: bool = True) -> None:
        self.id, self.name, self.is_json = call_id, name, is_json
        self.restart()

    def restart(self) -> None:
        self.pieces: list[str] = []
        self.end = ObjectEnd()
        self.is_over = False
        """They have ended, and its name has not come."""

    def add(self, piece: str) -> bool:
        self.pieces.append(piece)
        return self.is_json and self.end.feed(piece)


def _get(of: Any, name: str) -> Any:
    """A field of an object or of a dictionary; None if there is none."""
    return of.get(name) if isinstance(of, dict) else getattr(of, name, None)


class ObjectEnd:
    """Finds where a JSON object ends in text that comes in pieces. Keeps no text.

    Text that begins with something else than an object never ends.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "_is_over")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        """The last piece ended behind a backslash."""
        self._is_over = False
        """The object has ended, or there is none."""

    @property
    def is_inside(self) -> bool:
        return self._depth > 0

    def feed(self, piece: str) -> bool:
        if self._is_over or not piece:
            return False
        at, end = 0, len(piece)
        if not self._depth:
            at = end - len(piece.lstrip())
            if at < end and piece[at] != "{":
                self._is_over = True
                return False
        elif self._is_escaped:
            self._is_escaped = False
            at = 1
        while True:
            pattern = _STRING if self._is_in_string else _BETWEEN
            at = pattern.match(piece, at).end()  # type: ignore[union-attr]  # both match anything
            if at == end:
                return False
            mark = piece[at]
            at += 1
            if mark == '"':
                self._is_in_string = not self._is_in_string
            elif mark == "{":
                self._depth += 1
            elif mark == "}":
                self._depth -= 1
                if not self._depth:
                    self._is_over = True
                    return True
            else:  # a backslash at the end of the piece
                self._is_escaped = True
                return False
