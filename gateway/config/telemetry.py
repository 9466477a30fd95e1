"""What is written down of what happens, where, and what in time means."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class StreamFileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, PRIVATE] | None = None
    """File of the information stream, as JSON lines. Workers have `<path>.worker-N` each."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 256 << 20
    """At this size the file moves to `<path>.1`, and a new one starts."""
    max_pending: Annotated[int, Meta(ge=1)] = 100_000
    """Records waiting to be written; more are dropped."""
    keep_files: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Older files kept; `<path>.1` is the newest."""
    ring_records: Annotated[int, Meta(ge=0, le=10_000_000)] = 16_384
    """Newest records in memory for `/turnpike/events`, the dashboard and `turnpike explain`; about 300 bytes
    each. 0: none, and these are empty."""
    ring_bytes: Annotated[int, Meta(ge=1 << 16)] = 32 << 20
    """Most memory for them; the oldest go first."""


class RecordingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, PRIVATE] | None = None
    """File for events and decisions, texts as keyed hashes, for its owner alone. Workers have
    `<path>.worker-N` each."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 1 << 30
    """At this size the recording ends."""
    max_pending: Annotated[int, Meta(ge=1)] = 20_000
    """Entries waiting to be written; with more, the recording ends, as one with a gap cannot be replayed."""


class HistoryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `turnpike history` that follows this gateway (docs/reference/history.md)."""

    url: Annotated[str, Meta(pattern=r"^https?://[^/?#]+/?$"), PRIVATE] | None = None
    """Its address, such as `http://127.0.0.1:8070`. The control plane forwards queries about the past;
    without it, memory answers."""
    key_env: Annotated[str, PRIVATE] | None = None
    """Environment variable with its key."""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0
    """Timeout of a question; then memory answers."""


class OtelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE] | None = None
    """OTLP/HTTP endpoint for spans, such as `http://collector:4318/v1/traces`."""
    headers: dict[Annotated[str, PRIVATE], Annotated[str, PRIVATE]] = {}
    """HTTP headers of the export."""
    authorization_env: Annotated[str, PRIVATE] | None = None
    """Environment variable with the `Authorization` header."""
    service_name: Annotated[str, Meta(min_length=1, max_length=256), PRIVATE] = "turnpike"
    """Service name at the collector."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of traced sessions. For a session in a client's trace, the client decides."""
    max_spans_per_s: Annotated[int, Meta(ge=1)] = 500
    """Average limit; a turn has three or four spans. Turns beyond it are left out and counted. A span costs
    some 10 µs of CPU."""
    content: bool = False
    """Spans of turns carry prompts, answers, arguments and results of tools. Every reader of the collector
    then reads secrets in them. `tenants.content` excludes a tenant. Headers are never sent."""
    content_bytes: Annotated[int, Meta(ge=1024, le=1 << 20)] = 65_536
    """Most content bytes in a span; more is cut, the oldest messages first, and the span is marked."""
    content_max_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Most bytes of content in memory until its spans are sent; further turns are traced without content, and
    counted."""
    max_pending: Annotated[int, Meta(ge=1)] = 20_000
    """Spans waiting to be sent; more are dropped, and counted."""
    timeout_s: Annotated[float, Meta(gt=0, le=120)] = 10.0
    """Timeout of a request to the collector."""

    def __post_init__(self) -> None:
        if self.content and self.endpoint is None:
            raise ValueError("otel.content: there is no otel.endpoint that spans would be sent to")


class ObjectiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slowdown_target: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """A turn or a session is in time if it takes at most this multiple of its isolated time."""
