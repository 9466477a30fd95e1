"""What can be driven: events go in, commands come out.

The brain of the live gateway is one of them; the gateways that it is compared with are others.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.core.commands import Command
from gateway.core.events import Event
from gateway.domain.ids import RequestId


class Brain(Protocol):
    @property
    def live(self) -> Mapping[RequestId, Any]:
        """The requests that have arrived and are not over."""
        ...

    def handle(self, event: Event, *, now: float) -> list[Command]: ...

    def next_deadline_s(self) -> float | None: ...
