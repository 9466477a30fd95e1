"""Receipts: what was decided about a request, as header lines of its response."""

from typing import Final

from gateway.core.commands import Dispatch, Refuse

# Names and meanings, for docs/reference/headers.md.
RECEIPTS: Final = {
    "x-turnpike-request": "The id of the request, for `turnpike explain`.",
    "x-turnpike-session": "The session (agent run) of the request.",
    "x-turnpike-thread": "The conversation within the session: the main one, or a sub-agent's.",
    "x-turnpike-source": "The evidence for the session; `none` without a session.",
    "x-turnpike-confidence": "The confidence in the session, from 0 to 1.",
    "x-turnpike-replica": "The replica of the turn.",
    "x-turnpike-model": "The replica's name of the model, where `[[models]]` renames it.",
    "x-turnpike-fallback": "Why a fallback model answered.",
    "x-turnpike-bound": "The name of a bound that the turn exceeds, and its limit.",
    "x-turnpike-queue-ms": "The wait in the gateway, in milliseconds.",
    "x-turnpike-reason": "Why the turn ran on this replica, or why it was refused.",
}


def receipts(decision: Dispatch | Refuse) -> bytes:
    session = decision.session
    if session is None:
        known, source = "", "none"
    else:
        known = (
            f"x-turnpike-session: {session.session}\r\n"
            f"x-turnpike-thread: {session.thread}\r\n"
            f"x-turnpike-confidence: {session.confidence:.2f}\r\n"
        )
        source = session.source._value_  # `value` is a call of four functions
    if type(decision) is Dispatch:
        where = f"x-turnpike-replica: {decision.placement.replica}\r\n"
        if decision.model is not None:
            where += f"x-turnpike-model: {decision.model}\r\n"
            if decision.fallback is not None:
                where += f"x-turnpike-fallback: {decision.fallback._value_}\r\n"
        reason = decision.placement.reason._value_
    else:
        where, reason = "", decision.refusal.reason._value_
    if decision.bound is not None:
        where += f"x-turnpike-bound: {decision.bound}\r\n"
    return (
        f"x-turnpike-request: {decision.request}\r\n{known}x-turnpike-source: {source}\r\n{where}"
        f"x-turnpike-queue-ms: {decision.waited_s * 1e3:.1f}\r\nx-turnpike-reason: {reason}\r\n"
    ).encode("ascii")
