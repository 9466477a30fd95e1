"""Takes out of a request everything by which a client says which session it belongs to.

What is left is the conversation itself, call ids included: those the engine minted, and without them the
request would mean something else. The same holds for `previous_response_id` and `conversation`.
"""

import json
from collections.abc import Mapping
from typing import Any

HEADER_PREFIXES = ("x-turnpike-", "x-dynamo-", "x-claude-code-", "x-codex-")
HEADERS = frozenset(
    {
        "session-id",
        "session_id",
        "thread-id",
        "x-openai-subagent",
        # Codex: not an id of the request; it equals the thread id.
        "x-client-request-id",
        "x-session-id",
        "x-session-affinity",
        "x-affinity",
        "x-parent-session-id",
        "x-litellm-session-id",
        "x-litellm-trace-id",
        "x-bf-session-id",
        "x-smg-routing-key",
        "x-aibrix-session-key",
        "agent-session-id",
        "helicone-session-id",
        "x-conversation-id",
        "baggage",
    }
)
BODY_FIELDS = (
    ("agent_hint",),
    ("session_id",),
    ("session_params",),
    ("prompt_cache_key",),
    ("client_metadata",),
    ("program_id",),
    ("job_id",),
    ("is_last_step",),
    ("this_func_call",),
    ("last_func_call",),
    ("metadata", "user_id"),
    ("metadata", "session_id"),
    ("vllm_xargs", "agentic_context"),
    ("vllm_xargs", "session_id"),
)


def is_identity(header: str) -> bool:
    """Whether a header of this name says which session a request belongs to."""
    name = header.lower()
    return name in HEADERS or name.startswith(HEADER_PREFIXES)


def strip_headers(headers: Mapping[str, str]) -> list[str]:
    """The names of the headers to leave out."""
    return sorted({name.lower() for name in headers if is_identity(name)})


def strip_body(body: bytes) -> tuple[bytes, list[str]]:
    """The body without identity, and the fields taken out; the same bytes when there was nothing to take."""
    try:
        message = json.loads(body)
    except ValueError:
        return body, []
    if not isinstance(message, dict):
        return body, []
    taken = [".".join(path) for path in BODY_FIELDS if _take(message, path)]
    if not taken:
        return body, []
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(), taken


def _take(message: dict[str, Any], path: tuple[str, ...]) -> bool:
    *parents, name = path
    owner: Any = message
    for parent in parents:
        owner = owner.get(parent)
        if not isinstance(owner, dict):
            return False
    return owner.pop(name, _ABSENT) is not _ABSENT


_ABSENT = object()
