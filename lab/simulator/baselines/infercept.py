"""InferCept: at a tool call, whichever wastes the least memory: preserve, discard, or swap.

Source: InferCept (arXiv 2402.01869), §3.2 and §4 (min-waste interception), and its code's `discard_waste`.

Symbols: T_INT → how long the tool takes; C_i → `context`, tokens of the call; C_other → `_others`, tokens
of those that run; T_fwd(C) → `prefill_s`; T_swap(C) → `swap_s`. Waste is in token-seconds, M (bytes per
token) left out: preserve = T_INT · C_i; discard = T_fwd(C_i) · (C_i / 2 + C_other), computed again in
chunks, during which its memory fills up and the others wait; swap = 2 · T_swap(C_i) · (C_i + C_other), out
and in.

Deviations: swapping is vLLM's native offload, where the replica has it (`infercept+offload`): what is not
preserved then comes back over PCIe, so the cheaper of discard and swap is what preserving is held against.
With `estimate=elapsed`, the paper's own (T_INT is what has passed so far), a call is preserved until it has
wasted as much as giving it up would. With `mean`, the mean of that tool's pauses so far; with `known`, the
pause itself. Calls keep the arrival time of their session (the paper's order), by vLLM's priorities.

Invariants: a call that is not the last of its conversation is held for at most as long as preserving wastes
less than giving it up; the last one is never held.
"""

import math
from collections.abc import Sequence

import msgspec

from gateway.cost.profile import Profile
from lab.simulator.baselines.by_order import OldestFirst
from lab.simulator.baselines.pauses import gap_s, tool_name
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.reload import swap_s
from lab.simulator.engine.policy import Retained
from lab.simulator.engine.roofline import prefill_s
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.errors import SimulatorError

_ESTIMATES = ("elapsed", "mean", "known")


class _Mean(msgspec.Struct):
    total_s: float = 0.0
    count: int = 0


class InferCept(OldestFirst):
    def __init__(self, profile: Profile, *, estimate: str, can_swap: bool) -> None:
        self._profile = profile
        self._estimate = estimate
        self._can_swap = can_swap
        self._inside: dict[int, EngineTurn] = {}
        self._ended: dict[tuple[str, int], tuple[str, float]] = {}
        """Of conversations that pause: which tool runs, since when."""
        self._means: dict[str, _Mean] = {}

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        self._inside[turn.number] = turn
        tool, since_s = self._ended.pop((turn.session.id, turn.ref.thread), ("", now))
        if tool:
            mean = self._means.setdefault(tool, _Mean())
            mean.total_s, mean.count = mean.total_s + now - since_s, mean.count + 1
        return super().priority(turn, now=now)

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        del self._inside[turn.number]
        if turn.is_last:
            return None
        self._ended[turn.session.id, turn.ref.thread] = tool_name(turn) or "pause", now
        context = turn.turn.input_tokens + turn.turn.output_tokens
        max_idle_hold_s = self.least_waste(context) / context
        """Preserving for so long wastes as much as giving it up."""
        expected_s = self._expected_s(turn)
        if expected_s is None:
            return now + max_idle_hold_s
        return math.inf if expected_s <= max_idle_hold_s else None

    def release_order(self, retained: Sequence[Retained], *, now: float) -> Sequence[Retained]:
        """Those that wait for the longest, as far as that is known: they waste the most."""
        return sorted(retained, key=lambda each: (each.since_s, -each.blocks))

    def least_waste(self, context: int) -> float:
        """Of giving up so many tokens, in token-seconds."""
        others = self._others()
        discard = prefill_s(self._profile, context) * (context / 2 + others)
        swap = 2 * swap_s(self._profile, context) * (context + others) if self._can_swap else math.inf
        return min(discard, swap)

    def _others(self) -> int:
        return sum(turn.turn.input_tokens for turn in self._inside.values() if turn.began_s is not None)

    def _expected_s(self, turn: EngineTurn) -> float | None:
        match self._estimate:
            case "known":
                return gap_s(turn.session, turn.ref)
            case "mean":
                mean = self._means.get(tool_name(turn) or "pause")
                return mean.total_s / mean.count if mean else None
            case _:
                return None


def _infercept(plan: Plan, values: Values) -> Plan:
    estimate = str(values["estimate"])
    if estimate not in _ESTIMATES:
        raise SimulatorError(f"infercept: `estimate` is one of {', '.join(_ESTIMATES)}, not {estimate!r}")
    can_swap = any(group.offload_gb for group in plan.fleet.replicas)

    def policy() -> InferCept:
        return InferCept(plan.profile, estimate=estimate, can_swap=can_swap)

    return plan.with_policy(policy, by_priority=True)


INFERCEPT = Recipe(
    name="infercept",
    summary="holds KV over tool calls while that wastes less than giving it up",
    source="arXiv 2402.01869",
    apply=_infercept,
    knobs=(
        Knob(
            name="estimate",
            default="elapsed",
            sweep=("elapsed", "mean"),
            meaning="of how long tools take: `elapsed`, `mean` so far, `known`",
        ),
    ),
)
