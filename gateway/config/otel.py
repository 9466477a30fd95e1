"""Where traces go, and how many."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class OtelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE] | None = None
    """Where spans are sent by OTLP/HTTP, such as `http://collector:4318/v1/traces`; nowhere if not set."""
    headers: dict[Annotated[str, PRIVATE], Annotated[str, PRIVATE]] = {}
    """Sent with them."""
    authorization_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds their `Authorization` header."""
    service_name: Annotated[str, Meta(min_length=1, max_length=256), PRIVATE] = "turnpike"
    """What the collector calls this gateway."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the sessions that are traced. Of those in a client's trace, it says itself which are."""
    max_spans_per_s: Annotated[int, Meta(ge=1)] = 500
    """On average, a turn makes three or four; turns that would make more are left out and counted. Each costs
    some 10 µs of the gateway's core."""
    max_pending: Annotated[int, Meta(ge=1)] = 20_000
    """Spans waiting to be sent; more are dropped, and counted."""
    timeout_s: Annotated[float, Meta(gt=0, le=120)] = 10.0
    """For one request to the collector."""
