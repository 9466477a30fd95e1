"""A request's facts: the few fields that decisions are made from.

Never raises. What a strict reader refuses is read again as engines do (`engine_json.py`), field by field, and
every readable field is kept. A body that no parser reads is reported as unreadable, one that engines may read
as hidden.
The body itself is never rewritten here.
"""

import re
from collections.abc import Generator, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw

from gateway.domain.ids import clean_name, is_well_formed_id
from gateway.domain.request import Claims, Protocol, RequestFacts, Transcript, Work
from gateway.identity.explicit_ids import IDENTITY_HEADERS, read_explicit_id
from gateway.identity.returned_call_ids import NO_ECHOES, Echoes
from gateway.identity.transcript import TranscriptReader
from gateway.requests.claims import CLAIMS, CLASS_HEADER, NO_CLAIMS, read_header_claims, with_body_claims
from gateway.requests.client_kv_fields import (
    NOTHING_NOTICED,
    NOTICED,
    form_may_have_kv_fields,
    has_kv_fields,
    may_have_kv_fields,
)
from gateway.wire.body import (
    ABSENT,
    MAX_STRUCTURE,
    TEXT,
    UNREADABLE,
    Oversized,
    RequestBody,
    decode_each,
    decode_measured,
    decode_outline,
    is_false,
    is_true,
    items_of,
    measuring,
    read_as,
    read_text,
    read_text_or_id,
)
from gateway.wire.endpoints import Endpoint
from gateway.wire.engine_json import strict_copy
from gateway.wire.form import form_parts, read_form_field
from gateway.wire.grown_body import LEAST_BYTES, GrownBodies
from gateway.wire.hashing import digest, hash_text
from gateway.wire.headers import RawHeaders, select_headers
from gateway.wire.slices import finish

_ATTEMPT = b"x-stainless-retry-count"
# Of a user agent, the first one without its version; SDKs put their language there.
_PRODUCT = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,31}(?:/[A-Za-z]{1,16}(?![^ ]))?")
_WANTED_HEADERS = IDENTITY_HEADERS.union(
    (b"content-encoding", b"content-type", b"user-agent", b"traceparent", _ATTEMPT, CLASS_HEADER)
)
# One for the process: sessions of the same agent share their first messages.
TRANSCRIPTS = TranscriptReader()

# Some clients name the character set here; a body is plain all the same.
_NO_CODINGS = frozenset(("", "identity", "none", "utf-8", "utf8"))
_NO_CONVERSATION = (Transcript(), NO_ECHOES)
_MAX_STATE_IDS = 64
# Bytes of a name that is remembered; a fleet has few.
_MAX_KNOWN_MODEL = 256
_REFERENCE_TYPE = b"item_reference"
# An item reference is an id and a type; longer items need not be looked at.
_MAX_REFERENCE_BYTES = 512


class HeaderFacts(msgspec.Struct, frozen=True):
    """Facts in a request's header fields; requests with equal fields may share it."""

    stated: dict[str, str]
    """Fields that may identify a session, by lower-case name."""
    content_type: str
    is_form: bool
    coding: str
    """Empty if its body is plain."""
    client: int
    client_name: str
    attempt: int | None
    claims: Claims | None
    traceparent: str = ""
    """As it came; empty if there is none."""


def read_header_facts(headers: RawHeaders) -> HeaderFacts:
    selected = select_headers(headers, _WANTED_HEADERS)
    content_type = selected.pop("content-type", "")
    coding = ""
    if selected.pop("content-encoding", None) is not None:  # as one list, in however many fields
        codings = [value.decode("latin-1") for name, value in headers if name.lower() == b"content-encoding"]
        stated = [each.strip().lower() for each in ",".join(codings).split(",")]
        coding = ", ".join(each for each in stated if each not in _NO_CODINGS)
    software, attempt = selected.pop("user-agent", ""), selected.pop(_ATTEMPT.decode(), "")
    service_class = selected.pop(CLASS_HEADER.decode(), None)
    traceparent = selected.pop("traceparent", "")
    return HeaderFacts(
        stated=selected,
        content_type=content_type,
        is_form=content_type.lower().startswith("multipart/form-data"),
        coding=coding,
        client=hash_text(software) if software else 0,
        client_name=named[0] if (named := _PRODUCT.match(software)) else "",
        attempt=int(attempt) if attempt.isdecimal() and len(attempt) < 5 else None,
        claims=read_header_claims(service_class),
        traceparent=traceparent,
    )


def read_facts(endpoint: Endpoint, headers: RawHeaders, body: bytes) -> RequestFacts:
    return finish(reading_body_facts(endpoint, read_header_facts(headers), body))


