"""The request as the replica gets it: what the client sent, framed anew, with our hints.

The body is the client's, byte for byte, or those bytes with fields spliced in at the end. Of the
headers go: what belongs to one hop, what is meant for the gateway alone, and the client's credentials
where the gateway has its own or asks for keys itself.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.config.hints import HintsConfig
from gateway.core.commands import Dispatch
from gateway.core.turn_records import GPU_WORK
from gateway.domain.decision import SessionRef
from gateway.domain.fleet import Abilities
from gateway.domain.ids import ReplicaId
from gateway.domain.request import RequestFacts, Work
from gateway.requests.model_name import with_model, with_model_in_form
from gateway.server.auth.client_keys import CREDENTIAL_HEADERS
from gateway.server.http.request_head import RequestHead
from gateway.server.http.request_parser import HttpRequest
from gateway.upstream.replica import Replica
from gateway.wire.body import ABSENT, read_as
from gateway.wire.hop_by_hop import end_to_end
from gateway.wire.splice import Chunk, is_object, splice_fields
from gateway.wire.vllm_envelope import envelope
from gateway.workflow.engine_hints import signed

_REFRAMED: Final = frozenset((b"host", b"content-length", b"expect"))
_RANK: Final = b"x-data-parallel-rank"
_TRACE: Final = frozenset((b"traceparent",))
# Of this hop. The rest of the handshake is the client's, extensions included: its messages are not read.
_UPGRADE: Final = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
_FOR_US_ALONE: Final = b"x-turnpike-"
_METHODS_WITH_BODY: Final = frozenset(("POST", "PUT", "PATCH"))


class Outbound(msgspec.Struct, frozen=True):
    hints: HintsConfig
    abilities: Callable[[ReplicaId], Abilities]
    are_keys_required: bool

    def of_turn(
        self,
        decision: Dispatch,
        request: HttpRequest,
        facts: RequestFacts,
        replica: Replica,
        *,
        trace: bytes | None,
        fetch: Mapping[str, Raw] | None = None,
    ) -> list[Chunk]:
        """A turn as the brain decided it; `fetch` may differ from attempt to attempt."""
        return self.chunks(
            request,
            replica,
            session=decision.session,
            hint=decision.hint if facts.is_readable else None,
            rank=decision.rank,
            trace=trace,
            model=decision.model if decision.model != facts.model else None,
            fetch=fetch,
        )

    def chunks(
        self,
        request: HttpRequest,
        replica: Replica,
        *,
        session: SessionRef | None = None,
        hint: str | None = None,
        rank: int | None = None,
        trace: bytes | None = None,
        model: str | None = None,
        fetch: Mapping[str, Raw] | None = None,
    ) -> list[Chunk]:
        """Head and body, to be written in order; `hint`: what to tell the engine; `rank`: which engine of a
        server with several, unless the client says so; `trace`: a header line instead of the client's own;
        `model`: what to ask for instead of what the client does; `fetch`: fields that say where its prompt,
        or the beginning of it, is."""
        head, abilities = request.head, self.abilities(replica.id)
        if model is not None:
            request = _for_model(model, request)
        body: list[Chunk] = [request.body] if request.body else []
        if hint is not None or fetch or self.hints.cache_salt_secret is not None:
            body = self._body(request, replica, abilities, hint, fetch or {})
        start = head.passed_on.get(replica)
        if start is None:
            if len(head.passed_on) >= _MAX_REMEMBERED:
                head.passed_on.clear()
            drop = CREDENTIAL_HEADERS if self.are_keys_required else frozenset()
            if trace is not None:
                drop |= _TRACE
            start = head.passed_on[replica] = head_lines(
                head, replica.address.prefix + head.target, replica, drop
            )
        lines = trace or b""
        if rank is not None and not any(name.lower() == _RANK for name, _ in head.headers):
            lines += b"X-data-parallel-rank: %d\r\n" % rank
        if session is not None and abilities.session_header and self.hints.session:
            if "x-session-id" not in head.facts.stated:
                lines += b"X-Session-ID: %s\r\n" % session.session.encode("ascii")
        if head.is_websocket:
            lines += _UPGRADE
        if len(body) == 1 and len(body[0]) < _COPY_BELOW:
            return [b"%s%sContent-Length: %d\r\n\r\n%s" % (start, lines, len(body[0]), body[0])]
        if body or head.method in _METHODS_WITH_BODY:
            lines += b"Content-Length: %d\r\n" % sum(map(len, body))
        return [b"%s%s\r\n" % (start, lines), *body]

    def _body(
        self,
        request: HttpRequest,
        replica: Replica,
        abilities: Abilities,
        hint: str | None,
        fetch: Mapping[str, Any],
    ) -> list[Chunk]:
        fields: dict[str, Any] = {}
        head, secret = request.head, self.hints.cache_salt_secret
        work, is_plain = head.caller.endpoint.work, not head.facts.coding
        # Whatever engine it is: what is read of its version may be anything, and its own salt must not count.
        if secret is not None and work in GPU_WORK and is_plain and not is_form_alone(request):
            tenant = head.caller.tenant.id
            fields["cache_salt"] = hmac.digest(secret.encode(), tenant.encode(), hashlib.sha256).hex()
        if work is Work.GENERATE and is_plain:
            if hint is not None:
                fields |= self._hint_fields(request.body, replica, abilities, hint)
            fields |= fetch
        if fields and request.body and ("cache_salt" in fields or is_object(request.body)):
            return splice_fields(request.body, fields)
        return [request.body] if request.body else []

    def _hint_fields(self, body: bytes, replica: Replica, abilities: Abilities, hint: str) -> dict[str, Any]:
        key, fields = replica.hint_key, dict[str, Any]()
        carried = signed(hint, key) if key is not None else hint
        has_plugin = self.hints.turnpike and abilities.turnpike_hints
        if has_plugin:
            fields |= with_hint(body, carried)
        if self.hints.kv_hints and abilities.kv_hints and not _states_kv_hints(body):
            fields["kv_hints"] = envelope(hint, carried if has_plugin else None)
        return fields


def _for_model(model: str, request: HttpRequest) -> HttpRequest:
    """The same request, for another model. Where a path names it, there is nothing to replace."""
    head, body = request.head, request.body
    if is_form_alone(request):
        body = with_model_in_form(head.facts.content_type, body, model)
    elif body:
        body = with_model(body, model)
    return HttpRequest(head, body)


def is_form_alone(request: HttpRequest) -> bool:
    """It is a form, and nothing that some engines read as JSON whatever it is called."""
    is_turn = request.head.caller.endpoint.work is Work.GENERATE
    return request.head.facts.is_form and not is_turn and not is_object(request.body)


def head_lines(
    head: RequestHead, target: bytes, replica: Replica, drop: frozenset[bytes] = frozenset()
) -> bytes:
    """The request line and the client's fields, without those of one hop, those that are for us, the
    credentials where `replica` has its own, and `drop`; without what frames the body."""
    key = replica.api_key
    drop |= _REFRAMED if key is None else _REFRAMED | CREDENTIAL_HEADERS
    lines = [b"%s %s HTTP/1.1\r\n" % (head.method.encode("ascii"), target)]
    lines.append(b"Host: %s\r\n" % replica.address.authority)
    for name, value in end_to_end(head.headers, drop):
        if not name.lower().startswith(_FOR_US_ALONE):
            lines.append(b"%s: %s\r\n" % (name, value))
    if key is not None:
        lines.append(b"Authorization: Bearer %s\r\n" % key.encode("latin-1"))
    return b"".join(lines)


def with_hint(body: bytes, hint: str) -> dict[str, Any]:
    """The hint, behind what the client says in the same place; nothing if that is no object.

    Of two fields of one name the last counts, so a hint of the client's own is replaced. A name may be spelt
    with escapes.
    """
    may_state = _XARGS in body or _ESCAPED in body
    stated = read_as(_STATED, body) if may_state else None
    if stated is None or stated.vllm_xargs is ABSENT:
        return {"vllm_xargs": {"turnpike": hint}} if not may_state or stated is not None else {}
    theirs = bytes(stated.vllm_xargs)
    if not theirs.startswith(b"{") or len(theirs) > _MAX_XARGS:
        return {}
    return {"vllm_xargs": Raw(b"".join(splice_fields(theirs, {"turnpike": hint})))}


def _states_kv_hints(body: bytes) -> bool:
    """It is of a tenant that is trusted with that: others are refused."""
    if _KV_HINTS not in body and _ESCAPED not in body:
        return False
    stated = read_as(_STATED, body)
    return stated is None or stated.kv_hints is not ABSENT


class _Stated(msgspec.Struct):
    vllm_xargs: Raw = ABSENT
    kv_hints: Raw = ABSENT


_STATED: Final = msgspec.json.Decoder(_Stated)
_XARGS: Final = b'"vllm_xargs"'
_KV_HINTS: Final = b'"kv_hints"'
# How an escaped letter of a name begins.
_ESCAPED: Final = b"\\u00"
_MAX_XARGS: Final = 64 << 10
# Replicas for which a connection remembers what they get.
_MAX_REMEMBERED: Final = 4
# Up to this size, one write of head and body together is cheaper than two.
_COPY_BELOW: Final = 16 << 10
