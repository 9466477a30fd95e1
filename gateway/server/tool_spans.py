"""`POST /v1/traces` on the control plane: what agents' own telemetry tells of their tools (OTLP/HTTP).

With a control key that may write, an operator's collector tells of all tenants' tools; with a key of its own
a tenant tells of its own.

Invariants: at most `MAX_BYTES` of a body are decoded, on a thread, of `_MAX_BODIES` bodies at a time; their
spans are looked at in slices of some `_SLICE_COST` spans and attributes, between which everything else goes
on; every span counts, whatever it is of. On average at most `_BYTES_PER_S` are read for one sender. Spans
that are no tool's are not kept.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from aiohttp import web

from gateway.core import events as ev
from gateway.domain.allowance import Allowance
from gateway.domain.ids import TenantId
from gateway.domain.tool_span import ToolSpan
from gateway.server.control_access import TRACES_PATH, key_hash
from gateway.server.otlp_spans import FORMATS, MAX_BYTES, PROTOBUF, Format, Found, TooLarge, Unreadable
from gateway.server.tenants import Tenants
from gateway.tool_probe.traced import Verdict
from gateway.upstream.bounded_answers import read_at_most
from gateway.wire.inflate import INFLATABLE, Inflater, InflationError, inflated_limit_bytes

_MAX_BODIES: Final = 8
_MAX_BODIES_OF_ONE: Final = 4
_PATIENCE_S: Final = 20.0
"""For a body: exporters give up after ten seconds."""
_MAX_COST: Final = 262_144
"""Spans and attributes of a body."""
_MAX_SPANS: Final = 8192
_AT_ONCE: Final = 256
_SLICE_COST: Final = 1024
_BYTES_PER_S: Final = 2 << 20
"""What a sender may have read on average. Reading costs some 10 to 70 ns a byte."""
_BURST_BYTES: Final = 16 << 20
_COST_BYTES: Final = 64
"""What a span or an attribute costs, counted as bytes."""
_SHORT: Final = 32
_WHY: Final = {
    Verdict.AMBIGUOUS: "several sessions have a call by that id: send the trace that the requests are in",
    Verdict.TOO_LONG: "a tool span is longer than the call can have taken",
}
_WHY_LARGE: Final = f"the body exceeds {MAX_BYTES} bytes; send fewer spans at once"
_TOO_MANY: Final = "too many tool spans at once"
_INVALID_ARGUMENT: Final = 3
"""gRPC's code."""


class ToolSpans:
    def __init__(
        self, send: Callable[[ev.Event], None], verdicts: Counter[Verdict], tenants: Tenants
    ) -> None:
        """`verdicts`: where the brain counts what became of the spans that it is sent."""
        self._send = send
        self._verdicts = verdicts
        self._tenants = tenants
        self._bodies: Counter[TenantId | None] = Counter()
        """That are being read, by sender; None are those who send for all tenants."""
        self._allowances: dict[TenantId | None, Allowance] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.post(TRACES_PATH, self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        form = FORMATS.get(request.content_type)
        if form is None:
            return _refuse(PROTOBUF, 415, f"the body must be {' or '.join(FORMATS)}")
        tenant = self._tenants.by_hash(key_hash(request))
        sender = tenant.id if tenant is not None else None
        wait_s = self._wait_s(sender)
        if wait_s > 0:
            return _refuse(
                form, 429, "more was sent than is read; it may be sent again", retry_after_s=wait_s
            )
        if self._bodies.total() >= _MAX_BODIES or self._bodies[sender] >= _MAX_BODIES_OF_ONE:
            return _refuse(form, 503, "too many are being read; it may be sent again", retry_after_s=1)
        self._bodies[sender] += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if (body := await read_at_most(request.content, MAX_BYTES)) is None:
                    raise TooLarge(_WHY_LARGE)
            found = await self._found(form, await _inflated(request, body), sender)
            faults = await self._tell(found, sender)
        except TimeoutError:
            return _refuse(form, 408, f"the body did not come within {_PATIENCE_S:g} s")
        except TooLarge as error:
            return _refuse(form, 413, str(error))
        except (Unreadable, InflationError) as error:
            return _refuse(form, 400, str(error))
        finally:
            self._bodies[sender] -= 1
        why = "; ".join(f"{number}: {fault}" for fault, number in faults.items())
        return web.Response(body=form.answer(faults.total(), why), content_type=form.content_type)

    def _wait_s(self, sender: TenantId | None) -> int:
        """Seconds until more is read of this sender; 0 if it may send now."""
        allowance = self._allowances.get(sender)
        if allowance is None:
            allowance = self._allowances[sender] = Allowance(per_s=_BYTES_PER_S, burst=_BURST_BYTES)
        allowance.refill(now=asyncio.get_running_loop().time())
        return math.ceil(-allowance.left / _BYTES_PER_S) if allowance.left < 0 else 0

    async def _found(self, form: Format, body: bytes, sender: TenantId | None) -> list[Found]:
        """The tool spans of a body. Raises Unreadable or TooLarge."""
        found: list[Found] = []
        allowance = self._allowances[sender]
        allowance.left -= len(body)
        request = await asyncio.to_thread(form.decode, body)
        cost = before = 0
        for size, one in form.spans(request):
            cost += size
            if one is not None:
                found.append(one)
            if cost - before >= _SLICE_COST:
                allowance.left -= (cost - before) * _COST_BYTES
                before = cost
                if cost > _MAX_COST:
                    raise TooLarge(f"the body holds more than {_MAX_COST} spans and attributes")
                await asyncio.sleep(0)
        allowance.left -= (cost - before) * _COST_BYTES
        return found

    async def _tell(self, found: list[Found], tenant: TenantId | None) -> Counter[str]:
        faults = Counter(each.fault for each in found if each.fault)
        spans = [each.span for each in found if each.span is not None]
        faults[_TOO_MANY] += max(0, len(spans) - _MAX_SPANS)
        for number in range(0, min(len(spans), _MAX_SPANS), _AT_ONCE):
            self._tell_some(spans[number : min(number + _AT_ONCE, _MAX_SPANS)], tenant, faults)
            await asyncio.sleep(0)
        return +faults

    def _tell_some(self, spans: list[ToolSpan], tenant: TenantId | None, faults: Counter[str]) -> None:
        before = {verdict: self._verdicts[verdict] for verdict in _WHY}
        self._send(ev.ToolsTold(tuple(spans), tenant))
        for verdict, why in _WHY.items():
            faults[why] += self._verdicts[verdict] - before[verdict]


async def _inflated(request: web.Request, body: bytes) -> bytes:
    coding = request.headers.get("Content-Encoding", "identity").lower()
    if coding == "identity":
        return body
    if coding not in INFLATABLE:
        raise InflationError(f"unknown content coding {coding[:_SHORT]!r}")
    inflated = bytearray()
    inflater = Inflater(coding, inflated_limit_bytes(len(body)))
    for piece in inflater.feed(body):
        inflated += piece
        if len(inflated) > MAX_BYTES:
            raise TooLarge(_WHY_LARGE)
        await asyncio.sleep(0)
    if not inflater.is_complete:
        raise InflationError("the compressed body is cut short")
    return bytes(inflated)


def _refuse(form: Format, status: int, why: str, *, retry_after_s: int | None = None) -> web.Response:
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else None
    body = form.refusal(_INVALID_ARGUMENT, why)
    return web.Response(status=status, body=body, content_type=form.content_type, headers=headers)