def reading_body_facts(
    endpoint: Endpoint,
    header: HeaderFacts,
    body: bytes,
    *,
    is_relayed: bool = False,
    before: GrownBodies | None = None,
) -> Generator[None, None, RequestFacts]:
    """The same in slices, where the header fields have been read before. `is_relayed`: of a turn it is read
    only where it may go: its model, the stored state that it builds on, KV caches that it names. `before`:
    bodies that this one may begin with."""
    is_turn = endpoint.work is Work.GENERATE
    is_relayed = is_relayed and is_turn
    plain, is_oversized = body, False
    try:
        if header.is_form and not is_turn:
            return _form_facts(endpoint, header, body)
        return (yield from _read(endpoint, header, body, before, is_relayed=is_relayed))
    except Oversized:
        is_oversized = True
    except UNREADABLE as error:
        try:
            plain = b""
            plain = yield from strict_copy(body, is_deep=isinstance(error, RecursionError))
            try:
                return (yield from _read(endpoint, header, plain, None, is_relayed=is_relayed, is_anew=True))
            except RecursionError:  # another error came first
                plain = yield from strict_copy(body, is_deep=True)
                return (yield from _read(endpoint, header, plain, None, is_relayed=is_relayed, is_anew=True))
        except UNREADABLE as again:
            is_oversized = isinstance(again, (Oversized, RecursionError))
    facts = unread_facts(endpoint, header, len(body), is_hidden=is_oversized)
    moves_kv = yield from may_have_kv_fields(body)
    facts = msgspec.structs.replace(facts, moves_kv=moves_kv, is_oversized=is_oversized)
    if is_oversized and plain:
        facts = _outlined(endpoint, header, plain, facts)
    return msgspec.structs.replace(facts, is_relayed=is_relayed)


def _read(
    endpoint: Endpoint,
    header: HeaderFacts,
    plain: bytes,
    before: GrownBodies | None,
    *,
    is_relayed: bool,
    is_anew: bool = False,
) -> Generator[None, None, RequestFacts]:
    """Raises one of `UNREADABLE`. `is_anew`: what can be read of it is, whatever the rest is like."""
    is_turn, is_responses = endpoint.work is Work.GENERATE, endpoint.protocol is Protocol.RESPONSES
    fields = RequestBody()
    items: Sequence[Raw] = ()
    before = before if len(plain) >= LEAST_BYTES else None
    grown = before.decode(plain, is_responses=is_responses) if before is not None else None
    if grown is not None:
        fields, items = grown
    elif is_anew:
        yield from measuring(plain)
        fields = decode_each(plain, is_responses=is_responses)
        items = items_of(fields)
    elif plain or is_turn:
        if len(plain) > MAX_STRUCTURE:
            yield from measuring(plain)
        fields = decode_measured(plain, is_responses=is_responses)
        items = items_of(fields) if is_responses else fields.messages or ()
        if before is not None:
            items = before.remember(plain, items, is_responses=is_responses)
    placing = _placing_facts(endpoint, fields, items, plain)
    if is_relayed:
        return msgspec.structs.replace(placing, is_relayed=True)
    conversation = _NO_CONVERSATION
    if is_turn:
        try:
            conversation = yield from TRANSCRIPTS.reading(fields, items)
        except UNREADABLE:
            if not is_anew:
                raise
    return _with_session_facts(placing, header, fields, items, conversation)


def _outlined(endpoint: Endpoint, header: HeaderFacts, plain: bytes, unread: RequestFacts) -> RequestFacts:
    """Facts of a request whose conversation takes too long to read: its session and its possible replicas.
    References to stored items are not read."""
    try:
        fields = decode_outline(plain)
    except UNREADABLE:
        return unread
    placing = _placing_facts(endpoint, fields, (), plain)
    known = _with_session_facts(placing, header, fields, (), _NO_CONVERSATION)
    return msgspec.structs.replace(known, is_readable=False, is_oversized=True)


@lru_cache(256)
def _known_model(raw: bytes) -> str | None:
    return _name(read_as(TEXT, raw))


def _name(text: str | None) -> str | None:
    return None if text is None else clean_name(text)


def unread_facts(
    endpoint: Endpoint, fields: HeaderFacts, body_bytes: int, *, is_hidden: bool
) -> RequestFacts:
    """What is known of a request whose body is not understood. `is_hidden`: an engine may understand it."""
    return RequestFacts(
        protocol=endpoint.protocol,
        work=endpoint.work,
        body_bytes=body_bytes,
        explicit=read_explicit_id(fields.stated, None),
        claims=fields.claims,
        state_ids=_path_ids(endpoint),
        # Whether it stores is not known, so it must be assumed.
        stores=_may_store(endpoint),
        is_replayable=endpoint.is_replayable and not _may_store(endpoint),
        is_readable=False,
        is_hidden=is_hidden or bool(fields.coding),
    )


