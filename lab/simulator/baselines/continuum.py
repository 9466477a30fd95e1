"""Continuum: KV is held over a tool call for a time to live, and programs run in the order of their arrival.

Source: Continuum (arXiv 2511.02230, also as CacheTTL), §4: the TTL of Eq. 2, program-level FCFS, Alg. 1;
the fixed TTL is that of its published code, `FIXED_THRESHOLD_CONTINUUM` = 2 s.

Symbols: S[f] → `_Durations` of a tool; P(τ, f) → the share of S[f] that is at most τ; T_wait (theirs is a
script T) → `_wait_s`, the mean wait of a turn that comes back to an engine without its KV; η →
`Memoryfulness`; Prefill-Reload(r) → `reload_s`; K → `few`. τ* = argmax over S[f] and 0 of P(τ, f) · (T_wait
· η + Prefill-Reload(r)) − τ.

Deviations: with less than K durations of a tool, those of all tools together count; with less than K of
these, the fixed TTL does, where the paper derives one from an exponential distribution. S keeps the last
400 of a tool, and T_wait weighs its last 100 the most. Preempted turns keep their priority instead
of going before all others. A tool that took longer than the fixed TTL on average is not waited for (their
code), unless `skip_slow=0`.

Invariants: what is held for longer than its TTL, or is not the last of its program to have arrived, goes
first under pressure; the last turn of a conversation is never held; η is within −1 and 1.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Final

from lab.simulator.baselines.by_order import PER_S
from lab.simulator.baselines.pauses import tool_name
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.reload import reload_s
from lab.simulator.engine.policy import EnginePolicy, Retained
from lab.simulator.engine.turn import EngineTurn

_REMEMBERED: Final = 400
_FORGET: Final = 1 / 100
"""Of T_wait."""
_BEFORE_ALL: Final = 10**12
_FIXED_S: Final = 2.0

_Conversation = tuple[str, int]


class _Durations:
    """S[f], sorted; the oldest are forgotten."""

    def __init__(self) -> None:
        self.sorted: list[float] = []
        self.total_s = 0.0
        self._order: deque[float] = deque()

    def __len__(self) -> int:
        return len(self.sorted)

    def add(self, seconds: float) -> None:
        insort(self.sorted, seconds)
        self._order.append(seconds)
        self.total_s += seconds
        if len(self._order) > _REMEMBERED:
            oldest = self._order.popleft()
            self.total_s -= oldest
            del self.sorted[bisect_right(self.sorted, oldest) - 1]


class Memoryfulness:
    """η = −Corr(k, N − k), over all turns k of all programs of N turns that are over."""

    def __init__(self) -> None:
        self._n = self._k = self._l = self._kk = self._ll = self._kl = 0

    def program_over(self, turns: int) -> None:
        for done in range(1, turns + 1):
            left = turns - done
            self._n += 1
            self._k += done
            self._l += left
            self._kk += done * done
            self._ll += left * left
            self._kl += done * left

    @property
    def eta(self) -> float:
        """1 while nothing is known: all programs may be of one length."""
        spread = (self._n * self._kk - self._k**2) * (self._n * self._ll - self._l**2)
        return -(self._n * self._kl - self._k * self._l) / sqrt(spread) if spread else 1.0


def best_ttl_s(durations: Sequence[float], max_idle_hold_s: float) -> float:
    """τ*: the duration for which holding gains the most, or 0. `durations` is sorted."""
    best_s, gain = 0.0, 0.0
    for rank, ttl_s in enumerate(durations, start=1):
        found = rank / len(durations) * max_idle_hold_s - ttl_s
        if found > gain:
            best_s, gain = ttl_s, found
    return best_s


class FixedTtl(EnginePolicy):
    """As in the published code, but for the TTL, which can be set."""

    def __init__(self, ttl_s: float, *, skips_slow: bool) -> None:
        self._ttl_s = ttl_s
        self._skips_slow = skips_slow
        self._ended: dict[_Conversation, tuple[str, float]] = {}
        """Of conversations that pause: the tool, and since when."""
        self._held_until_s: dict[_Conversation, float] = {}
        self._tools: dict[str, _Durations] = {}
        self._all_tools = _Durations()

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        self._came_back(turn, now=now)
        return 0

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        if turn.is_last:
            return None
        conversation, tool = (turn.session.id, turn.ref.thread), tool_name(turn)
        self._ended[conversation] = tool, now
        ttl_s = self.ttl_s(turn, tool)
        if ttl_s <= 0:
            return None
        self._held_until_s[conversation] = now + ttl_s
        return now + ttl_s

    def release_order(self, retained: Sequence[Retained], *, now: float) -> Sequence[Retained]:
        """The program that arrived last gives way first."""
        return sorted(retained, key=lambda each: -each.turn.session.arrival_s)

    def ttl_s(self, turn: EngineTurn, tool: str) -> float:
        known = self._tools.get(tool)
        if self._skips_slow and known and known.total_s > self._ttl_s * len(known):
            return 0.0
        return self._ttl_s

    def _came_back(self, turn: EngineTurn, *, now: float) -> bool:
        """Whether its KV is still held."""
        conversation = turn.session.id, turn.ref.thread
        if conversation in self._ended:
            tool, since_s = self._ended.pop(conversation)
            self._tools.setdefault(tool, _Durations()).add(now - since_s)
            self._all_tools.add(now - since_s)
        return self._held_until_s.pop(conversation, 0.0) >= now


class ProgramOrder(FixedTtl):
    """Held programs first, then by their arrival."""

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        held = self._came_back(turn, now=now)
        arrival = int(turn.session.arrival_s * PER_S)
        return arrival - _BEFORE_ALL if held else arrival


class DynamicTtl(ProgramOrder):
    def __init__(self, fixed_s: float, *, reload_s: Callable[[int], float], few: int) -> None:
        super().__init__(fixed_s, skips_slow=False)
        self._reload_s = reload_s
        self._few = few
        self._memoryfulness = Memoryfulness()
        self._waits, self._wait_s = 0, 0.0
        """How many there were, and T_wait."""

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        if turn.is_last and turn.ref.thread == 0:
            self._memoryfulness.program_over(turn.ref.turn + 1)
        context = turn.turn.prefix_tokens
        if turn.ref.turn and turn.began_s is not None and turn.cached_tokens < context / 2:
            self._waits += 1
            weight = max(1 / self._waits, _FORGET)
            self._wait_s += weight * (turn.began_s - turn.submitted_s - self._wait_s)
        return super().retain_until(turn, now=now)

    def ttl_s(self, turn: EngineTurn, tool: str) -> float:
        durations = self._tools.get(tool, self._all_tools)
        if len(durations) <= self._few:
            durations = self._all_tools
        if len(durations) <= self._few:
            return super().ttl_s(turn, tool)
        context = turn.turn.input_tokens + turn.turn.output_tokens
        max_idle_hold_s = self._wait_s * self._memoryfulness.eta + self._reload_s(context)
        return best_ttl_s(durations.sorted, max_idle_hold_s)


def _fixed(plan: Plan, values: Values) -> Plan:
    is_by_program = values["order"] == "program"
    kind = ProgramOrder if is_by_program else FixedTtl

    def policy() -> FixedTtl:
        return kind(float(values["ttl_s"]), skips_slow=bool(values["skip_slow"]))

    return plan.with_policy(policy, by_priority=is_by_program)


def _dynamic(plan: Plan, values: Values) -> Plan:
    has_tier = any(group.offload_gb for group in plan.fleet.replicas)

    def policy() -> DynamicTtl:
        return DynamicTtl(
            _FIXED_S,
            reload_s=lambda tokens: reload_s(plan.profile, tokens, from_host=has_tier),
            few=int(values["few"]),
        )

    return plan.with_policy(policy, by_priority=True)


CONTINUUM = Recipe(
    name="continuum",
    summary="KV held for a fixed time after each tool call, programs in order of arrival",
    source="arXiv 2511.02230",
    apply=_fixed,
    knobs=(
        Knob(name="ttl_s", default=_FIXED_S, sweep=(2.0, 6.0, 15.0), meaning="time to live"),
        Knob(name="order", default="program", sweep=("program",), meaning="`program`, or vLLM's own: `fcfs`"),
        Knob(name="skip_slow", default=1, sweep=(0, 1), meaning="1: not for tools that usually take longer"),
    ),
)
CONTINUUM_DYNAMIC = Recipe(
    name="continuum-dynamic",
    summary="the same with the time to live that gains the most, by tool",
    source="arXiv 2511.02230, Eq. 2",
    apply=_dynamic,
    knobs=(Knob(name="few", default=100, sweep=(100,), meaning="durations of a tool before they count"),),
)
