"""Identities that clients state: CONVENTIONS.md, "Accept — session identity", 1 to 9, as one table.

The first schema with a usable session id wins, and nothing is taken from any other: two halves of different
identities identify nothing. A value that is too long or unprintable counts as not sent.

No session ids: `user`, `safety_identifier` and `x-user-id` identify the payer, `traceparent` and
`x-client-request-id` the request. `previous_response_id` is not in the table either: it identifies a turn,
and only the brain knows the turn's chain (`RequestFacts.state_ids`). It outranks the weak schemas of the
list: where it is sent, those are not read.
"""

from base64 import urlsafe_b64decode
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from gateway.domain.ids import is_well_formed_id
from gateway.domain.request import ExplicitId
from gateway.wire.body import ABSENT, RequestBody, is_true, read_as, read_text, read_text_or_id


class _Schema(msgspec.Struct, frozen=True):
    """One convention: where each part of an identity stands, best place first."""

    name: str
    session: tuple[str, ...]
    thread: tuple[str, ...] = ()
    parent: tuple[str, ...] = ()
    final: str | None = None
    is_weak: bool = False
    """Ranks behind `previous_response_id`."""


TURNPIKE_SCHEMA = "x-turnpike-session"
# Not stated: the connection of a turn whose body could not be read.
CONNECTION_SCHEMA = "connection"

_AGENT_HINTS = ("body.agent_hint", "body.vllm_xargs.agent_hint", "x-agent-hint")

# A bare name is a header. `body.…` is a body field, and `name#field` a field of the JSON (or, for
# baggage, of the list; for x-agent-hint, in base64url) that the header or body field holds as text.
SCHEMAS: tuple[_Schema, ...] = (
    # 1. Turnpike
    _Schema(TURNPIKE_SCHEMA, ("x-turnpike-session",), (), ("x-turnpike-parent",), "x-turnpike-final"),
    # 2. vLLM agentic context, agent hint
    _Schema(
        "vllm-agentic-context",
        (
            "body.vllm_xargs.agentic_context#session_id",
            "body.vllm_xargs.agentic_context#root_program_id",
            "body.vllm_xargs.agentic_context#program_id",
            "body.vllm_xargs.agentic_context#task_id",
        ),
        ("body.vllm_xargs.agentic_context#program_id", "body.vllm_xargs.agentic_context#agent_id"),
        ("body.vllm_xargs.agentic_context#parent_program_id",),
    ),
    _Schema(
        "agent-hint",
        tuple(f"{place}#session_id" for place in _AGENT_HINTS),
        (),
        tuple(f"{place}#parent_session_id" for place in _AGENT_HINTS),
    ),
    # 3. Dynamo
    _Schema(
        "dynamo", ("x-dynamo-session-id",), (), ("x-dynamo-parent-session-id",), "x-dynamo-session-final"
    ),
    # 4. Claude Code, Anthropic
    _Schema(
        "claude-code",
        ("x-claude-code-session-id", "body.metadata.user_id#session_id"),
        ("x-claude-code-agent-id",),
        ("x-claude-code-parent-agent-id",),
    ),
    # 5. Codex
    _Schema(
        "codex",
        ("session-id", "session_id", "x-codex-turn-metadata#session_id"),
        ("thread-id", "x-codex-turn-metadata#thread_id"),
        ("x-codex-parent-thread-id",),
    ),
    # 6. OpenCode; Mistral Vibe
    _Schema("opencode", ("x-session-id", "x-session-affinity"), (), ("x-parent-session-id",)),
    _Schema("vibe", ("x-affinity",)),
    # 7. Gateways
    _Schema("litellm", ("x-litellm-session-id", "x-litellm-trace-id")),
    _Schema("bifrost", ("x-bf-session-id",)),
    _Schema("smg", ("x-smg-routing-key",)),
    _Schema("aibrix", ("x-aibrix-session-key",)),
    _Schema("envoy", ("agent-session-id",)),
    _Schema("helicone", ("helicone-session-id",)),
    _Schema("x-conversation-id", ("x-conversation-id",)),
    # 8. Body fields; those below `previous_response_id` in the list are weaker than it
    _Schema("session_id", ("body.session_id",)),
    _Schema("session_params", ("body.session_params#session_id",)),
    _Schema("conversation", ("body.conversation",)),
    _Schema("prompt_cache_key", ("body.prompt_cache_key",), is_weak=True),
    _Schema("metadata", ("body.metadata.session_id",), is_weak=True),
    _Schema("thunderagent", ("body.program_id",), is_weak=True),
    _Schema("continuum", ("body.job_id",), (), (), "body.is_last_step", is_weak=True),
    # 9. W3C baggage
    _Schema("baggage", ("baggage#session.id", "baggage#gen_ai.conversation.id"), is_weak=True),
)


# Fields that applications also fill with constants.
WEAK_SCHEMAS = frozenset(schema.name for schema in SCHEMAS if schema.is_weak)


# Where the schemas stand in the table that have a session id in this place.
_RANKS = {
    place: tuple(rank for rank, schema in enumerate(SCHEMAS) if place in schema.session)
    for schema in SCHEMAS
    for place in schema.session
}


_PLACES = {
    place.partition("#")[0]
    for each in SCHEMAS
    for place in (*each.session, *each.thread, *each.parent, *filter(None, (each.final,)))
}

# Lower-case names of the headers that identify a session, on purpose or by accident: hidden in tests of
# recognition by content.
IDENTITY_HEADERS = frozenset(
    name.encode("ascii") for name in _PLACES if not name.startswith("body.")
) | frozenset({b"x-client-request-id", b"x-codex-window-id", b"x-openai-subagent"})

