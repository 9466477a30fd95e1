"""The authenticator: refusals by client and path, on the head of the request alone.

It decides before a byte of the body is held, so nobody without a key can make the gateway hold any.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import TenantId
from gateway.domain.request import Protocol, Work
from gateway.server.auth.client_address import TrustedProxies
from gateway.server.auth.client_keys import ClientKeys, Tenant
from gateway.wire.endpoints import Endpoint, classify, is_ambiguous_path
from gateway.wire.headers import RawHeaders

# Headers by which other gateways let a client pick the backend. Nothing a client sends does so here.
NAMES_AN_UPSTREAM: Final = frozenset(
    b"x-turnpike-replica x-gateway-destination-endpoint x-smg-target-worker "
    b"x-worker-url x-upstream-url".split()
)
# Before the name of a tool server.
MCP_PREFIX: Final = "/mcp/"


class Caller(msgspec.Struct, frozen=True):
    """Who came in, and what for."""

    tenant: Tenant
    path: str
    endpoint: Endpoint
    client: str = ""
    is_from_peer: bool = False
    """By another gateway, which knows that it is ours to decide."""
    takes_over_session: bool = False
    """And that it is of a session whose gateway is gone."""


class Authenticator:
    def __init__(self, client_keys: ClientKeys, proxies: TrustedProxies, *, mcp: Iterable[str] = ()) -> None:
        """`mcp`: the names of the tool servers."""
        self._client_keys = client_keys
        self._proxies = proxies
        self._mcp = {MCP_PREFIX + name: _mcp_endpoint(name) for name in mcp}

    def endpoint(self, method: str, target: bytes) -> Endpoint:
        path = _path_of(target)
        return self._mcp.get(path) or classify(method, path)

    def authorize(self, method: str, target: bytes, headers: RawHeaders, peer: str) -> Caller | Refusal:
        """`peer`: the address of who is connected."""
        return self.judge_client(method, target, headers, self._proxies.client_of(headers, peer))

    def judge_client(self, method: str, target: bytes, headers: RawHeaders, client: str) -> Caller | Refusal:
        path = _path_of(target)
        if path != "*" and is_ambiguous_path(path):
            message = "The path could be read in more than one way."
            return Refusal(reason=RefusalReason.MALFORMED_HTTP, message=message)
        tenant = self._client_keys.authenticate(headers, client)
        if tenant is None and method == "OPTIONS" and _is_preflight(headers):
            tenant = _PREFLIGHT
        if tenant is None:
            why = self._client_keys.why_refused(headers)
            return Refusal(reason=RefusalReason.UNAUTHENTICATED, message=why)
        endpoint = self.endpoint(method, target)
        if endpoint.is_control and not tenant.may_control_engines:
            message = "This path controls the engine; your key may not."
            if path.startswith(("/turnpike", "/metrics")):
                message += " The gateway's own is on its control port (`server.control`, --control)."
            return Refusal(reason=RefusalReason.FORBIDDEN, message=message)
        for name, _ in headers:
            if name.lower() in NAMES_AN_UPSTREAM:
                text = name.decode("latin-1")
                message = f"The header {text} is not accepted: the gateway chooses the backend."
                return Refusal(reason=RefusalReason.FORBIDDEN, message=message)
        return Caller(tenant, path, endpoint, client)


def _path_of(target: bytes) -> str:
    return target.partition(b"?")[0].decode("latin-1")


def _is_preflight(headers: RawHeaders) -> bool:
    """A browser's check of what a page of another origin may do, without the page's key: it runs nothing."""
    fields = {name.lower(): value for name, value in headers}
    is_preflight = b"origin" in fields and b"access-control-request-method" in fields
    return is_preflight and b"transfer-encoding" not in fields and fields.get(b"content-length", b"0") == b"0"


_PREFLIGHT: Final = Tenant(TenantId("anonymous_preflight"), may_control_engines=False)


def _mcp_endpoint(name: str) -> Endpoint:
    return Endpoint(
        protocol=Protocol.MCP, work=Work.LIGHT, is_replayable=False, state_id=name, name=MCP_PREFIX + "{name}"
    )
