"""How long does a step take? Measured from the steps themselves, so that slack follows the hardware.

A step that only decodes takes ``base + per_row * rows + per_context * context`` seconds, where ``context`` is
what the requests have behind them; one that computes prompts ``base + per_token * tokens + per_context *
context``. Each line is fitted by recursive least squares with forgetting (Ljung, *System Identification*,
§11.2), and none of the numbers counts as negative.

A step that decodes waits for memory: all weights are read for few tokens. What it leaves of the arithmetic
may compute a prompt meanwhile (a roofline: Williams et al., *CACM* 52(4), 2009). So of n tokens beside it,

    decoding + per_token * n - overlap * min(decoding, per_token * n)

``overlap`` is measured: 0 where nothing is hidden, 1 where all is.
"""

from dataclasses import dataclass, field
from typing import Final

_FORGET = 0.99
_UNCERTAIN = 1e4
# Without a bound, what no step shows for long would become arbitrarily uncertain.
_MOST_UNCERTAIN = 1e6
_LEAST_PER_TOKEN_MS: Final = 1e-3
# Steps that tell what decoding takes: there are three numbers to be found, in noise.
_ENOUGH: Final = 8


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
class StepTimeModel:
    _decoding: _Line = field(default_factory=_Line)
    _prompts: _Line = field(default_factory=_Line)
    _hidden: float = 0.0
    _hideable: float = 0.0
    """Seconds of prompts beside decoding: those that made no step longer, and all; older count less."""

    @property
    def steps(self) -> int:
        return self._decoding.steps + self._prompts.steps

    def observe(
        self, seconds: float, *, tokens: int, rows: int, context: int, behind: int | None = None
    ) -> None:
        """A step took so long, of so many tokens, of which ``rows`` decoded, with ``behind`` tokens behind
        them. ``context``: behind all, those of prompts too. None: the same."""
        prefill = tokens - rows
        if not prefill:
            self._decoding.observe(seconds * 1e3, tokens, context)
            return
        if rows and self._decoding.steps >= _ENOUGH and self._prompts.steps:
            decoding = self._decoding_s(rows, context if behind is None else behind)
            computes = self.per_token_s * prefill
            if computes <= decoding and seconds <= decoding + computes:
                self._hidden = _FORGET * self._hidden + decoding + computes - seconds
                self._hideable = _FORGET * self._hideable + computes
                return
        self._prompts.observe(seconds * 1e3, tokens, context)
        if self._decoding.steps >= _ENOUGH and self._prompts.base > self._decoding.base:
            # Chunks of one size do not tell what is constant; it is no more than in a step without them.
            self._prompts.observe(self._decoding.base, 0, 0)

    @property
    def per_token_s(self) -> float:
        """Of a prompt's tokens."""
        line = self._prompts if self._prompts.steps else self._decoding
        return max(line.per_token, _LEAST_PER_TOKEN_MS) / 1e3

    @property
    def overlap(self) -> float:
        return min(1.0, self._hidden / self._hideable) if self._hideable else 0.0

    def predict(self, *, rows: int, context: int, prefill: int = 0) -> float:
        """Of a step in which so many requests decode, and so many tokens of prompts are computed."""
        decoding, computes = self._decoding_s(rows, context), self.per_token_s * prefill
        return decoding + computes - self.overlap * min(decoding, computes)

    def tokens_within(self, seconds: float, *, rows: int, context: int) -> int:
        """How many tokens of prefill beside so many decoding rows a step of ``seconds`` has room for."""
        decoding, exposed = self._decoding_s(rows, context), 1.0 - self.overlap
        left, up_to_bend = seconds - decoding, exposed * decoding
        if left <= 0.0:
            return 0
        takes = left / exposed if left < up_to_bend else left + decoding - up_to_bend
        return int(takes / self.per_token_s)

    def _decoding_s(self, rows: int, context: int) -> float:
        is_known = self._decoding.steps >= _ENOUGH or not self._prompts.steps
        line = self._decoding if rows and is_known else self._prompts
        return line.predict(rows, context) / 1e3
