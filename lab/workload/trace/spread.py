"""A quantity that varies: log-normal around a median, within bounds."""

import math
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(ge=0)]


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    median: Positive
    sigma: Positive = 0.0
    """Of the logarithm: 0 is always the median, 1 has a quarter of all beyond twice the median."""
    least: Positive = 0.0
    most: Positive = math.inf

    def draw(self, rng: Random) -> float:
        value = self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0)) if self.sigma else self.median
        return min(max(value, self.least), self.most)

    def count(self, rng: Random) -> int:
        """A whole number."""
        return round(self.draw(rng))
