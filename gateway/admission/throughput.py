"""How many sessions at once get the most done on a replica, and what do they lose of their KV cache then?

Source: ours, of three known parts. A cache of the least recently used is one whose entries live for a
characteristic time (Che, Tung and Wang, *Hierarchical Web Caching Systems*, IEEE JSAC 20(7), 2002). An
engine that computes prompts is a station with a queue, and tools and people are a delay: a closed network
(Schweitzer's approximation of mean value analysis, 1979). Where holding sessions back pays follows from
both; MARS (§4.2) finds it by AIMD alone.

Symbols: n → sessions on a replica; C → `kv_tokens`; c → `tokens`, of a session; g → `silences_s`, from a
turn to the next; z → `kept_s`, the part of it in which the session keeps its place; f and p → `fresh_s` and
`full_prefill_s`, to compute what is new of a prompt, and all of it; d → `decode_s`, and b → `row_s`, its part
of the engine's time; h → hits.

A turn needs the work D = f + b + (1 - h) (p - f) of the engine, and the delay Z = z + d - b. So each of n
sessions is back after T = Z + R, where R² + R (Z - n D) - D Z = 0, and waits q = R - D of that. The cache is
shared by what is used, and by what was used less than a time τ ago: n c (E min(g + q, τ) + D + d - b) = C T;
hits are what returns sooner, h = P(g + q ≤ τ). The two meet from below: h begins at 0, because a burst that
finds nothing in the cache keeps itself there. The throughput n / T has a cliff where n c > C if tools are
short and prompts are long, and none where they are not. Where it has one, n / T hardly rises long before it:
whoever has to wait waits at the door then, and not in the engine.

Deviations: all sessions are alike, of mean size.

Invariants: without evidence nothing is said; memory is fixed; the throughput of so many as fit is what it is
with every hit.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.cost.estimator import IsolatedCost
from gateway.tool_probe.quantiles import LogQuantiles

_LEVELS: Final = tuple((number + 0.5) / 10 for number in range(10))
"""Quantiles by which the silences are known."""
_ROUNDS: Final = 30
"""Of the fixed point; each halves the error in hits."""
_STEP: Final = 1.1
_COMPARED: Final = 16
"""Numbers of sessions that are compared are at least so far apart, and at most so many."""
_AS_GOOD: Final = 0.9
"""Of the most that gets done. Of numbers of sessions that do so much the largest counts, and all that are
there before as many as fit: to hold somebody back has to pay. From 0.85 to 0.97 that makes no difference that
could be measured."""
_ENOUGH: Final = 0.98
"""Of the most that as many as fit get done. Where not all can be in, no more are in than do so much: those
beyond would only take the time of others, and lose what they hold sooner. From 0.95 to 0.98 makes a hundredth
of a mean completion, 0.9 costs three."""
_CACHE_SAFETY: Final = 0.85
"""Of the cache that is expected, so much is counted on: near the cliff to be wrong by little costs much.
Where all fit, no more of it is filled unless that gets more done."""
_PAYS: Final = 1.05
"""So many times what gets done by as many as fit, before more than these are in, unless all are; once they
are, they stay until as many as fit would get so many times more done."""
_HALF_LIFE: Final = 300.0
"""Of what a turn taught, in later turns."""
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE)
_ENOUGH_TURNS: Final = 4.0


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """What sessions ask of a replica, turn by turn."""

    silences_s: Sequence[float]
    """From the end of a turn to the next one's arrival: equally likely values, in order."""
    kept_s: float
    """Of that, how long the session keeps its place, on average."""
    fresh_s: float
    """Computes what is new in a prompt."""
    full_prefill_s: float
    decode_s: float
    """From the first token to the last, alone."""
    row_s: float
    """Of the engine's time, what decoding takes beside others."""
    tokens: float
    """That a session holds."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of so many sessions on a replica."""

    turns_per_s: float
    hits: float
    lost: float
    """Share of the replica's time in which it computes what was lost."""


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
    """The share that returns sooner than an unused entry lives: τ, with E min(g + q, τ) = `room_s`."""
    if room_s <= 0:
        return 0.0
    silences, count = turns.silences_s, len(turns.silences_s)
    passed_s, before_s = 0.0, 0.0
    for number, silence_s in enumerate(silences):
        at_s = silence_s + queued_s
        rest_s = (count - number) * (at_s - before_s) / count
        if passed_s + rest_s >= room_s:
            share = (room_s - passed_s) / rest_s if rest_s > 0 else 1.0
            return max(0.0, (number - 0.5 + share) / count) if number else 0.5 * share / count
        passed_s += rest_s
        before_s = at_s
    return 1.0


class Throughput:
    """Of one pool: learns what its sessions ask for, and says how many should be in."""

    def __init__(self) -> None:
        self._silences_s = LogQuantiles(low=0.01, half_life=_HALF_LIFE)
        self._weight = 0.0
        self._sums = [0.0] * 6
        """Of so many turns, those long ago counting less: kept, fresh, anew, decode and row seconds, tokens
        of prompts."""
        self.most = 0.0
        """Sessions that may be in on all replicas though they do not fit, because so many get more done than
        as many as fit; infinite: all that are there, and 0: none."""
        self.lost = 0.0
        """Share of the replicas' time that is expected to be lost with as many as are in."""
        self.knee_tokens = math.inf
        """KV tokens of so many sessions as get nearly the most done, of those that fit; infinite where all
        fit, or more get more done."""

    @property
    def is_known(self) -> bool:
        return self._weight >= _ENOUGH_TURNS

    @property
    def token_s(self) -> float | None:
        """What a token of a prompt takes that is computed anew; None if that is not known."""
        _, _, full_prefill_s, _, _, tokens = self._sums
        return full_prefill_s / tokens if self.is_known and tokens > 0 else None

    def saw_turn(
        self, alone: IsolatedCost, *, silent_s: float | None, kept_s: float, prompt_tokens: float
    ) -> None:
        """A turn ended. `silent_s`: since its session's turn before, while it kept its place for `kept_s`;
        None if there was none: a first turn teaches nothing, as nothing of it could have been lost."""
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
        """`sessions`: in now, which hold `held` tokens and at most `demand`; `waiting`: those that would be
        in, too, with at most `peaks`; `budget`: tokens that all replicas have for them."""
        had, self.most, self.lost = self.most, 0.0, 0.0
        self.knee_tokens = math.inf
        if not self.is_known or not sessions or not replicas or math.isinf(budget) or demand <= 0:
            return
        # The mean over waiting sessions, too: without them it changes with each admission.
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
        """Of sessions that will hold so many, `grown` times what they hold now."""
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
