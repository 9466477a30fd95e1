"""What is written down of what happens, where, and what in time means."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class StreamFileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, PRIVATE] | None = None
    """Where the stream is written; nowhere if not set. Workers have `<path>.worker-N` each."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 256 << 20
    """At this size the file is moved to `<path>.1`, over an older one, and begun anew."""
    max_pending: Annotated[int, Meta(ge=1)] = 100_000
    """Records waiting to be written; more are dropped."""
    keep_files: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Older files that are kept: `<path>.1` is the newest of them."""
    ring_records: Annotated[int, Meta(ge=0, le=10_000_000)] = 16_384
    """The newest records, kept in memory for `/turnpike/events`, the dashboard and `turnpike explain`; about
    300 bytes each. 0: none, and these have nothing to show."""
    ring_bytes: Annotated[int, Meta(ge=1 << 16)] = 32 << 20
    """Of memory that they may take; the oldest go first."""


class RecordingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, PRIVATE] | None = None
    """Where events and commands are recorded, texts as keyed hashes, in a file for its owner alone; nowhere
    if not set. Workers have `<path>.worker-N` each."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 1 << 30
    """At this size the recording ends."""
    max_pending: Annotated[int, Meta(ge=1)] = 20_000
    """Entries waiting to be written; with more, the recording ends: one with a hole cannot be replayed."""


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `turnpike history` that follows this gateway (docs/reference/history.md)."""

    url: Annotated[str, Meta(pattern=r"^https?://[^/?#]+/?$"), PRIVATE] | None = None
    """Its address, such as `http://127.0.0.1:8070`. The control plane passes questions about sessions and
    turns on to it; without one it answers from memory alone."""
    key_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds its key."""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0
    """For one question; then memory answers."""


class OtelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE] | None = None
    """Where spans are sent by OTLP/HTTP, such as `http://collector:4318/v1/traces`; nowhere if not set."""
    headers: dict[Annotated[str, PRIVATE], Annotated[str, PRIVATE]] = {}
    """Sent with spans."""
    authorization_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds their `Authorization` header."""
    service_name: Annotated[str, Meta(min_length=1, max_length=256), PRIVATE] = "turnpike"
    """What the collector calls this gateway."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the sessions that are traced. Of those in a client's trace, it says itself which are."""
    max_spans_per_s: Annotated[int, Meta(ge=1)] = 500
    """On average, a turn makes three or four; turns that would make more are left out and counted. Each costs
    some 10 µs of the gateway's core."""
    content: bool = False
    """Spans of turns carry what requests and answers say: prompts, answers, arguments and results of tools.
    Whatever secret stands in there, whoever may read the collector reads it, too. A tenant may be left out
    (`tenants.content`). Headers are never sent."""
    content_bytes: Annotated[int, Meta(ge=1024, le=1 << 20)] = 65_536
    """Of it, in one span; more is cut short, the oldest messages first, and the span says so."""
    content_max_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Of requests and answers held at a time until their spans are sent; turns beyond that are traced without
    what they say, and counted."""
    max_pending: Annotated[int, Meta(ge=1)] = 20_000
    """Spans waiting to be sent; more are dropped, and counted."""
    timeout_s: Annotated[float, Meta(gt=0, le=120)] = 10.0
    """For one request to the collector."""

    def __post_init__(self) -> None:
        if self.content and self.endpoint is None:
            raise ValueError("otel.content: there is no otel.endpoint that spans would be sent to")


class ObjectiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slowdown_target: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """A turn or a session is in time if it takes at most so many times what it would take alone."""
