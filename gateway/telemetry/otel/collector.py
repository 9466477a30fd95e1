"""A collector that takes OTLP/HTTP, and the attributes of this gateway.

Invariants: nobody waits for a collector but who sends to it; the first of several failures in a row is
logged, and no content.
"""

import logging
import os
import platform
from collections.abc import Mapping
from enum import Enum
from typing import Final

import aiohttp
from opentelemetry.sdk.resources import Resource

from gateway import __version__
from gateway.config.load import ConfigError
from gateway.config.telemetry import OtelConfig
from gateway.telemetry.log_lines import ChangeLog

_LATER: Final = frozenset((408, 429, 502, 503, 504))


class Verdict(Enum):
    TAKEN = 1
    REFUSED = 2
    """It will never take it."""
    LATER = 3


def resource_of(config: OtelConfig) -> tuple[tuple[str, str], ...]:
    """With `OTEL_RESOURCE_ATTRIBUTES`. Each process is an instance of its own, so that their counts are
    separate series. Newer SDKs do that themselves."""
    named = Resource.create({"service.name": config.service_name, "service.version": __version__})
    attributes = {"service.instance.id": f"{platform.node()}-{os.getpid()}", **named.attributes}
    return tuple((key, value if isinstance(value, str) else str(value)) for key, value in attributes.items())


class Collector:
    def __init__(self, config: OtelConfig, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for a variable that is not there."""
        assert config.endpoint is not None
        self._endpoint = config.endpoint
        self._timeout_s = config.timeout_s
        self._headers = {**config.headers, "Content-Type": "application/x-protobuf"}
        if config.authorization_env is not None:
            authorization = environ.get(config.authorization_env, "").strip()
            if not authorization:
                raise ConfigError(f"otel.authorization_env: {config.authorization_env} is not set, or empty")
            self._headers["Authorization"] = authorization
        self._session: aiohttp.ClientSession | None = None
        self._log = ChangeLog()
        self.failures = 0

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def open(self) -> None:
        """To be called on a running loop, before `post`."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, body: bytes) -> Verdict:
        assert self._session is not None
        try:
            async with self._session.post(
                self._endpoint, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return self._failed(f"{type(error).__name__} {error}", Verdict.LATER)
        if status < 300:
            if self.failures:
                self._log.log("collector", logging.INFO, "collector_up", failures=self.failures)
            self.failures = 0
            return Verdict.TAKEN
        return self._failed(f"it answered {status}", Verdict.LATER if status in _LATER else Verdict.REFUSED)

    def _failed(self, why: str, verdict: Verdict) -> Verdict:
        self.failures += 1
        if self.failures == 1:
            self._log.log("collector", logging.WARNING, "collector_down", cause=why)
        return verdict
