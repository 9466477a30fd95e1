"""Answering Envoy: which replica a request goes to, in place of sending it there."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.server import Listen


class PickerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For `turnpike picker`, in place of `turnpike serve` (docs/reference/picker.md)."""

    listen: Listen = "127.0.0.1:9002"
    """Where Envoy asks by gRPC, HOST:PORT; port 0 takes a free one. Nothing is encrypted there."""
    max_wait_s: Annotated[float, Meta(gt=0)] = 60.0
    """So long a request may wait; then it is refused with 503. Let Envoy's `message_timeout` be longer."""
    max_streams: Annotated[int, Meta(ge=1)] = 16384
    """Requests in Envoy at a time, waiting or running; more are refused (gRPC: `RESOURCE_EXHAUSTED`)."""
