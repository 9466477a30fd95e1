"""A conversation with a client library: what was said, as the library parsed it, and what is said next.

One dialogue serves a library's sync and its async client, whole answers and streams.
"""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str | Mapping[str, Any]


@dataclass(kw_only=True)
class Said:
    """One answer, as the SDK parsed it."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    receipt: Mapping[str, str] = field(default_factory=dict)

    @property
    def session(self) -> str:
        return self.receipt["x-turnpike-session"]

    @property
    def source(self) -> str:
        return self.receipt["x-turnpike-source"]


class Dialogue(ABC):
    """A conversation that remembers; `client` is an SDK's sync or async client."""

    def __init__(self, client: Any, prompt: str, *, streams: bool) -> None:
        self._client, self._streams = client, streams
        self.history: list[Any] = [{"role": "user", "content": prompt}]

    async def ask(self) -> Said:
        create = self._resource()
        if not self._streams:
            raw = await _settled(create.with_raw_response.create(**self._request()))
            said = self._whole(await _settled(raw.parse()))
        else:
            async with _entered(create.with_streaming_response.create(**self._request(), stream=True)) as raw:
                said = await self._streamed(await _settled(raw.parse()))
        said.receipt = dict(raw.headers)
        self._remember(said)
        return said

    async def stream(self) -> Any:
        """Sends the history; the answer's chunks, as the SDK parses them."""
        return await _settled(self._resource().create(**self._request(), stream=True))

    @abstractmethod
    def _resource(self) -> Any: ...
    @abstractmethod
    def _request(self) -> dict[str, Any]: ...
    @abstractmethod
    def _whole(self, answer: Any) -> Said: ...
    @abstractmethod
    async def _streamed(self, events: Any) -> Said: ...
    @abstractmethod
    def _remember(self, said: Said) -> None: ...
    @abstractmethod
    def tell(self, call: Call, result: str) -> None:
        """A tool's result, for the next question."""


def arguments(call: Call) -> Mapping[str, Any]:
    return json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def each(events: Any) -> AsyncIterator[Any]:
    if hasattr(events, "__aiter__"):
        async for event in events:
            yield event
    else:
        for event in events:
            yield event


@asynccontextmanager
async def _entered(manager: Any) -> AsyncIterator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value
