"""Bodies that are turned away for what they say, or for what they may say where nobody can read them."""

from gateway.core import refusals
from gateway.core.stream import GPU_WORK
from gateway.domain.decision import Refusal
from gateway.domain.request import Protocol, RequestFacts, Work
from gateway.server.outbound import is_form_alone
from gateway.server.request_parser import HttpRequest
from gateway.wire.inflate import INFLATABLE
from gateway.wire.splice import is_object


def refusal_of(
    request: HttpRequest, facts: RequestFacts, *, are_keys_required: bool, is_salted: bool
) -> Refusal | None:
    """None if it may pass. `is_salted`: each tenant's prompts have a cache of their own."""
    may_move_kv = request.head.visitor.tenant.may_move_kv
    if facts.moves_kv and not may_move_kv:
        return refusals.moves_kv()
    coding = request.head.facts.coding if request.body else ""
    # Where tenants are apart, what is not known must not matter. An engine may see more than we do in an
    # unknown coding, and in what is too much to be read: an id of a session that was stopped, another
    # model, KV caches, another tenant's response.
    is_turn, is_ours = facts.work is Work.GENERATE, facts.protocol is Protocol.RESPONSES
    must_be_known = is_turn or is_ours or not may_move_kv
    is_unknown = coding or (not facts.is_readable and (is_ours or (facts.is_hidden and is_turn)))
    # Where no salt can be put, an engine might take the client's: one that passes over the coding, say.
    lacks_salt = False
    if is_salted and request.body and facts.work in GPU_WORK:
        is_form = is_form_alone(request) and request.body.startswith(b"--")
        lacks_salt = bool(coding) or not (is_form or is_object(request.body))
    if lacks_salt or (are_keys_required and must_be_known and is_unknown):
        return refusals.unread(coding, facts, is_known=coding in INFLATABLE, swells=request.swells)
    return None
