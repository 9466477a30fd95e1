"""The request as the replica gets it: what the client sent, framed anew, with our hints.

The body is the client's, byte for byte, or those bytes with fields spliced in at the end. Of the
headers go: what belongs to one hop, what is meant for the gateway alone, and the client's credentials
where the gateway has its own or asks for keys itself.
"""

import hashlib
import hmac
from typing import Final

from gateway.config.hints import HintsConfig
from gateway.domain.decision import SessionRef
from gateway.domain.fleet import Abilities
from gateway.domain.ids import TenantId
from gateway.domain.request import Work
from gateway.server.request_parser import HttpRequest
from gateway.server.tenants import CREDENTIAL_HEADERS
from gateway.upstream.replica import Replica
from gateway.wire.endpoints import Endpoint
from gateway.wire.headers import get_header
from gateway.wire.hop_by_hop import end_to_end
from gateway.wire.splice import Chunk, splice_fields

_REFRAMED: Final = frozenset((b"host", b"content-length", b"expect"))
_FOR_US_ALONE: Final = b"x-turnpike-"
_METHODS_WITH_BODY: Final = frozenset(("POST", "PUT", "PATCH"))


class Outbound:
    def __init__(self, hints: HintsConfig, *, are_keys_required: bool) -> None:
        self._hints = hints
        self._are_keys_required = are_keys_required

    def chunks(
        self,
        request: HttpRequest,
        endpoint: Endpoint,
        replica: Replica,
        abilities: Abilities,
        session: SessionRef | None,
        tenant: TenantId,
        *,
        is_readable: bool,
    ) -> list[Chunk]:
        """Head and body, to be written in order."""
        body = self._body(request, endpoint, abilities, tenant, is_readable=is_readable)
        address = replica.address
        target = address.prefix + request.target
        lines = [b"%s %s HTTP/1.1\r\n" % (request.method.encode("ascii"), target)]
        lines.append(b"Host: %s\r\n" % address.authority)
        drop = _REFRAMED
        if self._are_keys_required or replica.api_key is not None:
            drop |= CREDENTIAL_HEADERS
        for name, value in end_to_end(request.headers, drop):
            if not name.lower().startswith(_FOR_US_ALONE):
                lines += (name, b": ", value, b"\r\n")
        if replica.api_key is not None:
            lines.append(b"Authorization: Bearer %s\r\n" % replica.api_key.encode("latin-1"))
        is_told = abilities.session_header and self._hints.session
        if session is not None and is_told and get_header(request.headers, b"x-session-id") is None:
            lines.append(b"X-Session-ID: %s\r\n" % session.session.encode("ascii"))
        if body or request.method in _METHODS_WITH_BODY:
            lines.append(b"Content-Length: %d\r\n" % sum(map(len, body)))
        lines.append(b"\r\n")
        if len(body) == 1 and len(body[0]) < _COPY_BELOW:
            return [b"".join((*lines, body[0]))]
        return [b"".join(lines), *body]

    def _body(
        self,
        request: HttpRequest,
        endpoint: Endpoint,
        abilities: Abilities,
        tenant: TenantId,
        *,
        is_readable: bool,
    ) -> list[Chunk]:
        secret = self._hints.cache_salt_secret
        wants_salt = secret is not None and abilities.cache_salt and endpoint.work is Work.GENERATE
        if wants_salt and is_readable and get_header(request.headers, b"content-encoding") is None:
            assert secret is not None
            salt = hmac.digest(secret.encode(), tenant.encode(), hashlib.sha256).hex()
            return splice_fields(request.body, {"cache_salt": salt})
        return [request.body] if request.body else []


_COPY_BELOW: Final = 16 << 10
"""Up to this size, one write of head and body together is cheaper than two."""
