"""How long does a step take? Measured from the steps themselves, so that slack follows the hardware.

A small step waits for memory: all weights are read, however few its tokens are. A large one waits for its
arithmetic. So a step takes the longer of two lines (a roofline: Williams et al., *CACM* 52(4), 2009), each
``base + per_token * tokens + per_context * context`` seconds, where ``context`` is what the decoding requests
have behind them. Steps that only decode teach the first line, those that compute prompts the second; but where
so few tokens of prompts were computed that the first line is above the second, it is taught. Each is fitted by
recursive least squares with forgetting (Ljung, *System Identification*, §11.2), and none of its numbers counts
as negative. On a device without a bend both lines are the same.
"""

from dataclasses import dataclass, field
from typing import Final

_FORGET = 0.99
_UNCERTAIN = 1e4
_MOST_UNCERTAIN = 1e6
"""Without a bound, what no step shows for long would become arbitrarily uncertain."""
_LEAST_PER_TOKEN_MS: Final = 1e-3
_BENT: Final = 0.5
"""Where a token costs more than this part of what it costs in a large step, there is no bend to be told from noise."""


@dataclass
class _Line:
    steps: int = 0
    theta: tuple[float, float, float] = (2.0, 0.05, 0.0)
    """In ms, ms per token and ms per thousand tokens of context: values of one size."""
    _p: tuple[float, ...] = (_UNCERTAIN, 0.0, 0.0, _UNCERTAIN, 0.0, _UNCERTAIN)
    """Of the symmetric matrix: the first row, what is new in the second, and the last."""

    def observe(self, milliseconds: float, tokens: int, context: int) -> None:
        self.steps += 1
        x1, x2 = float(tokens), context / 1000.0
        t0, t1, t2 = self.theta
        p00, p01, p02, p11, p12, p22 = self._p
        px0 = p00 + p01 * x1 + p02 * x2
        px1 = p01 + p11 * x1 + p12 * x2
        px2 = p02 + p12 * x1 + p22 * x2
        scale = 1.0 / (_FORGET + px0 + x1 * px1 + x2 * px2)
        gain0, gain1, gain2 = px0 * scale, px1 * scale, px2 * scale
        error = milliseconds - (t0 + t1 * x1 + t2 * x2)
        self.theta = (t0 + gain0 * error, t1 + gain1 * error, t2 + gain2 * error)
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
    def base(self) -> float:
        return max(self.theta[0], 0.0)

    @property
    def per_token(self) -> float:
        return max(self.theta[1], 0.0)

    @property
    def per_context(self) -> float:
        """Of a thousand tokens."""
        return max(self.theta[2], 0.0)

    def predict(self, tokens: int, context: int) -> float:
        return self.base + self.per_token * tokens + self.per_context * context / 1000.0


@dataclass
class Pace:
    _small: _Line = field(default_factory=_Line)
    _large: _Line = field(default_factory=_Line)

    @property
    def steps(self) -> int:
        return self._small.steps + self._large.steps

    def observe(self, seconds: float, *, tokens: int, context: int, decodes: bool) -> None:
        """A step took so long. ``decodes``: it computed no prompt."""
        line = self._small if decodes or tokens <= self._bend else self._large
        line.observe(seconds * 1e3, tokens, context)
        if line is self._large and self._small.steps and line.base > self._small.base:
            # Chunks of one size do not tell what is constant; it is no more than in a small step.
            line.observe(self._small.base, 0, 0)

    @property
    def _bend(self) -> float:
        """Up to so many tokens a step takes as long as one that decodes; 0 if that is not known."""
        small, large = self._small, self._large
        if not small.steps or not large.steps or small.per_token > _BENT * large.per_token:
            return 0.0
        return (small.base - large.base) / (large.per_token - small.per_token)

    @property
    def per_token_s(self) -> float:
        """Of a prompt's tokens."""
        return self._per_token_ms / 1e3

    @property
    def _per_token_ms(self) -> float:
        line = self._large if self._large.steps else self._small
        return max(line.per_token, _LEAST_PER_TOKEN_MS)

    def predict(self, *, rows: int, context: int, prefill: int = 0) -> float:
        """Of a step in which so many requests decode, and so many tokens of prompts are computed."""
        return max(at + slope * prefill for at, slope in self._lines(rows, context)) / 1e3

    def tokens_within(self, seconds: float, *, rows: int, context: int) -> int:
        """How many tokens of prefill beside so many decoding rows a step of ``seconds`` has room for."""
        rooms = [(seconds * 1e3 - at) / slope for at, slope in self._lines(rows, context)]
        return max(0, int(min(rooms)))

    def _lines(self, rows: int, context: int) -> list[tuple[float, float]]:
        """Of each line that is known: what these requests take, and each further token, in ms.

        What decoding alone shows of a token's cost is vague, as contexts grow with the rows; it is never more
        than in a large step."""
        most = self._per_token_ms
        known = [line for line in (self._small, self._large) if line.steps] or [self._small]
        return [
            (line.predict(rows, context), min(max(line.per_token, _LEAST_PER_TOKEN_MS), most))
            for line in known
        ]
