"""What a tiny model on a core costs, as a cost profile: numbers that are measured, by least squares.

A step costs an overhead, so much for each sequence in it (sampling, and the work of the server for a token
that is streamed), for each new token, and for a token's look at each other of its context: less in a prompt,
where many look at once, than alone, while decoding. These five are fitted to the steps of engines under load.
What a request takes outside the engine until its first token (parsing, tokens to text, gateway and client) is
what the server's front takes: so much for a request, and for a token of its prompt, while the engine on its
core computes, and a part of that while it does not. These are fitted to requests under the same load.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.cost.formula import context_product
from gateway.cost.profile import Hardware, Model, Profile
from lab.engine.step_log import Step
from lab.simulator.engine.front import FrontCosts

_RATE: Final = 1e12
"""FLOPs and bytes a second: they only carry times."""
_ROUNDS: Final = 6
_LEAST_S: Final = 1e-6
_Floats = NDArray[np.float64]


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    step_s: float
    row_s: float
    token_s: float
    prompt_context_token_s: float
    decode_context_token_s: float
    request_s: float
    prompt_token_s: float
    idle_share: float = 1.0
    """No seconds: the part of the two above while the engine is idle."""

    def times(self, factor: float) -> "Costs":
        seconds = {
            name: getattr(self, name) * factor for name in self.__struct_fields__ if name.endswith("_s")
        }
        return msgspec.structs.replace(self, **seconds)

    def pace_of(self, steps: Iterable[Step]) -> float:
        """How many times as long these steps took as these costs say."""
        seen = [step for step in steps if step.took_s > 0]
        costs = (
            self.step_s,
            self.row_s,
            self.token_s,
            self.prompt_context_token_s,
            self.decode_context_token_s,
        )
        expected_s = sum(
            cost * times for step in seen for cost, times in zip(costs, _features(step), strict=True)
        )
        return sum(step.took_s for step in seen) / expected_s

    @property
    def front(self) -> FrontCosts:
        return FrontCosts(
            request_s=self.request_s, prompt_token_s=self.prompt_token_s, idle_share=self.idle_share
        )

    def profile(self, *, chunk_tokens: int, kv_tokens: int) -> Profile:
        return Profile(
            hardware=Hardware(
                name="core",
                peak_flops=_RATE,
                memory_bytes_per_s=_RATE,
                memory_bytes=_RATE,
                host_link_bytes_per_s=_RATE,
                source="fitted",
            ),
            model=Model(
                name="tiny",
                active_parameters=self.token_s * _RATE / 2,
                dense_weight_bytes=1.0,
                kv_bytes_per_token=max(1.0, self.decode_context_token_s * _RATE),  # a token has some
                attention_flops_per_context_token=self.prompt_context_token_s * _RATE,
                source="fitted",
            ),
            compute_efficiency=1.0,
            step_overhead_s=self.step_s,
            row_overhead_s=self.row_s,
            chunk_tokens=chunk_tokens,
            kv_capacity_tokens=kv_tokens,
        )


class Asked(msgspec.Struct, frozen=True):
    """A request until its first token."""

    prompt_tokens: int
    outside_s: float
    """That it neither waited for admission nor was in the engine."""
    is_beside_idle: bool = False
    """Its engine computed for less than half of that time."""


def fitted(steps: Iterable[Step], asked: Iterable[Asked]) -> Costs:
    found = [step for step in steps if step.took_s > 0]
    took_s = np.array([step.took_s for step in found])
    step_s, row_s, token_s, prompt_s, decode_s = least_squares([_features(step) for step in found], took_s)
    requests = list(asked)
    idle = [request for request in requests if request.is_beside_idle]
    busy = [request for request in requests if not request.is_beside_idle] or requests
    outside_s = np.array([request.outside_s for request in busy])
    request_s, read_s = least_squares([(1.0, request.prompt_tokens) for request in busy], outside_s)
    expected_s = sum(request_s + read_s * request.prompt_tokens for request in idle)
    idle_s = sum(request.outside_s for request in idle)
    return Costs(
        step_s=step_s,
        row_s=row_s,
        token_s=token_s,
        prompt_context_token_s=prompt_s,
        decode_context_token_s=decode_s,
        request_s=request_s,
        prompt_token_s=read_s,
        idle_share=min(1.0, idle_s / expected_s) if expected_s else 1.0,
    )


def _features(step: Step) -> tuple[float, ...]:
    """What is multiplied with the five costs."""
    products = contexts = 0.0
    for row in step.rows:
        if row.decodes:
            contexts += row.tokens_before
        else:
            products += context_product(row.new_tokens, row.tokens_before)
    return 1.0, len(step.rows), sum(row.new_tokens for row in step.rows), products, contexts


def least_squares(features: Sequence[Sequence[float]], seconds: _Floats) -> list[float]:
    """Errors count relative to the root of the time, as it is fitted: relative to what was seen, what took
    longer by chance would count less."""
    table = np.array(features)
    costs = _not_negative(table, seconds)
    for _ in range(_ROUNDS):
        expected_s = table @ costs
        weights = 1 / np.sqrt(np.maximum(expected_s, _LEAST_S))
        costs = _not_negative(table * weights[:, None], seconds * weights)
    return [float(cost) for cost in costs]


def _not_negative(table: _Floats, seconds: _Floats) -> _Floats:
    """What would cost less than nothing is left out, the worst first."""
    costs: _Floats = np.zeros(table.shape[1])
    used = list(range(table.shape[1]))
    while used:
        found = np.linalg.lstsq(table[:, used], seconds, rcond=None)[0]
        if (found >= 0).all():
            costs[used] = found
            break
        del used[int(found.argmin())]
    return costs
