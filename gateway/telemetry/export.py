"""Traces on their way to a collector, by OTLP/HTTP.

Records become spans as they are handed over, a few hundred at a time and on the loop itself: a thread that
computes would hold the interpreter for milliseconds at a time, and records that are kept for long push what
requests need out of the processor's caches. Sending is the loop's work, too, of which there is never more
than one at a time.

Invariants: the spans that wait are bounded; what a collector does not take in time, or
refuses, is dropped and counted, and nobody waits for it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

import aiohttp
from opentelemetry.sdk.resources import Resource

from gateway import __version__
from gateway.config.load import ConfigError
from gateway.config.otel import OtelConfig
from gateway.domain.records import Record
from gateway.telemetry.otlp import encode_request, encode_span
from gateway.telemetry.spans import Spans
from gateway.telemetry.trace_context import TraceContexts

_log: Final = logging.getLogger(__name__)
_SEND_PERIOD_S: Final = 1.0
_SPANS_AT_ONCE: Final = 512
_BACKOFF_S: Final = (1.0, 2.0, 5.0, 10.0)
_AT_THE_END_S: Final = 3.0
_LATER: Final = frozenset((408, 429, 502, 503, 504))


class TraceExport:
    """`take` is for the driver."""

    def __init__(
        self,
        config: OtelConfig,
        contexts: TraceContexts,
        environ: Mapping[str, str],
        *,
        max_sessions: int,
        clock: Callable[[], float],
    ) -> None:
        """Raises ConfigError for a variable that is not there."""
        assert config.endpoint is not None
        self._endpoint = config.endpoint
        self._timeout_s = config.timeout_s
        self._max_pending = config.max_pending
        self._clock = clock
        self._headers = {**config.headers, "Content-Type": "application/x-protobuf"}
        if config.authorization_env is not None:
            authorization = environ.get(config.authorization_env, "").strip()
            if not authorization:
                raise ConfigError(f"otel.authorization_env: {config.authorization_env} is not set, or empty")
            self._headers["Authorization"] = authorization
        named = Resource.create({"service.name": config.service_name, "service.version": __version__})
        self._resource = tuple((key, _plain(value)) for key, value in named.attributes.items())
        """With what `OTEL_RESOURCE_ATTRIBUTES` says, as everywhere."""
        self._spans = Spans(contexts, spans_per_s=config.max_spans_per_s, max_sessions=max_sessions)
        self._pending: deque[bytes] = deque()
        self._session: aiohttp.ClientSession | None = None
        self.sent = 0
        self.dropped = 0
        self._failures = 0
        """In a row."""

    @property
    def left_out(self) -> int:
        """Turns that were not traced, because more spans would be made than may be."""
        return self._spans.left_out

    def take(self, records: list[Record]) -> None:
        self._keep([encode_span(span) for span in self._spans.take(records, now=self._clock())])

    def open(self) -> None:
        """To be called before `run`."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    async def run(self) -> None:
        """Endless, for the caller to run as a task."""
        while True:
            pause_s = _SEND_PERIOD_S
            while self._pending:
                if not await self._send():
                    pause_s = _BACKOFF_S[min(self._failures, len(_BACKOFF_S)) - 1]
                    break
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Sends what there is, if that is quick. The loops must have ended."""
        self._keep([encode_span(span) for span in self._spans.end_all()])
        session = self._session
        if session is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_THE_END_S):
                while self._pending and await self._send():
                    pass
        self.dropped += len(self._pending)
        self._pending.clear()
        self._session = None
        await session.close()

    def _keep(self, spans: list[bytes]) -> None:
        room = self._max_pending - len(self._pending)
        self._pending.extend(spans[:room])
        self.dropped += max(0, len(spans) - room)

    async def _send(self) -> bool:
        """One batch; whether the collector took it, or will never take it."""
        assert self._session is not None
        batch = list(islice(self._pending, _SPANS_AT_ONCE))
        body = encode_request(batch, self._resource, version=__version__)
        try:
            async with self._session.post(self._endpoint, data=body, headers=self._headers) as response:
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._say(f"{type(error).__name__} {error}")
            return False
        if status in _LATER:
            self._say(f"it answered {status}")
            return False
        for _ in batch:
            self._pending.popleft()
        if status >= 400:
            self.dropped += len(batch)
            self._say(f"it answered {status}")
        else:
            self.sent += len(batch)
            self._failures = 0
        return True

    def _say(self, why: str) -> None:
        self._failures += 1
        if self._failures == 1:
            _log.warning("traces cannot be sent to the collector for now: %s", why)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else str(value)
