"""How long engine steps take: the roofline, times noise.

Invariant: a step takes the same time whether it is taken alone or as part of a stretch, to the last bit.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.cost.formula import context_product
from gateway.cost.profile import Profile
from lab.simulator.engine.roofline import Batch, step_s
from lab.simulator.engine.work import Work

Floats = NDArray[np.float64]

_DRAWN_AT_ONCE: Final = 4096


class StepTimes:
    """The times of one engine's steps, one after the other."""

    def __init__(self, profile: Profile, *, noise: float, seed: str) -> None:
        self._profile = profile
        self._decode_base_s: dict[int, float] = {}
        """By rows: what is the same for every step of so many."""
        self._per_context_token_s = profile.model.kv_bytes_per_token / profile.bytes_per_s
        self._noise = noise
        self._dice = np.random.Generator(np.random.PCG64(int.from_bytes(seed.encode(), "big")))
        self._factors: Floats = np.empty(0)
        self._next = 0

    def next_s(self, scheduled: Mapping[int, int], work: Mapping[int, Work]) -> float:
        """The next step. `scheduled`: how many tokens it computes, by the number of the turn; they count as
        computed already."""
        new_tokens = context = 0
        products = 0.0
        for number, tokens in scheduled.items():
            request = work[number].request
            before = request.num_computed_tokens - tokens
            if tokens == 1 and before >= request.num_prompt_tokens:
                context += before
            else:
                products += context_product(tokens, before)
            new_tokens += tokens
        if not products:
            return self.decode_s(new_tokens, context)
        batch = Batch(
            new_tokens=new_tokens,
            rows=len(scheduled),
            prefill_context_products=products,
            decode_context_tokens=context,
        )
        return self.mixed_s(batch)

    def mixed_s(self, batch: Batch) -> float:
        """The next step, of this batch."""
        return self._with_noise(step_s(self._profile, batch))

    def decode_s(self, rows: int, context_tokens: int) -> float:
        """The next step, of so many rows that decode."""
        return self._with_noise(self._base_s(rows) + self._per_context_token_s * context_tokens)

    def stretch(self, now: float, rows: int, context_tokens: int, steps: int) -> list[float]:
        """When each of so many steps ends, the first beginning now: of rows that all decode."""
        contexts = np.arange(context_tokens, context_tokens + rows * steps, rows, dtype=np.float64)
        times = self._base_s(rows) + self._per_context_token_s * contexts
        if self._noise:
            times *= self._peek(steps)
        times = np.concatenate(((now,), times))
        ends: list[float] = np.cumsum(times, out=times)[1:].tolist()  # added up one after the other
        return ends

    def took(self, steps: int) -> None:
        """So many steps of the last stretch were really taken."""
        self._next += steps

    def _base_s(self, rows: int) -> float:
        base_s = self._decode_base_s.get(rows)
        if base_s is None:
            base_s = self._decode_base_s[rows] = step_s(self._profile, Batch(new_tokens=rows, rows=rows))
        return base_s

    def _with_noise(self, time_s: float) -> float:
        if not self._noise:
            return time_s
        factor: Any = self._peek(1)[0]
        self._next += 1
        return time_s * float(factor)

    def _peek(self, count: int) -> Floats:
        if self._next + count > len(self._factors):
            left = self._factors[self._next :]
            more = self._dice.standard_normal(max(count, _DRAWN_AT_ONCE))
            drawn = np.exp(self._noise * more - self._noise**2 / 2)
            self._factors = np.concatenate((left, drawn))
            self._next = 0
        return self._factors[self._next : self._next + count]
