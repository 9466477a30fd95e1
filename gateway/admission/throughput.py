"""Throughput: how many sessions at once get the most done on a replica, and how much of their cache is lost?

Source: ours, of two known parts. In an LRU cache entries live for a characteristic time (Che, Tung and Wang,
*Hierarchical Web Caching Systems*, IEEE JSAC 20(7), 2002). An engine that computes prompts is a station with
a queue, and tools and people are a delay: a closed network (Schweitzer's approximation of mean value
analysis, 1979). Both give the number of sessions beyond which holding back pays; MARS (§4.2) finds it by AIMD
alone.

Symbols: n → sessions on a replica; C → `kv_tokens`; c → `tokens`, of a session; g → `silences_s`, from a
turn to the next; z → `kept_s`, the part of it in which the session keeps its place; f and p → `fresh_s` and
`full_prefill_s`, to compute what is new of a prompt, and all of it; d → `decode_s`, and b → `row_s`, its part
of the engine's time; h → hits.

A turn needs the work D = f + b + (1 - h) (p - f) of the engine, and the delay Z = z + d - b. So each of n
sessions returns after T = Z + R, where R² + R (Z - n D) - D Z = 0, and waits q = R - D of that. The cache
holds what is in use and what was used less than a time τ ago: n c (E min(g + q, τ) + D + d - b) = C T; hits
are earlier returns, h = P(g + q ≤ τ). The fixed point is taken from below, with h = 0 first, because a burst
with an empty cache keeps it empty. The throughput n / T has a cliff at n c > C if tools are short and prompts
are long. Where it has one, n / T hardly rises long before it, so sessions wait at the gate and not in the
engine.

Deviations: all sessions are alike, of mean size.

Invariants: without evidence there is no limit; memory is fixed; sessions that fit have every hit.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.cost.estimator import IsolatedCost
from gateway.tool_probe.quantiles import LogQuantiles

# Quantiles of the silences.
_LEVELS: Final = tuple((number + 0.5) / 10 for number in range(10))
# Each halves the error in hits.
_ROUNDS: Final = 30
# Least ratio of compared numbers of sessions.
_STEP: Final = 1.1
# Most numbers of sessions to compare.
_COMPARED: Final = 16
# Of the largest throughput: the largest number of sessions with so much counts, because holding back has to
# pay. Between 0.85 and 0.97 no difference was measured.
_AS_GOOD: Final = 0.9
# Of the largest throughput of sessions that fit: more sessions would only take time and cache of the others.
# Between 0.95 and 0.98 a mean completion differs by 1 %; 0.9 costs 3 %.
_ENOUGH: Final = 0.98
# Share of the expected cache that is relied on: near the cliff small errors cost much.
_CACHE_SAFETY: Final = 0.85
# Gain in throughput that overcommitment needs to begin, and that its end needs.
_PAYS: Final = 1.05
# Turns.
_HALF_LIFE: Final = 300.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
_ENOUGH_TURNS: Final = 4.0


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """The mean turn, with the symbols above."""

    silences_s: Sequence[float]
    """Equally likely values, in order."""
    kept_s: float
    fresh_s: float
    full_prefill_s: float
    decode_s: float
    """From the first token to the last, alone."""
    row_s: float
    tokens: float


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    turns_per_s: float
    hits: float
    lost: float
    """Share of the replica's time that goes into recomputation."""


def flow(sessions: float, turns: Turns, *, kv_tokens: float) -> Flow:
    loss_s = max(0.0, turns.full_prefill_s - turns.fresh_s)
    delay_s = turns.kept_s + max(0.0, turns.decode_s - turns.row_s)
    hits = cycle_s = 0.0
    for _ in range(_ROUNDS):
        work_s = turns.fresh_s + turns.row_s + (1.0 - hits) * loss_s
        beyond_s = sessions * work_s - delay_s
        answer_s = 0.5 * (beyond_s + math.sqrt(beyond_s * beyond_s + 4.0 * work_s * delay_s))
        cycle_s = delay_s + answer_s
        queued_s = answer_s - work_s
        used_s = cycle_s - turns.kept_s - queued_s
        found = _hits(turns, queued_s, kv_tokens / (sessions * turns.tokens) * cycle_s - used_s)
        if abs(found - hits) < 1e-3:
            break
        hits = 0.5 * (hits + found)
    turns_per_s = sessions / max(cycle_s, 1e-9)
    return Flow(turns_per_s=turns_per_s, hits=hits, lost=min(1.0, turns_per_s * (1.0 - hits) * loss_s))


def _hits(turns: Turns, queued_s: float, room_s: float) -> float:
    """P(g + q ≤ τ), with E min(g + q, τ) = `room_s`."""
    if room_s <= 0:
        return 0.0
    silences, count = turns.silences_s, len(turns.silences_s)
    passed_s, before_s = 0.0, 0.0
    for number, silence_s in enumerate(silences):
        at_s = silence_s + queued_s
        more_s = (count - number) * (at_s - before_s) / count
        if passed_s + more_s >= room_s:
            share = (room_s - passed_s) / more_s if more_s > 0 else 1.0
            return max(0.0, (number - 0.5 + share) / count) if number else 0.5 * share / count
        passed_s += more_s
        before_s = at_s
    return 1.0


