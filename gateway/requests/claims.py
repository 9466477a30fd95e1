"""Clients' claims on urgency: CONVENTIONS.md, "Accept — priority and SLO", in part.

Sources: a header of ours, OpenAI's `service_tier`, and two fields of vLLM's agentic context: how long to
retain the turn's cache, and whether the conversation continues (also in `agent_hint`). The context's
`priority` is not read, as its direction is undefined; nor is its deadline, which brought no gain. A malformed
value counts as not sent, and its name is in `Claims.malformed`. An unknown `service_tier` is no fault: most
tiers of other APIs have no meaning for urgency.
"""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from gateway.domain.request import Claims
from gateway.identity.explicit_ids import XARGS, Xargs
from gateway.wire.body import ABSENT, RequestBody, read_as, read_text, truth_of

CLASS_HEADER: Final = b"x-turnpike-class"

# By the header's value: the paper's words, and those of the settings.
CLASSES: Final = {
    "reactive": "reactive",
    "interactive": "reactive",
    "proactive": "proactive",
    "background": "proactive",
}
TIERS: Final = frozenset({"priority", "default", "flex", "batch", "low"})
_SECONDS: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?", re.ASCII)
_MAX_CONTEXT_BYTES: Final = 16 * 2**10


class _Context(msgspec.Struct):
    kv_retention_ttl_seconds: Raw = ABSENT
    expected_resume: Raw = ABSENT


_CONTEXT: Final = msgspec.json.Decoder(_Context)
T = TypeVar("T")
CLAIMS = attrgetter("service_tier", "vllm_xargs", "agent_hint")
NO_CLAIMS = CLAIMS(RequestBody())


def read_header_claims(service_class: str | None) -> Claims | None:
    """None if there are none."""
    if service_class is None:
        return None
    stated = CLASSES.get(service_class.lower())
    return Claims(service_class=stated, malformed=("class",) if stated is None else ())


def with_body_claims(claims: Claims | None, body: RequestBody) -> Claims | None:
    known = claims or Claims()
    malformed = [*known.malformed]
    tier = _stated(body.service_tier, read_text, "service_tier", malformed)
    context = _context(body)
    retain_s = _stated(context.kv_retention_ttl_seconds, _seconds, "retention", malformed)
    resumes = _stated(context.expected_resume, truth_of, "resume", malformed)
    found = msgspec.structs.replace(
        known,
        service_tier=tier if tier in TIERS else None,
        retain_s=retain_s,
        resumes=resumes,
        malformed=tuple(dict.fromkeys(malformed)),
    )
    return claims if found == Claims() else found


def _context(body: RequestBody) -> _Context:
    """The agentic context; of an `agent_hint` only whether it is to be resumed. They are never mixed."""
    xargs = read_as(XARGS, body.vllm_xargs) or Xargs()
    context = _inner(xargs.agentic_context)
    if context is not None:
        return context
    hint = _inner(body.agent_hint) or _inner(xargs.agent_hint)
    return _Context(expected_resume=hint.expected_resume) if hint is not None else _Context()


def _inner(raw: Raw) -> _Context | None:
    """It is an object, or one that was encoded once more into a text."""
    if not 0 < len(memoryview(raw)) <= _MAX_CONTEXT_BYTES:
        return None
    return read_as(_CONTEXT, read_text(raw) or raw)


def _stated(raw: Raw, read: Callable[[Raw], T | None], name: str, malformed: list[str]) -> T | None:
    if raw is ABSENT or bytes(raw) == b"null":
        return None
    found = read(raw)
    if found is None:
        malformed.append(name)
    return found


def _seconds(raw: Raw) -> float | None:
    text = bytes(raw).decode("ascii", "replace").strip('"')
    return float(text) if _SECONDS.fullmatch(text) is not None else None
