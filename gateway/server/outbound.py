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
from gateway.domain.request import Work
from gateway.server.request_head import RequestHead
from gateway.server.request_parser import HttpRequest
from gateway.server.tenants import CREDENTIAL_HEADERS
from gateway.upstream.replica import Replica
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
        replica: Replica,
        abilities: Abilities,
        session: SessionRef | None,
        *,
        is_readable: bool,
    ) -> list[Chunk]:
        """Head and body, to be written in order."""
        head, key = request.head, replica.api_key
        body = self._body(request, abilities, is_readable=is_readable)
        with_credentials = key is None and not self._are_keys_required
        fields = head.passed_on.get(with_credentials)
        if fields is None:
            fields = head.passed_on[with_credentials] = _fields(head, with_credentials=with_credentials)
        first = replica.address.first_line(head.method, head.target)
        ours = b"" if key is None else b"Authorization: Bearer %s\r\n" % key.encode("latin-1")
        is_told = session is not None and abilities.session_header and self._hints.session
        if is_told and session is not None and "x-session-id" not in head.facts.stated:
            ours += b"X-Session-ID: %s\r\n" % session.session.encode("ascii")
        if body or head.method in _METHODS_WITH_BODY:
            ours += b"Content-Length: %d\r\n" % sum(map(len, body))
        if len(body) == 1 and len(body[0]) < _COPY_BELOW:
            return [b"%s%s%s\r\n%s" % (first, fields, ours, body[0])]
        return [b"%s%s%s\r\n" % (first, fields, ours), *body]

    def _body(self, request: HttpRequest, abilities: Abilities, *, is_readable: bool) -> list[Chunk]:
        secret = self._hints.cache_salt_secret
        if secret is None or not abilities.cache_salt or not is_readable:
            return [request.body] if request.body else []
        head = request.head
        if head.visitor.endpoint.work is Work.GENERATE and not head.facts.coding:
            tenant = head.visitor.tenant.id
            salt = hmac.digest(secret.encode(), tenant.encode(), hashlib.sha256).hex()
            return splice_fields(request.body, {"cache_salt": salt})
        return [request.body] if request.body else []


def _fields(head: RequestHead, *, with_credentials: bool) -> bytes:
    drop = _REFRAMED if with_credentials else _REFRAMED | CREDENTIAL_HEADERS
    passed_on = end_to_end(head.headers, drop)
    return b"".join(
        [b"%s: %s\r\n" % field for field in passed_on if not field[0].lower().startswith(_FOR_US_ALONE)]
    )


_COPY_BELOW: Final = 16 << 10
"""Up to this size, one write of head and body together is cheaper than two."""
