"""How many tokens an answer says that it took, where no more of it is read: embeddings, scores, rerankings.

These are megabytes of numbers, and engines write their usage at the end, vLLM's reranking at the beginning. A
few kilobytes of both are kept, and no more. In a JSON text a quote is escaped, so no text says `"usage":`.
"""

import re
from typing import Any, Final

import msgspec

from gateway.domain.request import Answer, Usage
from gateway.wire.body import UNREADABLE
from gateway.wire.inflate import INFLATABLE, Inflater, InflationError

_KEPT_BYTES: Final = 4096
"""Of the beginning, and of the end."""
_USAGE: Final = re.compile(rb'"(?:usage|billed_units)"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*){0,8}\})')


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


_DECODE: Final = msgspec.json.Decoder(_Usage).decode


class UsageObserver:
    """In all but usage it is `inner`."""

    def __init__(self, inner: Any, coding: str, *, writes: bool = False) -> None:
        """`coding`: of the answer's content; `writes`: where no usage is reported, bytes tell how much was
        written."""
        self._writes, self._bytes = writes, 0
        self._inner = inner
        self._inflater = Inflater(coding) if coding in INFLATABLE else None
        self._start = self._end = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feed(self, chunk: bytes) -> bool:
        try:
            for piece in (chunk,) if self._inflater is None else self._inflater.feed(chunk):
                self._bytes += len(piece)
                if len(self._start) < _KEPT_BYTES:
                    self._start += piece[: _KEPT_BYTES - len(self._start)]
                self._end = (self._end + piece[-_KEPT_BYTES:])[-_KEPT_BYTES:]
        except InflationError:
            self._inflater = None
        return bool(self._inner.feed(chunk))

    def answer(self, status: int, *, is_over: bool = False) -> Answer:
        answer: Answer = self._inner.answer(status, is_over=is_over)
        if status >= 400:
            return answer
        said_bytes = self._bytes if self._writes else 0
        return msgspec.structs.replace(answer, usage=self._usage(), said_bytes=said_bytes)

    def _usage(self) -> Usage:
        for found in [*_USAGE.finditer(self._end)][::-1] or _USAGE.finditer(self._start):
            try:
                read = _DECODE(found[1])
            except UNREADABLE:
                continue
            prompt = read.input_tokens if read.prompt_tokens is None else read.prompt_tokens
            output = read.output_tokens if read.completion_tokens is None else read.completion_tokens
            cached = read.prompt_tokens_details.cached_tokens if read.prompt_tokens_details else None
            if prompt is not None and prompt >= 0:
                return Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output or 0)
        return Usage()
