"""What requests say, read so that nobody waits for long, and that nothing of ours fails a request."""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Generator
from typing import Final

import msgspec

from gateway.config import Config
from gateway.core.turn_records import GPU_WORK
from gateway.domain.request import ExplicitId, RequestFacts, Work
from gateway.identity.explicit_ids import CONNECTION_SCHEMA
from gateway.requests.client_kv_fields import may_have_kv_fields
from gateway.requests.facts import TRANSCRIPTS, hash_body, reading_body_facts, unread_facts
from gateway.server.http.body_limits import BufferBudget, no_room
from gateway.server.http.request_parser import HttpRequest
from gateway.server.proxy.driver import Driver
from gateway.wire.endpoints import Endpoint
from gateway.wire.engine_json import in_utf8, is_utf8
from gateway.wire.inflate import INFLATABLE, InflationError, SwollenError, inflating
from gateway.wire.slices import finish

_log: Final = logging.getLogger(__name__)
_IN_UTF8: Final = (b"Content-Type", b"application/json")


class Reading:
    def __init__(self, config: Config, driver: Driver, unread: Counter[str]) -> None:
        """`unread`: counts requests whose body was not understood, by why."""
        self.apply_config(config)
        self._driver = driver
        self._is_relay = config.server.is_relay
        self._is_salted = config.hints.cache_salt_secret is not None
        self._unread = unread
        self._has_misread = False

    def apply_config(self, config: Config) -> None:
        if any(each.counts_repeats for each in config.bounds):
            TRANSCRIPTS.reads_steps = True

    async def plain(self, request: HttpRequest, budget: BufferBudget) -> HttpRequest:
        """The same request with a body that needs no inflating, and can be spliced into where fields have to
        be: what is read is what is sent. As it came if it is so already, or cannot be made so. While it is
        made, what is there of it counts in `budget`; the caller takes room for the whole at once.
        Raises RefusedRequest."""
        coding, body = request.head.facts.coding, request.body
        is_salted = self._is_salted and request.head.caller.endpoint.work in GPU_WORK
        is_spliced = is_salted or bool(self._driver.coordinator.models.named)
        is_wide = is_spliced and not coding and not is_utf8(body)
        if not body or not (is_wide or coding in INFLATABLE):
            return request
        tenant, taken = request.head.caller.tenant.id, 0

        def take(size: int) -> None:
            nonlocal taken
            if not budget.take(tenant, size):
                raise no_room()
            taken += size

        try:
            return await self._driver.parse_cooperatively(made_plain(request, take, is_spliced=is_spliced))
        except (InflationError, UnicodeError) as error:
            request.swells = isinstance(error, SwollenError)
            return request
        finally:
            budget.give_back(tenant, taken)

    async def read(self, request: HttpRequest) -> RequestFacts:
        """What the request says. Between the slices of a body that may take long to read, others are served.
        Where we fail to understand it, it passes, and its backend answers."""
        head, endpoint = request.head, request.head.caller.endpoint
        work = reading_body_facts(
            endpoint, head.facts, request.body, is_relayed=self._is_relay, before=request.before
        )
        facts: RequestFacts
        try:
            next(work)
            facts = await self._driver.parse_cooperatively(work)
        except StopIteration as end:  # as most
            facts = end.value
        except Exception:  # noqa: BLE001 - a bug of ours costs what we know of a request, not the request
            facts = self._misread(endpoint, request)
        facts = facts if facts.is_readable else self._unknown(facts, request)
        if not request.body or (facts.message_count and facts.transcript.body):
            return facts
        return msgspec.structs.replace(facts, body=hash_body(endpoint, head.facts, request.body))

    def _unknown(self, facts: RequestFacts, request: HttpRequest) -> RequestFacts:
        self._unread["oversized" if facts.is_oversized else "malformed"] += 1
        if facts.explicit is not None or not facts.is_turn or facts.state_ids:
            return facts
        name, bodies = request.head.caller.client, request.before
        if bodies is not None:
            name = bodies.connection = bodies.connection or secrets.token_hex(8)
        explicit = ExplicitId(schema=CONNECTION_SCHEMA, session=name)
        return msgspec.structs.replace(facts, explicit=explicit)

    def _misread(self, endpoint: Endpoint, request: HttpRequest) -> RequestFacts:
        """To be called while an exception is handled."""
        if not self._has_misread:
            self._has_misread = True
            _log.exception("a request to %s was not understood (logged once)", endpoint.name)
        facts = unread_facts(endpoint, request.head.facts, len(request.body), is_hidden=True)
        moves_kv = finish(may_have_kv_fields(request.body))
        is_relayed = self._is_relay and endpoint.work is Work.GENERATE
        return msgspec.structs.replace(facts, moves_kv=moves_kv, is_relayed=is_relayed)


def made_plain(
    request: HttpRequest, take: Callable[[int], None], *, is_spliced: bool
) -> Generator[None, None, HttpRequest]:
    """Raises InflationError, UnicodeError, or what `take` raises."""
    head, body = request.head, request.body
    if head.facts.coding:
        body = yield from inflating(body, head.facts.coding, take)
    headers = [field for field in head.headers if field[0].lower() != b"content-encoding"]
    if is_spliced and not is_utf8(body):
        take(len(body) * 3 // 2)  # two bytes become three at most
        body = yield from in_utf8(body)
        headers = [field if field[0].lower() != b"content-type" else _IN_UTF8 for field in headers]
    facts = msgspec.structs.replace(head.facts, coding="")
    head = msgspec.structs.replace(head, headers=headers, facts=facts, passed_on={})
    return HttpRequest(head, body, request.before)
