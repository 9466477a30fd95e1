"""`POST /v1/traces` on the control plane: what agents' own telemetry tells of their tools (OTLP/HTTP).

With a control key that may write, an operator's collector tells of all tenants' tools; with a key of its own
a tenant tells of its own.

Invariants: at most `_MAX_BYTES` of a body and `_MAX_SPANS` of its tool spans are looked at, of `_MAX_BODIES`
bodies at a time, in slices; spans that are no tool's are neither kept nor mentioned.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from aiohttp import web

from gateway.core import events as ev
from gateway.domain.ids import TenantId
from gateway.domain.tool_span import ToolSpan
from gateway.server.control_access import TRACES_PATH, key_hash
from gateway.server.otlp_spans import FORMATS, PROTOBUF, Format, Found, Unreadable
from gateway.server.tenants import Tenants
from gateway.tool_probe.traced import Verdict
from gateway.wire.inflate import INFLATABLE, Inflater, InflationError

_MAX_BYTES: Final = 16 << 20
"""Inflated. Spans of other kinds carry whole prompts."""
_MAX_BODIES: Final = 8
_PATIENCE_S: Final = 20.0
"""For a body: exporters give up after ten seconds."""
_MAX_SPANS: Final = 8192
_AT_ONCE: Final = 256
_SHORT: Final = 32
_WHY: Final = {
    Verdict.AMBIGUOUS: "several sessions have a call by that id: send the trace that the requests are in",
    Verdict.TOO_LONG: "a tool span is longer than the call can have taken",
}
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
        self._bodies = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.post(TRACES_PATH, self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        form = FORMATS.get(request.content_type)
        if form is None:
            return _refuse(PROTOBUF, 415, f"the body must be {' or '.join(FORMATS)}")
        if self._bodies >= _MAX_BODIES:
            return _refuse(form, 503, "too many are being read; it may be sent again")
        self._bodies += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                body = await _read(request)
            found = form.read(_inflated(request, body))
            tenant = self._tenants.by_hash(key_hash(request))
            faults = await self._tell(found, tenant.id if tenant is not None else None)
        except TimeoutError:
            return _refuse(form, 408, f"the body did not come within {_PATIENCE_S:g} s")
        except _TooLarge:
            return _refuse(form, 413, f"the body exceeds {_MAX_BYTES} bytes")
        except (Unreadable, InflationError) as error:
            return _refuse(form, 400, str(error))
        finally:
            self._bodies -= 1
        why = "; ".join(f"{number}: {fault}" for fault, number in faults.items())
        return web.Response(body=form.answer(faults.total(), why), content_type=form.content_type)

    async def _tell(self, found: Iterator[Found | None], tenant: TenantId | None) -> Counter[str]:
        """Why spans were rejected, those that their sender should know of."""
        faults: Counter[str] = Counter()
        left = _MAX_SPANS
        while some := list(islice(found, _AT_ONCE)):
            of_tools = [each for each in some if each is not None]
            faults.update(each.fault for each in of_tools if each.fault)
            spans = [each.span for each in of_tools if each.span is not None]
            faults[_TOO_MANY] += max(0, len(spans) - left)
            self._tell_some(spans[:left], tenant, faults)
            left = max(0, left - len(spans))
            await asyncio.sleep(0)
        return +faults

    def _tell_some(self, spans: list[ToolSpan], tenant: TenantId | None, faults: Counter[str]) -> None:
        if not spans:
            return
        before = {verdict: self._verdicts[verdict] for verdict in _WHY}
        self._send(ev.ToolsTold(tuple(spans), tenant))
        for verdict, why in _WHY.items():
            faults[why] += self._verdicts[verdict] - before[verdict]


class _TooLarge(Exception):  # noqa: N818 - an outcome
    pass


async def _read(request: web.Request) -> bytes:
    body = bytearray()
    async for some in request.content.iter_any():
        body += some
        if len(body) > _MAX_BYTES:
            raise _TooLarge
    return bytes(body)


def _inflated(request: web.Request, body: bytes) -> bytes:
    coding = request.headers.get("Content-Encoding", "identity").lower()
    if coding == "identity":
        return body
    if coding not in INFLATABLE:
        raise InflationError(f"unknown content coding {coding[:_SHORT]!r}")
    inflated = bytearray()
    inflater = Inflater(coding)
    for piece in inflater.feed(body):
        inflated += piece
        if len(inflated) > _MAX_BYTES:
            raise _TooLarge
    if not inflater.is_complete:
        raise InflationError("the compressed body is cut short")
    return bytes(inflated)


def _refuse(form: Format, status: int, why: str) -> web.Response:
    return web.Response(
        status=status, body=form.refusal(_INVALID_ARGUMENT, why), content_type=form.content_type
    )
