"""Confidence that means what it says: how often a prediction of this strength was right, and which to act on.

Source: SAGA (§3.3): predictions count from θ_conf = 0.7 on, and 87 % of them are right.

Symbols: θ_conf → `CalibrationConfig.theta`, the least that `threshold` becomes; accuracy → `accuracy`.

Deviations: the paper gives a threshold and an accuracy, and which threshold has that accuracy depends on the
workload: if confidence is calibrated, what lies between 0.70 and 0.75 is wrong more than once in four. So
the accuracy is the setting, and the threshold goes up from θ_conf as far as that takes.

Invariants: confidence lies between 0 and 1; the threshold is never below θ_conf; memory is fixed.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

_BINS: Final = 20
_FINE: Final = 100
_TRUST: Final = 20.0
"""Observations in a bin that weigh as much as what the prediction itself says."""
_ENOUGH: Final = 15.0
_EVERY: Final = 8
_FIRST: Final = 0.9
_MARGIN: Final = 0.015


class CalibrationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    theta: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """The least confidence that is acted on."""
    accuracy: Annotated[float, Meta(ge=0, lt=1)] = 0.87
    """Share of the predictions that are acted on which should be right."""
    half_life: Annotated[float, Meta(gt=0)] = 2000.0
    """What a prediction taught weighs half as much after so many later ones."""


class Calibration:
    def __init__(self, config: CalibrationConfig) -> None:
        self._config = config
        self._keep = 0.5 ** (1.0 / config.half_life)
        self._right = [0.0] * _BINS
        self._seen = [0.0] * _BINS
        self._fine_right = [0.0] * _FINE
        self._fine_seen = [0.0] * _FINE
        self._lessons = 0
        self.threshold = max(config.theta, _FIRST)

    def confidence(self, share: float) -> float:
        """Of a prediction to which the graph gives this probability."""
        place = share * _BINS - 0.5
        low = max(0, min(_BINS - 1, int(place)))
        high = min(_BINS - 1, low + 1)
        part = min(1.0, max(0.0, place - low))
        return share + (1.0 - part) * self._shift(low) + part * self._shift(high)

    def learn(self, share: float, *, was_right: bool) -> None:
        """A prediction with this probability came true, or did not."""
        sure = self.confidence(share)
        for seen, right, place in (
            (self._seen, self._right, min(_BINS - 1, int(share * _BINS))),
            (self._fine_seen, self._fine_right, min(_FINE - 1, int(sure * _FINE))),
        ):
            seen[place] = seen[place] * self._keep + 1.0
            right[place] = right[place] * self._keep + was_right
        self._lessons += 1
        if self._lessons % _EVERY == 0:
            self._move()

    def _shift(self, place: int) -> float:
        """By how much predictions in this bin were right more often than they said."""
        seen = self._seen[place]
        if not seen:
            return 0.0
        middle = (place + 0.5) / _BINS
        return (self._right[place] / seen - middle) * seen / (seen + _TRUST)

    def _move(self) -> None:
        seen = right = 0.0
        best = 1.0
        least = int(self._config.theta * _FINE)
        wanted = self._config.accuracy + _MARGIN
        for place in range(_FINE - 1, least - 1, -1):
            seen += self._fine_seen[place]
            right += self._fine_right[place]
            if right + wanted * _ENOUGH >= wanted * (seen + _ENOUGH):
                best = place / _FINE
        self.threshold = max(self._config.theta, best if seen >= _ENOUGH else max(best, _FIRST))
