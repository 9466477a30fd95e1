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
_TRUST: Final = 10.0
"""Observations in a bin that weigh as much as what the prediction itself says."""
_FEW: Final = 30.0
"""Predictions above a threshold whose outcome weighs as much as their confidence."""
_LEAST: Final = 5.0
_EVERY: Final = 8
_FIRST: Final = 0.9
_MARGIN: Final = 0.02


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
        self._fine_sure = [0.0] * _FINE
        self._lessons = 0
        self.threshold = max(config.theta, _FIRST)

    def confidence(self, share: float) -> float:
        """Of a prediction to which the graph gives this probability."""
        place = share * _BINS - 0.5
        low = max(0, min(_BINS - 1, int(place)))
        high = min(_BINS - 1, low + 1)
        part = min(1.0, max(0.0, place - low))
        shifted = share + (1.0 - part) * self._shift(low) + part * self._shift(high)
        return min(1.0, max(0.0, shifted))

    def suppose(self, share: float, *, was_right: bool, by: float = 1.0) -> None:
        """A prediction with this probability came true, or did not, until it turns out otherwise (`by` = -1).

        Were those that wait for their end left out, the others would count too much.
        """
        place = min(_BINS - 1, int(share * _BINS))
        self._seen[place] = max(0.0, self._seen[place] + by)
        self._right[place] = min(self._seen[place], max(0.0, self._right[place] + by * was_right))

    def learn(self, share: float, *, was_right: bool, is_end: bool = False) -> None:
        """A prediction with this probability came true, or did not; `is_end`: that of an end, which is mostly
        right and must not make up for others."""
        sure, keep = self.confidence(share), self._keep
        place = min(_BINS - 1, int(share * _BINS))
        self._seen[place] = self._seen[place] * keep + 1.0
        self._right[place] = self._right[place] * keep + was_right
        if is_end:
            return
        place = min(_FINE - 1, int(sure * _FINE))
        self._fine_seen[place] = self._fine_seen[place] * keep + 1.0
        self._fine_right[place] = self._fine_right[place] * keep + was_right
        self._fine_sure[place] = self._fine_sure[place] * keep + sure
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
        """To the least threshold above which predictions are right as often as is wanted, as far as is
        known."""
        seen = right = sure = 0.0
        best = _FIRST
        least = int(self._config.theta * _FINE)
        wanted = self._config.accuracy + _MARGIN
        for place in range(_FINE - 1, least - 1, -1):
            seen += self._fine_seen[place]
            right += self._fine_right[place]
            sure += self._fine_sure[place]
            if seen >= _LEAST:
                if min(sure / seen, (right + _FEW * sure / seen) / (seen + _FEW)) >= wanted:
                    best = place / _FINE
                elif place / _FINE >= best:
                    best = min(1.0, (place + 1) / _FINE)
        self.threshold = max(self._config.theta, best)
