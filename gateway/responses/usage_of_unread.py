"""Token usage of responses of which nothing else is read: embeddings, scores, rerankings, engines' own
protocols, whole responses that are too large.

These are megabytes of numbers. Engines write their usage at the end, vLLM's reranking at the beginning, so a
few kilobytes of both are kept. Quotes are escaped in JSON strings, so no string contains `"usage":`; nested
objects may.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gateway.domain.request import Answer, Usage
from gateway.responses.observed import MAX_TOKENS, CachedTokens
from gateway.wire.body import UNREADABLE

_KEPT_BYTES: Final = 4096
# Of what is inflated for it.
MAX_BYTES: Final = 2**28
_USAGE: Final = re.compile(rb'"(?:usage|billed_units)"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*){0,8}\})')
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_DEEPEST: Final = 2
METADATA: Final = re.compile(rb"\nmetadata:[^\r\n]*", re.IGNORECASE)


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class _Usage(_Counts):
    tokens: _Counts | None = None
    billed_units: _Counts | None = None


class _Whole(msgspec.Struct):
    usage: _Usage | None = None


_DECODE: Final = msgspec.json.Decoder(_Usage).decode
# Without making values of the rest.
_DECODE_WHOLE: Final = msgspec.json.Decoder(_Whole).decode


class AnswerEnds:
    """Of an answer, its beginning and its end."""

    def __init__(self, *, is_generated: bool, metadata: bytes = b"") -> None:
        """`is_generated`: a model wrote it, and bytes count where nothing else does; `metadata`: a field of
        its head."""
        self._is_generated, self._metadata = is_generated, metadata
        self._start = self._end = b""
        self._seen_bytes = 0
        self.whole = b""

    def keep(self, chunk: bytes) -> None:
        self._seen_bytes += len(chunk)
        if len(self._start) < _KEPT_BYTES:
            self._start += chunk[: _KEPT_BYTES - len(self._start)]
        self._end = (self._end + chunk[-_KEPT_BYTES:])[-_KEPT_BYTES:]

    def counted(self, answer: Answer) -> Answer:
        if answer.status >= 400 or answer.usage.prompt_tokens is not None:
            return answer
        usage = self._usage()
        content_bytes = self._seen_bytes if self._is_generated and usage.output_tokens is None else 0
        return msgspec.structs.replace(answer, usage=usage, content_bytes=content_bytes)

    def _found(self) -> Iterator[_Usage]:
        with contextlib.suppress(*UNREADABLE):
            if self.whole and (usage := _DECODE_WHOLE(self.whole).usage) is not None:
                yield usage
        start, end = self._start, self._end
        ends = [each for each in _USAGE.finditer(end) if -_depth(end[each.end() :]) <= _DEEPEST]
        starts = [each for each in _USAGE.finditer(start) if _depth(start[: each.start()]) <= _DEEPEST]
        for each in (*ends[::-1], *starts, *_USAGE.finditer(self._metadata)):
            with contextlib.suppress(*UNREADABLE):
                yield _DECODE(each[1])

    def _usage(self) -> Usage:
        for whole in self._found():
            read = whole.tokens or whole.billed_units or whole
            prompt = read.input_tokens if read.prompt_tokens is None else read.prompt_tokens
            output = read.output_tokens if read.completion_tokens is None else read.completion_tokens
            if prompt is None and read.total_tokens is not None:
                prompt = read.total_tokens - (output or 0)
            cached = read.prompt_tokens_details.cached_tokens if read.prompt_tokens_details else None
            counts = prompt or 0, cached or 0, output or 0
            if prompt is not None and min(counts) >= 0 and max(counts) < MAX_TOKENS:
                output = output if self._is_generated else output or 0
                return Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
        return Usage()


def _depth(text: bytes) -> int:
    bare = _TEXT.sub(b"", text)
    return bare.count(b"{") - bare.count(b"}")


class UnreadUsageObserver(AnswerEnds):
    """In all but usage it is `inner`."""

    def __init__(self, inner: Any, *, is_generated: bool, metadata: bytes = b"") -> None:
        super().__init__(is_generated=is_generated, metadata=metadata)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def events_left(self) -> int:
        """Usage is at the end, however little `inner` reads."""
        return max(0, self._inner.events_left) if self._seen_bytes < MAX_BYTES else -1

    def feed(self, chunk: bytes) -> bool:
        self.keep(chunk)
        return bool(self._inner.feed(chunk))

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        return self.counted(self._inner.answer(status, is_over=is_over))
