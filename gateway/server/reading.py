"""What requests say, read so that nobody waits for long, and that nothing of ours fails a request."""

import logging
from collections import Counter
from typing import Final

import msgspec

from gateway.config import Config
from gateway.domain.request import RequestFacts, Work
from gateway.server.driver import Driver
from gateway.server.request_parser import HttpRequest
from gateway.wire.endpoints import Endpoint
from gateway.wire.facts import TRANSCRIPTS, read_body_facts, reading_body_facts, unread_facts
from gateway.wire.kv_fields import may_have_kv_fields
from gateway.wire.slices import finish

_log: Final = logging.getLogger(__name__)
READ_AT_ONCE: Final = 64 << 10
"""Bytes of a body that take a few milliseconds to read, whatever they say."""


class Reading:
    def __init__(self, driver: Driver, unread: Counter[str] | None, *, is_relay: bool = False) -> None:
        """`unread`: counts requests whose body was not understood, by why; `is_relay`: no turn is asked which
        session it is of."""
        self._driver = driver
        self._is_relay = is_relay
        self._unread = unread
        self._has_misread = False

    @classmethod
    def of(cls, config: Config, driver: Driver, unread: Counter[str] | None) -> "Reading":
        """Reads what these settings need."""
        if any(each.counts_repeats for each in config.bounds):
            TRANSCRIPTS.tells_steps = True
        return cls(driver, unread, is_relay=config.server.is_relay)

    def at_once(self, endpoint: Endpoint, request: HttpRequest) -> RequestFacts:
        """What the request says. Where we fail to understand it, it passes, and its backend answers."""
        try:
            facts = read_body_facts(
                endpoint, request.head.facts, request.body, is_relayed=self._is_relay, before=request.before
            )
        except Exception:  # noqa: BLE001 - a bug of ours costs what we know of a request, not the request
            facts = self._misread(endpoint, request)
        return facts if facts.is_readable else self._counted(facts)

    async def in_slices(self, endpoint: Endpoint, request: HttpRequest) -> RequestFacts:
        """The same of a body that may take long to read; between the slices others are served."""
        try:
            facts = await self._driver.in_slices(
                reading_body_facts(
                    endpoint,
                    request.head.facts,
                    request.body,
                    is_relayed=self._is_relay,
                    before=request.before,
                )
            )
        except Exception:  # noqa: BLE001 - as above
            facts = self._misread(endpoint, request)
        return facts if facts.is_readable else self._counted(facts)

    def _counted(self, facts: RequestFacts) -> RequestFacts:
        if self._unread is not None:
            self._unread["oversized" if facts.is_oversized else "malformed"] += 1
        return facts

    def _misread(self, endpoint: Endpoint, request: HttpRequest) -> RequestFacts:
        """To be called while an exception is handled."""
        if not self._has_misread:
            self._has_misread = True
            _log.exception("a request to %s was not understood (told once)", endpoint.name)
        facts = unread_facts(endpoint, request.head.facts, len(request.body))
        moves_kv = finish(may_have_kv_fields(request.body))
        is_relayed = self._is_relay and endpoint.work is Work.GENERATE
        return msgspec.structs.replace(facts, moves_kv=moves_kv, is_relayed=is_relayed)
