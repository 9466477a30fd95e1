"""What a tiny model on a core costs, as a cost profile: six numbers, found from how long sessions took.

A step of it costs an overhead, so much for a token, for a token's look at each other of its context, and for
each sequence in the step (sampling, and the work of the server for a token that is streamed); the profile has
no such thing, so it stands there as experts, of which a step reads those that its tokens need. What happens
outside steps (parsing, tokens to text, gateway and client) is what the server's front takes: so much for a
request, and for a token of its prompt.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.cost.profile import Hardware, Model, Profile
from gateway.simulator.engine.front import FrontCosts

_RATE: Final = 1e12
"""FLOPs and bytes a second: they only carry times."""
_EXPERTS: Final = 16
_SHRINKS: Final = (0.4, 0.2, 0.1, 0.05)
"""Steps of the search, in logarithms."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The defaults are where the search begins."""

    step_s: float = 0.004
    token_s: float = 12e-6
    context_token_s: float = 5e-9
    sequence_s: float = 0.6e-3
    request_s: float = 0.008
    prompt_token_s: float = 2e-6

    @property
    def front(self) -> FrontCosts:
        return FrontCosts(request_s=self.request_s, prompt_token_s=self.prompt_token_s)

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
                expert_weight_bytes=self.sequence_s * _EXPERTS * _RATE,
                experts=_EXPERTS,
                experts_per_token=1,
                kv_bytes_per_token=self.context_token_s * _RATE,
                attention_flops_per_context_token=self.context_token_s * _RATE,
                source="fitted",
            ),
            compute_efficiency=1.0,
            step_overhead_s=self.step_s,
            chunk_tokens=chunk_tokens,
            kv_capacity_tokens=kv_tokens,
        )


def fitted(simulate: Callable[[Costs], Mapping[str, float]], seen: Mapping[str, float]) -> Costs:
    """The costs with which sessions take what they were seen to take: one number after the other, by steps
    that become smaller."""

    def loss(costs: Costs) -> float:
        played = simulate(costs)
        errors = [math.log(played[name] / seconds) for name, seconds in seen.items()]
        mean = math.log(sum(played.values()) / sum(seen.values()))
        return sum(error**2 for error in errors) / len(errors) + mean**2

    best = Costs()
    least = loss(best)
    for step in _SHRINKS:
        for name in (None, *Costs.__struct_fields__):
            for direction in (step, -step):
                while (tried := loss(moved := _moved(best, name, math.exp(direction)))) < least:
                    best, least = moved, tried
    return best


def _moved(costs: Costs, name: str | None, factor: float) -> Costs:
    """One of the numbers, or all of them, times the factor."""
    names = Costs.__struct_fields__ if name is None else (name,)
    return msgspec.structs.replace(costs, **{each: getattr(costs, each) * factor for each in names})
