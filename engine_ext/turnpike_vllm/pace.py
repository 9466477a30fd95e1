"""How long does a step take? Measured from the steps themselves, so that slack follows the hardware.

A step of ``tokens`` tokens whose decoding requests have ``context`` tokens behind them takes
``base + per_token * tokens + per_context * context`` seconds. The three are fitted by recursive least squares
with forgetting (Ljung, *System Identification*, §11.2), and none counts as negative.
"""

from dataclasses import dataclass

_FORGET = 0.99
_UNCERTAIN = 1e4
_MOST_UNCERTAIN = 1e6
"""Without a bound, what no step shows for long would become arbitrarily uncertain."""


@dataclass
class Pace:
    steps: int = 0
    _theta: tuple[float, float, float] = (2.0, 0.05, 0.0)
    """In ms, ms per token and ms per thousand tokens of context: values of one size."""
    _p: tuple[float, ...] = (_UNCERTAIN, 0.0, 0.0, _UNCERTAIN, 0.0, _UNCERTAIN)
    """Of the symmetric matrix: the first row, what is new in the second, and the last."""

    def observe(self, seconds: float, *, tokens: int, context: int) -> None:
        """A step took so long."""
        self.steps += 1
        x1, x2 = float(tokens), context / 1000.0
        t0, t1, t2 = self._theta
        p00, p01, p02, p11, p12, p22 = self._p
        px0 = p00 + p01 * x1 + p02 * x2
        px1 = p01 + p11 * x1 + p12 * x2
        px2 = p02 + p12 * x1 + p22 * x2
        scale = 1.0 / (_FORGET + px0 + x1 * px1 + x2 * px2)
        gain0, gain1, gain2 = px0 * scale, px1 * scale, px2 * scale
        error = seconds * 1e3 - (t0 + t1 * x1 + t2 * x2)
        self._theta = (t0 + gain0 * error, t1 + gain1 * error, t2 + gain2 * error)
        p: tuple[float, ...] = (
            (p00 - gain0 * px0) / _FORGET,
            (p01 - gain0 * px1) / _FORGET,
            (p02 - gain0 * px2) / _FORGET,
            (p11 - gain1 * px1) / _FORGET,
            (p12 - gain1 * px2) / _FORGET,
            (p22 - gain2 * px2) / _FORGET,
        )
        if max(p) > _MOST_UNCERTAIN or min(p) < -_MOST_UNCERTAIN:
            p = tuple(max(-_MOST_UNCERTAIN, min(_MOST_UNCERTAIN, each)) for each in p)
        self._p = p

    @property
    def per_token_s(self) -> float:
        return max(self._theta[1], 1e-6) / 1e3

    @property
    def per_context_s(self) -> float:
        return max(self._theta[2], 0.0) / 1e6

    def predict(self, *, tokens: int, context: int) -> float:
        added = self.per_token_s * tokens + self.per_context_s * context
        return max(self._theta[0], 0.0) / 1e3 + added

    def tokens_within(self, seconds: float, *, rows: int, context: int) -> int:
        """How many tokens of prefill beside so many decoding rows a step of ``seconds`` has room for."""
        left = seconds - self.predict(tokens=rows, context=context)
        return max(0, int(left / self.per_token_s))
