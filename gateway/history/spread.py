"""Percentiles that can be added up (pure): counts in buckets that grow by a twentieth.

Source: DDSketch (arXiv 1908.10693), §2, without the collapsing of buckets.

Invariants: a percentile is within 2.5 % of one of the values; those of several gateways come out as those of
all their values in one.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_GROWTH: Final = 1.05
_LOG: Final = math.log(_GROWTH)
_LEAST: Final = -200
"""The bucket of everything below about 0.06 µs, for values in ms: of what took no time."""


def buckets(values: Iterable[float]) -> dict[int, int]:
    """Bucket → values in it."""
    log, least = math.log, _GROWTH**_LEAST
    return dict(Counter(_LEAST if value <= least else round(log(value) / _LOG) for value in values))


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The value that so large a share of them does not exceed; None if there are none."""
    left = share * sum(counts.values())
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 1e-9:
            return 0.0 if bucket == _LEAST else _GROWTH**bucket
    return None