# Top-level body fields of the same kind. `conversation` and `previous_response_id` are not among them:
# without them, a request that relies on them would mean something else.
IDENTITY_BODY_FIELDS = frozenset(
    {place.split(".")[1] for place in _PLACES if place.startswith("body.")} | {"client_metadata"}
) - {"conversation"}

_MAX_STRUCTURED_BYTES = 16 * 2**10
_FLAGS = frozenset({"1", "true", "yes"})


def read_explicit_id(headers: Mapping[str, str], body: RequestBody | None) -> ExplicitId | None:
    """The identity that a request states in its headers (by lower-case name) or in its body."""
    if not headers and (body is None or _IDS_OF(body) == _NONE):
        return None
    values = _collect(headers, body)
    is_weak_hidden = body is not None and read_text(body.previous_response_id) is not None
    ranks = {rank for place in values for rank in _RANKS.get(place, ())}
    for rank in sorted(ranks):
        schema = SCHEMAS[rank]
        session = _first(values, schema.session)
        if session is None or (schema.is_weak and is_weak_hidden):
            continue
        thread = _first(values, schema.thread)
        return ExplicitId(
            schema=schema.name,
            session=session,
            thread=None if thread == session and schema.name == "vllm-agentic-context" else thread,
            parent=_first(values, schema.parent),
            final=schema.final is not None and values.get(schema.final, "").lower() in _FLAGS,
        )
    return None


_OF_BODY = IDENTITY_BODY_FIELDS - {"client_metadata", "is_last_step"} | {"conversation"}
_IDS_OF = attrgetter(*_OF_BODY)
_NONE = (ABSENT,) * len(_OF_BODY)


def _first(values: Mapping[str, str], places: tuple[str, ...]) -> str | None:
    for place in places:
        value = values.get(place)
        if value is not None and is_well_formed_id(value):
            return value
    return None


def _collect(headers: Mapping[str, str], body: RequestBody | None) -> dict[str, str]:
    values = dict(headers)
    if "x-codex-turn-metadata" in values:
        _add_fields(values, "x-codex-turn-metadata", values["x-codex-turn-metadata"])
    if "x-agent-hint" in values:
        with suppress(ValueError):
            hint = values["x-agent-hint"][:_MAX_STRUCTURED_BYTES]
            _add_fields(values, "x-agent-hint", urlsafe_b64decode(hint + "=" * (-len(hint) % 4)).decode())
    if "baggage" in values:
        for member in values["baggage"].split(","):
            key, _, value = member.partition(";")[0].partition("=")
            values.setdefault(f"baggage#{key.strip()}", unquote(value.strip()))
    if body is not None and _IDS_OF(body) != _NONE:
        _collect_body(values, body)
    return values


def _collect_body(values: dict[str, str], body: RequestBody) -> None:
    for name in ("session_id", "prompt_cache_key", "program_id", "job_id"):
        _add(values, f"body.{name}", read_text(getattr(body, name)))
    _add(values, "body.conversation", read_text_or_id(body.conversation))
    if is_true(body.is_last_step):
        values["body.is_last_step"] = "true"
    if body.metadata is not ABSENT:
        _add_metadata(values, body.metadata)
    if body.vllm_xargs is not ABSENT:
        xargs = read_as(XARGS, body.vllm_xargs) or Xargs()
        _add_fields(values, "body.vllm_xargs.agentic_context", xargs.agentic_context)
        _add_fields(values, "body.vllm_xargs.agent_hint", xargs.agent_hint)
    _add_fields(values, "body.agent_hint", body.agent_hint)
    _add_fields(values, "body.session_params", body.session_params)


def _add(values: dict[str, str], place: str, text: str | None) -> None:
    if text is not None:
        values[place] = text


class Xargs(msgspec.Struct):
    agentic_context: Raw = ABSENT
    agent_hint: Raw = ABSENT


class _Metadata(msgspec.Struct):
    user_id: Raw = ABSENT
    session_id: Raw = ABSENT


class _IdFields(msgspec.Struct):
    """Every field that a structured value may name an identity by."""

    session_id: Raw = ABSENT
    thread_id: Raw = ABSENT
    root_program_id: Raw = ABSENT
    program_id: Raw = ABSENT
    task_id: Raw = ABSENT
    agent_id: Raw = ABSENT
    parent_program_id: Raw = ABSENT
    parent_session_id: Raw = ABSENT


XARGS = msgspec.json.Decoder(Xargs)
_METADATA = msgspec.json.Decoder(_Metadata)
_ID_FIELDS = msgspec.json.Decoder(_IdFields)


def _add_metadata(values: dict[str, str], raw: Raw) -> None:
    metadata = read_as(_METADATA, raw) or _Metadata()
    _add(values, "body.metadata.session_id", read_text(metadata.session_id))
    user = read_text(metadata.user_id)
    if user is None:
        return
    # Claude Code writes JSON here; before 2026 it wrote `user_…_account_…_session_…`.
    _, separator, suffix = user.rpartition("_session_")
    if separator and user.startswith("user_"):
        values["body.metadata.user_id#session_id"] = suffix
    else:
        _add_fields(values, "body.metadata.user_id", user)


def _add_fields(values: dict[str, str], place: str, value: Raw | str) -> None:
    """The id fields of a JSON object, or of one that was encoded once more into a text."""
    if not isinstance(value, str):
        if len(memoryview(value)) > _MAX_STRUCTURED_BYTES:
            return
        value = read_text(value) or value
    fields = read_as(_ID_FIELDS, value)
    for name in _IdFields.__struct_fields__ if fields is not None else ():
        _add(values, f"{place}#{name}", read_text(getattr(fields, name)))
