"""The refusals that the brain itself makes, in words for a person. Policies word their own."""

from typing import Final

from gateway.budgets.budgets import Reached
from gateway.core.events import AttemptFailed
from gateway.domain.decision import Refusal, RefusalReason, WaitReason
from gateway.domain.request import RequestFacts


def draining() -> Refusal:
    return Refusal(reason=RefusalReason.DRAINING, message="The gateway is shutting down.", retry_after_s=1)


def internal() -> Refusal:
    message = "The gateway failed; the request may be sent again."
    return Refusal(reason=RefusalReason.INTERNAL, message=message)


def moves_kv() -> Refusal:
    message = (
        "Fields that tell an engine where KV caches are (kv_transfer_params and the like) are not accepted: "
        'the gateway sends them itself. Tenants with permissions = ["kv-transfer"] may.'
    )
    return Refusal(reason=RefusalReason.KV_FIELD, message=message)


def names_response() -> Refusal:
    message = "request_id is not accepted here: it is the response's id, and could be another tenant's."
    return Refusal(reason=RefusalReason.FORBIDDEN, message=message)


def unread(coding: str, facts: RequestFacts, *, is_known: bool, swells: bool) -> Refusal:
    """`is_known`: bodies in this content coding are read, but for those that are damaged or swell."""
    reason, message = RefusalReason.MALFORMED_HTTP, "The body could not be read."
    if coding and swells:
        reason = RefusalReason.BODY_TOO_LARGE
        message = f"The body, in the Content-Encoding {coding}, inflates to more than is read."
    elif coding and is_known:
        message = f"The body is damaged: it is not, or not wholly, in the Content-Encoding {coding}."
    elif coding:
        reason = RefusalReason.UNSUPPORTED_CODING
        message = f"No body is read in the Content-Encoding {coding[:64]}; gzip, deflate and zstd are."
    elif facts.is_oversized:
        reason = RefusalReason.BODY_TOO_LARGE
        message = "The body holds more than is read, so the limits of its key cannot be kept."
    return Refusal(reason=reason, message=message)


def unknown_state(state_id: str) -> Refusal:
    """The text is vLLM's own not-found: whether another tenant has it stays open."""
    message = f"Response with id '{state_id}' not found."
    return Refusal(reason=RefusalReason.STATE_NOT_FOUND, message=message)


def unknown_path(path: str, meant: str) -> Refusal:
    behind = "has a /v1 too many" if path.startswith("/v1/v1/") else "goes on behind /v1"
    base = behind if path.startswith("/v1/") else "lacks /v1"
    message = f"There is no path {path[:128]}. Did you mean {meant[:128]}? The base URL {base}."
    return Refusal(reason=RefusalReason.UNKNOWN_PATH, message=message)


def no_session_named() -> Refusal:
    message = "This names no session: send session_id or program_id, as the turns had it, in a JSON object."
    return Refusal(reason=RefusalReason.MALFORMED_HTTP, message=message)


def unknown_model(model: str | None) -> Refusal:
    return Refusal(reason=RefusalReason.UNKNOWN_MODEL, message=f"The model `{model}` does not exist.")


def beyond_bound(reached: Reached) -> Refusal:
    bound, most = reached.bound, reached.most
    whose = {
        "session": "This session has",
        "agent": "Agents of this kind have",
        "tenant": "This key has",
    }[bound.scope]
    over = f" this {bound.period}" if bound.period is not None else ""
    what = _TOLD[reached.limit].format(f"{most:,.15g}")
    message = f"{whose} reached the bound `{bound.name}`{over}: {what}."
    return Refusal(reason=RefusalReason.BOUND_REACHED, message=message)


_TOLD: Final = {
    "turns": "{} turns",
    "tokens": "{} tokens",
    "cost": "a cost of {}",
    "max_duration_s": "{} seconds",
    "repeats": "the same calls with the same results {} times in a row",
    "same_calls": "the same calls {} times in a row",
}


def stopped() -> Refusal:
    return Refusal(reason=RefusalReason.SESSION_STOPPED, message="An operator has stopped this session.")


def uncounted(*, is_background: bool) -> Refusal:
    if is_background:
        message = "This key has a limit of tokens, and none can be counted in the background."
        return Refusal(reason=RefusalReason.FORBIDDEN, message=message)
    message = "This key has a limit of tokens, and in a WebSocket none can be counted: use HTTP."
    return Refusal(reason=RefusalReason.UNSUPPORTED_UPGRADE, message=message)


def waited_too_long(number: int, reason: WaitReason | None = None) -> Refusal:
    """`number`: how many waited too long so far.

    Clients obey `retry-after` to the millisecond; distinct values keep them from coming back together.
    """
    if reason is WaitReason.TENANT_SESSIONS:
        message = "As many sessions of this key are at work as it may have."
        return Refusal(reason=RefusalReason.TENANT_QUOTA, message=message, retry_after_s=1 + number % 29)
    if reason is WaitReason.NO_REPLICA:
        message = "No healthy backend can serve this request at the moment."
        return Refusal(reason=RefusalReason.NO_REPLICA, message=message, retry_after_s=1 + number % 5)
    message = "All backends were busy for too long."
    return Refusal(reason=RefusalReason.QUEUE_TIMEOUT, message=message, retry_after_s=1 + number % 29)


def unanswered_again() -> Refusal:
    message = "Two attempts at this request ended with a backend that failed before its answer was complete."
    return Refusal(reason=RefusalReason.UPSTREAM_BROKEN_TWICE, message=message)


def attempt_failed(event: AttemptFailed) -> Refusal:
    if event.is_local:
        message = "The gateway cannot open connections at the moment; the request may be sent again."
        return Refusal(reason=RefusalReason.LOCAL_FAULT, message=message, retry_after_s=2)
    if event.timed_out:
        reason, what = RefusalReason.UPSTREAM_TIMEOUT, "did not answer in time"
    elif event.was_sent:
        reason, what = RefusalReason.UPSTREAM_BROKEN, "failed before it answered"
    else:
        reason, what = RefusalReason.UPSTREAM_UNREACHABLE, "could not be reached"
    return Refusal(reason=reason, message=f"The backend {what}.")