def _placing_facts(
    endpoint: Endpoint, fields: RequestBody, items: Sequence[Raw], plain: bytes
) -> RequestFacts:
    is_responses = endpoint.protocol is Protocol.RESPONSES
    names_state = is_responses or endpoint.state_id is not None
    is_background = fields.background is not ABSENT and is_true(fields.background)
    stores = is_responses and _may_store(endpoint) and (is_background or not is_false(fields.store))
    is_long = len(memoryview(fields.model)) > _MAX_KNOWN_MODEL
    model = _name(read_text(fields.model)) if is_long else _known_model(bytes(fields.model))
    return RequestFacts(
        protocol=endpoint.protocol,
        work=endpoint.work,
        model=model,
        stream=is_true(fields.stream),
        body_bytes=len(plain),
        state_ids=_state_ids(endpoint, fields, items, plain) if names_state else (),
        stores=stores,
        is_background=is_background,
        is_replayable=endpoint.is_replayable and not stores,
        moves_kv=NOTICED(fields) != NOTHING_NOTICED and has_kv_fields(fields, plain),
        names_response=is_responses and fields.request_id is not ABSENT,
    )


def _with_session_facts(
    placing: RequestFacts,
    header: HeaderFacts,
    fields: RequestBody,
    items: Sequence[Raw],
    conversation: tuple[Transcript, Echoes],
) -> RequestFacts:
    transcript, echoes = conversation
    return msgspec.structs.replace(
        placing,
        message_count=len(items),
        tool_count=len(fields.tools or ()),
        explicit=read_explicit_id(header.stated, fields),
        claims=with_body_claims(header.claims, fields) if CLAIMS(fields) != NO_CLAIMS else header.claims,
        echoed_ids=echoes.echoed_ids,
        tool_result_ids=echoes.tool_result_ids,
        transcript=transcript,
        attempt=header.attempt,
        client=header.client,
        client_name=header.client_name,
    )


def _form_facts(endpoint: Endpoint, header: HeaderFacts, body: bytes) -> RequestFacts:
    return msgspec.structs.replace(
        unread_facts(endpoint, header, len(body), is_hidden=False),
        model=_name(read_form_field(header.content_type, body, "model")),
        moves_kv=form_may_have_kv_fields(body),
        is_form=True,
        is_readable=True,
    )


def hash_body(endpoint: Endpoint, header: HeaderFacts, body: bytes) -> int:
    """By which a body is known again that holds no conversation; a few milliseconds for 64 MiB."""
    parts = form_parts(header.content_type, body) if header.is_form else [body]
    return hash((digest(endpoint.name.encode()), *map(digest, parts)))


def _may_store(endpoint: Endpoint) -> bool:
    """Engines store responses, unless the body forbids it, and additions to conversations."""
    if endpoint.protocol is not Protocol.RESPONSES:
        return False
    return endpoint.work is Work.GENERATE or not endpoint.is_replayable


def _path_ids(endpoint: Endpoint) -> tuple[str, ...]:
    return () if endpoint.state_id is None else (endpoint.state_id,)


class _Reference(msgspec.Struct):
    type: Raw = ABSENT
    id: Raw = ABSENT


_REFERENCE = msgspec.json.Decoder(_Reference)


def _state_ids(
    endpoint: Endpoint, fields: RequestBody, items: Sequence[Raw], plain: bytes
) -> tuple[str, ...]:
    if endpoint.protocol is not Protocol.RESPONSES:
        return _path_ids(endpoint)
    stated = [read_text(fields.previous_response_id), read_text_or_id(fields.conversation)]
    ids = [text for text in stated if text is not None]
    ids += _references(items) if _REFERENCE_TYPE in plain else ()
    ids += _path_ids(endpoint)
    return tuple(text for text in dict.fromkeys(ids) if is_well_formed_id(text))


def _references(items: Sequence[Raw]) -> list[str]:
    ids: list[str] = []
    for raw in reversed(items):
        if len(memoryview(raw)) > _MAX_REFERENCE_BYTES or _REFERENCE_TYPE not in bytes(raw):
            continue
        reference = read_as(_REFERENCE, raw)
        text = None if reference is None else read_text(reference.id)
        if text is not None and reference is not None and bytes(reference.type) == b'"item_reference"':
            ids.append(text)
        if len(ids) == _MAX_STATE_IDS:
            break
    return ids