class Throughput:
    """Of one pool."""

    def __init__(self) -> None:
        self._silences_s = LogQuantiles(low=0.01, half_life=_HALF_LIFE)
        self._weight = 0.0
        # Decayed: kept, fresh, full prefill, decode and row seconds, prompt tokens.
        self._sums = [0.0] * 6
        # Sessions on all replicas beyond what fits, where that has the larger throughput; infinite: all.
        self.most = 0.0
        # Expected share of the replicas' time that goes into recomputation.
        self.lost = 0.0
        # KV tokens of sessions that fit and do nearly the most; infinite where all fit, or more pays.
        self.knee_tokens = math.inf

    @property
    def is_known(self) -> bool:
        return self._weight >= _ENOUGH_TURNS

    @property
    def token_s(self) -> float | None:
        """Prefill time of a token; None if unknown."""
        _, _, full_prefill_s, _, _, tokens = self._sums
        return full_prefill_s / tokens if self.is_known and tokens > 0 else None

    def saw_turn(
        self, alone: IsolatedCost, *, silent_s: float | None, kept_s: float, prompt_tokens: float
    ) -> None:
        """`silent_s`: since the turn before; a first turn is no evidence: nothing of it could be lost."""
        if silent_s is None:
            return
        self._silences_s.add(silent_s)
        seen = kept_s, alone.fresh_s, alone.full_prefill_s, alone.decode_s, alone.row_s, prompt_tokens
        self._weight = self._weight * _KEEP + 1.0
        for place, value in enumerate(seen):
            self._sums[place] = self._sums[place] * _KEEP + value

    def update(
        self,
        *,
        sessions: int,
        waiting: int,
        peaks: float,
        replicas: float,
        held: float,
        demand: float,
        budget: float,
    ) -> None:
        """`held`, `demand`: tokens of the admitted `sessions`, now and at most; `peaks`: of those `waiting`;
        `budget`: tokens of all replicas."""
        had, self.most, self.lost = self.most, 0.0, 0.0
        self.knee_tokens = math.inf
        if not self.is_known or not sessions or not replicas or math.isinf(budget) or demand <= 0:
            return
        # With waiting sessions: without them the mean changes with each admission.
        tokens = (max(held, demand) + peaks) / (sessions + waiting)
        turns, kv_tokens = self._turns(tokens, grown=max(1.0, demand / max(held, 1.0))), budget / replicas
        there, fit = (sessions + waiting) / replicas, max(1.0, kv_tokens / tokens)
        if there <= _CACHE_SAFETY * fit:
            return
        least_tokens = _CACHE_SAFETY * budget if there <= fit else 0.0
        there = max(there, fit)
        enough, within = self.within(fit, turns, kv_tokens)
        step = max(_STEP, (there / fit) ** (1 / _COMPARED))
        tried = [there / step**number for number in range(1 + int(math.log(there / fit) / math.log(step)))]
        flows = [flow(count, turns, kv_tokens=_CACHE_SAFETY * kv_tokens) for count in tried]
        best = max(each.turns_per_s for each in flows)
        are_all_as_good = flows[0].turns_per_s >= _AS_GOOD * within / (_PAYS if had else 1.0)
        if not are_all_as_good and best < within * (1.0 / _PAYS if had else _PAYS):
            self.knee_tokens = max(enough * tokens * replicas, least_tokens)
            return
        most = next(n for n, each in zip(tried, flows, strict=True) if each.turns_per_s >= _AS_GOOD * best)
        self.most = most * replicas if most < there else math.inf
        self.lost = flow(min(most, sessions / replicas), turns, kv_tokens=_CACHE_SAFETY * kv_tokens).lost

    def within(self, fit: float, turns: Turns, kv_tokens: float) -> tuple[float, float]:
        tried = [fit * number / _COMPARED for number in range(1, _COMPARED + 1)]
        flows = [flow(count, turns, kv_tokens=_CACHE_SAFETY * kv_tokens).turns_per_s for count in tried]
        least = _ENOUGH * max(flows)
        enough = max(1.0, next(count for count, done in zip(tried, flows, strict=True) if done >= least))
        return enough, max(*flows, flow(fit, turns, kv_tokens=kv_tokens).turns_per_s)

    def _turns(self, tokens: float, *, grown: float) -> Turns:
        kept_s, fresh_s, full_prefill_s, decode_s, row_s, _ = (total / self._weight for total in self._sums)
        return Turns(
            silences_s=[self._silences_s.counted(level) or 0.0 for level in _LEVELS],
            kept_s=kept_s,
            fresh_s=fresh_s,
            full_prefill_s=max(fresh_s, full_prefill_s * grown),
            decode_s=decode_s,
            row_s=row_s,
            tokens=tokens,
        )
