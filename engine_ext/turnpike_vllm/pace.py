"""How long does a step take? Measured from the steps themselves, so that slack follows the hardware.

A step of ``tokens`` tokens whose decoding requests have ``context`` tokens behind them takes
``base + per_token * tokens + per_context * context`` seconds. The three are fitted by recursive least squares
with forgetting (Ljung, *System Identification*, §11.2), and none counts as negative.
"""

from dataclasses import dataclass, field

_FORGET = 0.99
_UNCERTAIN = 1e4


@dataclass
class Pace:
    steps: int = 0
    _theta: list[float] = field(default_factory=lambda: [2.0, 0.05, 0.0])
    """In ms, ms per token and ms per thousand tokens of context: values of one size."""
    _p: list[list[float]] = field(
        default_factory=lambda: [[_UNCERTAIN * (i == j) for j in range(3)] for i in range(3)]
    )

    def observe(self, seconds: float, *, tokens: int, context: int) -> None:
        """A step took so long."""
        self.steps += 1
        x = (1.0, float(tokens), context / 1000.0)
        theta, p = self._theta, self._p
        px = [row[0] * x[0] + row[1] * x[1] + row[2] * x[2] for row in p]
        scale = _FORGET + x[0] * px[0] + x[1] * px[1] + x[2] * px[2]
        gain = [each / scale for each in px]
        error = seconds * 1e3 - (theta[0] * x[0] + theta[1] * x[1] + theta[2] * x[2])
        for i in range(3):
            theta[i] += gain[i] * error
            for j in range(3):
                # Without a bound, what no step shows for long would become arbitrarily uncertain.
                p[i][j] = max(-1e6, min(1e6, (p[i][j] - gain[i] * px[j]) / _FORGET))

    @property
    def per_token_s(self) -> float:
        return max(self._theta[1], 1e-6) / 1e3

    @property
    def per_context_s(self) -> float:
        return max(self._theta[2], 0.0) / 1e6

    def predict(self, *, tokens: int, context: int) -> float:
        base = max(self._theta[0], 0.0) / 1e3
        return base + self.per_token_s * tokens + self.per_context_s * context

    def tokens_within(self, seconds: float, *, rows: int, context: int) -> int:
        """How many tokens of prefill beside so many decoding rows a step of ``seconds`` has room for."""
        left = seconds - self.predict(tokens=rows, context=context)
        return max(0, int(left / self.per_token_s))
