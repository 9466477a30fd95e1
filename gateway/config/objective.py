"""What in time means, and what a replica's time costs."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE


class ObjectiveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    alpha: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """A turn or a session is in time if it takes at most so many times what it would take alone."""
    savings: bool = True
    """Play the turns as a balancer would have placed them that knows no sessions, to tell what was saved."""
    savings_turns_per_s: Annotated[int, Meta(ge=1)] = 100
    """So many are played, on average; others are left out of both sides. Each costs some 0.1 ms of the
    gateway's core."""
    gpu_hour_price: Annotated[float, Meta(gt=0)] | None = None
    """Of one GPU; what was saved is told in money then."""
    gpus_per_replica: Annotated[int, Meta(ge=1)] = 1
    """That one replica runs on."""
    currency: Annotated[str, Meta(min_length=1, max_length=8), PRIVATE] = "USD"
    """What the price is in."""

    @property
    def replica_s_price(self) -> float | None:
        return self.gpu_hour_price * self.gpus_per_replica / 3600 if self.gpu_hour_price is not None else None
