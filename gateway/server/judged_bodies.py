"""Bodies that are turned away for what they say, or for what they may say where nobody can read them."""

from gateway.core import refusals
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.request import Protocol, RequestFacts
from gateway.server.request_parser import HttpRequest


def refusal_of(request: HttpRequest, facts: RequestFacts, *, are_keys_required: bool) -> Refusal | None:
    """None if it may pass."""
    may_move_kv = request.head.visitor.tenant.may_move_kv
    if facts.moves_kv and not may_move_kv:
        return refusals.moves_kv()
    if are_keys_required and not facts.is_readable:
        # Backends read more than we do (NaN, UTF-16, other codings). It may name another tenant's response;
        # or, where its bytes cannot even be searched, KV caches.
        is_hidden = bool(request.head.facts.coding) and not may_move_kv
        if facts.protocol is Protocol.RESPONSES or is_hidden:
            return Refusal(reason=RefusalReason.MALFORMED_HTTP, message="The body could not be read.")
    return None
