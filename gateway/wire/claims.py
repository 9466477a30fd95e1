"""What clients say of how urgent a session is: CONVENTIONS.md, "Accept — priority and SLO", partly.

Two headers of ours, OpenAI's `service_tier`, and the deadline in vLLM's agentic context; where both name a
deadline, ours counts. The context's `priority` is not read: nothing says which end of it is urgent. A value
that is none is as good as not sent, and named in `Claims.malformed`. A `service_tier` that we do not know is
no mistake: APIs have many, and most say nothing of urgency.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.request import Claims
from gateway.wire.body import ABSENT, RequestBody, read_as, read_text

CLASS_HEADER: Final = b"x-turnpike-class"
DEADLINE_HEADER: Final = b"x-turnpike-deadline"
MAX_DEADLINE_S: Final = 7 * 86_400.0
"""Who has longer is in no hurry."""

_CLASSES: Final = frozenset({"reactive", "proactive"})
_TIERS: Final = frozenset({"priority", "default", "flex", "batch", "low"})
_SECONDS: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?", re.ASCII)
_MAX_CONTEXT_BYTES: Final = 16 * 2**10


class _Xargs(msgspec.Struct):
    agentic_context: Raw = ABSENT


class _Context(msgspec.Struct):
    deadline_seconds: Raw = ABSENT


_XARGS: Final = msgspec.json.Decoder(_Xargs)
_CONTEXT: Final = msgspec.json.Decoder(_Context)


def read_header_claims(service_class: str | None, deadline: str | None) -> Claims | None:
    """Of the values of the two headers; None if there is nothing to say."""
    if service_class is None and deadline is None:
        return None
    malformed = []
    stated = service_class.lower() if service_class is not None else None
    if stated is not None and stated not in _CLASSES:
        malformed.append("class")
        stated = None
    deadline_s = None
    if deadline is not None:
        deadline_s = _seconds(deadline)
        if deadline_s is None:
            malformed.append("deadline")
    return Claims(service_class=stated, deadline_s=deadline_s, malformed=tuple(malformed))


def with_malformed(claims: Claims | None, what: str) -> Claims:
    """The same, and something else that could not be read."""
    known = claims or Claims()
    return msgspec.structs.replace(known, malformed=(*known.malformed, what))


def has_claims(body: RequestBody) -> bool:
    """Whether the body has a field that may claim something."""
    return body.service_tier is not ABSENT or body.vllm_xargs is not ABSENT


def with_body_claims(claims: Claims | None, body: RequestBody) -> Claims | None:
    """What the headers claim, and what the body adds to it."""
    tier = None
    malformed: tuple[str, ...] = ()
    if body.service_tier is not ABSENT:
        stated = read_text(body.service_tier)
        tier = stated if stated in _TIERS else None
        if stated is None and bytes(body.service_tier) != b"null":
            malformed += ("service_tier",)
    deadline_s = claims.deadline_s if claims is not None else None
    if deadline_s is None and (raw := _context_deadline(body)) is not None:
        deadline_s = _seconds(bytes(raw).decode("ascii", "replace").strip('"'))
        if deadline_s is None:
            malformed += ("deadline",)
    if claims is not None:
        malformed = tuple(dict.fromkeys(claims.malformed + malformed))
        return msgspec.structs.replace(claims, service_tier=tier, deadline_s=deadline_s, malformed=malformed)
    if tier is None and deadline_s is None and not malformed:
        return None
    return Claims(service_tier=tier, deadline_s=deadline_s, malformed=malformed)


def _context_deadline(body: RequestBody) -> Raw | None:
    xargs = read_as(_XARGS, body.vllm_xargs)
    if xargs is None or not 0 < len(memoryview(xargs.agentic_context)) <= _MAX_CONTEXT_BYTES:
        return None
    # It is an object, or one that was encoded once more into a text.
    context = read_as(_CONTEXT, read_text(xargs.agentic_context) or xargs.agentic_context)
    if context is None or context.deadline_seconds is ABSENT or bytes(context.deadline_seconds) == b"null":
        return None
    return context.deadline_seconds


def _seconds(text: str) -> float | None:
    """From now, above 0 and at most `MAX_DEADLINE_S`."""
    if _SECONDS.fullmatch(text) is None:
        return None
    seconds = float(text)
    return seconds if 0 < seconds <= MAX_DEADLINE_S else None
