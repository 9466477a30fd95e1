"""Estimates of a prompt's tokens from its bytes, learned from reported usage.

In a known conversation only the part after its last counted turn is estimated.

Invariants: memory is constant; one odd prompt (an image in base64) moves the settled ratio by a factor of
`e^(1/SLOWEST)` at most.
"""

import math
from typing import Final

import msgspec

from gateway.domain.decay import DecayedMean
from gateway.domain.ids import TenantId
from gateway.domain.request import Usage
from gateway.domain.tenant_lru import TenantLru

# Four bytes a token: English and code, in JSON.
_FIRST_GUESS: Final = 0.25
# Observations in the mean of the ratio.
SLOWEST: Final = 50
_LARGEST_SURPRISE: Final = 1.0
# p90 ÷ mean of the absolute value, if errors are normal (1.6449 ÷ √(2/π)).
_USUAL_TO_P90: Final = 2.06
# Turns in the mean of a tenant's output.
_OUTPUT_OVER: Final = 50
_TENANTS: Final = 4096


class Counted(msgspec.Struct, frozen=True):
    """A prompt with the engine's count."""

    bytes: int
    tokens: int


class TokenGuess(msgspec.Struct, frozen=True):
    tokens: float
    low: float
    """The p10."""
    high: float


_NOTHING: Final = Counted(0, 0)


class TokensPerByte:
    """Of one model."""

    def __init__(self) -> None:
        self._log_ratio = math.log(_FIRST_GUESS)
        self.ratio = _FIRST_GUESS
        # Mean absolute error of the logarithm.
        self._error = math.log(2)
        self._factor = math.exp(_USUAL_TO_P90 * self._error)
        self._observations = 0

    def guess(self, size_bytes: int, before: Counted | None = None) -> TokenGuess:
        """`before`: of the turn that it continues."""
        tokens = self.expect(size_bytes, before)
        known = before.tokens if before is not None and before.bytes <= size_bytes else 0
        rest = tokens - known
        return TokenGuess(tokens, known + rest / self._factor, known + rest * self._factor)

    def expect(self, size_bytes: int, before: Counted | None = None) -> float:
        known = before if before is not None and before.bytes <= size_bytes else _NOTHING
        return known.tokens + (size_bytes - known.bytes) * self.ratio

    def observe(self, counted: Counted, before: Counted | None = None) -> None:
        """Only the part after `before` is new evidence."""
        grown_bytes, grown_tokens = counted.bytes, counted.tokens
        if before is not None and before.bytes < counted.bytes and before.tokens < counted.tokens:
            grown_bytes, grown_tokens = counted.bytes - before.bytes, counted.tokens - before.tokens
        if grown_bytes <= 0 or grown_tokens <= 0:
            return
        self._observations += 1
        share = 1 / min(self._observations, SLOWEST)
        surprise = math.log(grown_tokens / grown_bytes) - self._log_ratio
        if self._observations > 1:
            surprise = max(-_LARGEST_SURPRISE, min(_LARGEST_SURPRISE, surprise))
            self._error += max(share, 1 / 20) * (abs(surprise) - self._error)
        self._log_ratio += share * surprise
        self.ratio, self._factor = math.exp(self._log_ratio), math.exp(_USUAL_TO_P90 * self._error)


class _Usual:
    def __init__(self) -> None:
        self.prompts = TokensPerByte()
        self.output = DecayedMean(half_life=_OUTPUT_OVER)


class UsualTurns:
    """By tenant: a client chooses the tokens per byte, so its evidence is for its tenant alone."""

    def __init__(self) -> None:
        self._known: TenantLru[TenantId, None, _Usual] = TenantLru(_TENANTS)

    def expected(self, tenant: TenantId, body_bytes: int) -> Usage:
        known = self._known.get(tenant, None) or _Usual()
        prompt = known.prompts.expect(body_bytes)
        return Usage(prompt_tokens=round(prompt), output_tokens=round(known.output.mean(0.0)))

    def observe(self, tenant: TenantId, body_bytes: int, usage: Usage) -> None:
        """No prompt has more tokens than bytes."""
        known = self._known.get(tenant, None)
        if known is None:
            known = _Usual()
            self._known.put(tenant, None, known)
        known.prompts.observe(Counted(body_bytes, min(usage.prompt_tokens or 0, body_bytes)))
        known.output.add(usage.output_tokens or 0)
