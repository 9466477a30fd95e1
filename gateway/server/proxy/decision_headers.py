"""Receipts: what was decided about a request, as header lines of its response."""

from gateway.core.commands import Dispatch, Refuse


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
