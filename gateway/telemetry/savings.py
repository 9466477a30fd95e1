"""What was not computed again, and what a balancer that knows no sessions would have taken (pure).

Two answers. What engines found cached needed no computing: so many tokens, times what a token of a prompt
takes at that context. And what would have been without: the same turns are played
(`gateway/cost/shadow_fleet.py`), once where and when they ran, with what their engines found; and once as a
balancer would have them that sends turns round robin to the same replicas, with the same memory. The
difference of the time that the engines were busy is what was saved. There a turn is sent as long after the
one before it as its agent took, so an agent that waits for longer sends later; nobody is held back.

What a turn costs is learned from turns most of which find nearly all of their prompts cached; the second play
computes long prompts, and many at once. So the first play is held against what really happened, and costs are
corrected by that in both (`played_costs.py`).

The error bar is measured, too: what the caches of the first play are off by, against what engines report, as
a share, of what the second one found; and by how much turns came off what was expected of them (the mean of
those of the first play, and p10 and p90 of first tokens lately), as a share of what was saved. What cannot be
measured there, how far the second play is off itself, is `UNCHECKED`.

Deviations: the agents ask for the same; an agent that forks does not wait for longer where its forks do. What
the first turns of conversations share is what engines found of them.

Invariants: memory is bounded (`MAX_OPEN`, `MAX_LEFT`, `MAX_TYPES`, `MAX_BEHIND` of the plays); what was
computed ahead, or on another replica for the one that decoded, is not saved; turns whose backend does not say
what it found cached are counted, and nothing else is done with them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.cost.shadow_fleet import ShadowFleet, ShadowTurn
from gateway.domain import records as rec
from gateway.domain.allowance import Allowance
from gateway.domain.decision import Edge
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.request import Usage
from gateway.telemetry.played_costs import LONG_TOKENS, PlayedCosts, Watched

MAX_OPEN: Final = 20_000
MAX_LEFT: Final = 32_768
MAX_TYPES: Final = 4_096
_HELD_UP: Final = 2_000
"""Turns that may wait to be played until the replicas are known well enough."""
_LONG_S: Final = 600.0
"""A turn that runs for longer holds up nobody's play."""
_BURST_S: Final = 10.0
"""Of turns that may come at once, as many as are played in that time."""
UNCHECKED: Final = 0.15
"""Share of what was saved by which the second play may be off, which nobody can check while it runs. It was
0.01 to 0.10 on average in simulation, and chance makes as much or more where caches only just become too
small (docs/design/cost.md)."""
_GOES_ON: Final = frozenset((Edge.CONTINUES, Edge.FORKS, Edge.REWINDS, Edge.RETRIES))
_BEGINS_LIKE: Final = frozenset((Edge.RETRIES, Edge.REWINDS))
"""With the prompt of the turn before, and not with its answer."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """Of a pool, since the gateway began."""

    turns: int
    uncounted: int
    """Turns whose backend does not say what it found cached, or of which it is not known what they go on."""
    behind: int
    """Turns that a balancer without sessions would not have served yet."""
    left_out: int
    """Turns that were not played, because there were too many."""
    prompt_tokens: float
    cached_tokens: float
    """Of prompts, that were not computed again."""
    cached_s: float
    """Of a replica's time, that computing those would have taken."""
    computed_tokens: float
    """Of prompts."""
    blind_tokens: float
    """That a balancer without sessions would have computed."""
    busy_s: float
    """Of replicas, as the turns are played."""
    blind_s: float
    """And with a balancer without sessions."""
    error_s: float
    """By how much `seconds` may be wrong."""

    @property
    def tokens(self) -> float:
        """Saved against a balancer without sessions; less than nothing where it would have found more."""
        return self.blind_tokens - self.computed_tokens

    @property
    def seconds(self) -> float:
        """Of a replica's time, the same."""
        return self.blind_s - self.busy_s


class _Left(NamedTuple):
    """What a turn left behind."""

    conversation: Hashable
    prompt: float
    tokens: float
    ended_s: float
    blind: ShadowTurn


class _Open(msgspec.Struct, gc=False):
    arrived: rec.TurnArrived
    pool: PoolId | None = None
    submitted_s: float = 0.0
    first_s: float | None = None
    """When its first token came, after it was sent."""


class _Pool:
    def __init__(self, costs: PlayedCosts, replicas: Callable[[], Sequence[ReplicaId]]) -> None:
        self.costs = costs
        self.ours = ShadowFleet(costs)
        self.blind = ShadowFleet(costs, self._next_replica)
        self.turns = self.uncounted = self.left_out = self._next = 0
        self.prompt = self.cached = self.cached_s = 0.0
        self.beside = self.beside_s = 0.0
        """Computed ahead, or for another replica."""
        self.took_s = self.played_s = 0.0
        """The turns of `ours`: what they really took, and in the play."""
        self._replicas = replicas

    def _next_replica(self) -> ReplicaId | None:
        self._next += 1
        up = self._replicas()
        return up[self._next % len(up)] if up else None

    def played(self, turn: ShadowTurn, took_s: float, first_s: float | None) -> None:
        """A turn of `ours` is over. `first_s`: when its first token really came, after it was sent; None if
        nobody saw that."""
        assert turn.ended_s is not None
        self.took_s += took_s
        self.played_s += turn.ended_s - turn.sent_s
        if first_s is None:
            return
        self.costs.steps.learn(took_s - first_s, turn.ended_s - turn.first_s)
        if turn.prompt - (turn.found or 0.0) >= LONG_TOKENS:
            self.costs.prompts.learn(first_s, turn.first_s - turn.sent_s)

    def saved(self, bars: tuple[float, float]) -> Saved:
        ours, blind = self.ours.totals, self.blind.totals
        busy_s, blind_s = ours.busy_s + self.beside_s, blind.busy_s
        found, modelled = ours.given_tokens, ours.found_tokens
        off = abs(modelled - found) / found if found else 1.0
        per_token_s = self.cached_s / self.cached if self.cached else 0.0
        late = abs(self.played_s / self.took_s - 1) if self.took_s else 1.0
        late = UNCHECKED + max(late, 1 - bars[0], bars[1] - 1)
        return Saved(
            turns=self.turns,
            uncounted=self.uncounted,
            behind=self.blind.behind,
            left_out=self.left_out + self.blind.left_out,
            prompt_tokens=self.prompt,
            cached_tokens=self.cached - self.beside,
            cached_s=self.cached_s - self.beside_s,
            computed_tokens=ours.computed_tokens + self.beside,
            blind_tokens=blind.computed_tokens,
            busy_s=busy_s,
            blind_s=blind_s,
            error_s=off * blind.found_tokens * per_token_s + late * abs(blind_s - busy_s),
        )


class Savings:
    def __init__(
        self,
        watched: Watched,
        *,
        kv_tokens: Callable[[ReplicaId], int | None],
        replicas: Callable[[PoolId], Sequence[ReplicaId]],
        turns_per_s: float = float("inf"),
    ) -> None:
        """`turns_per_s`: so many are played, on average; `kv_tokens`: as many fit on a replica, None if its
        engine does not say; `replicas`: those of a pool that may be given turns."""
        self._watched = watched
        self._kv_tokens = kv_tokens
        self._replicas = replicas
        self._allowance = Allowance(per_s=turns_per_s, burst=_BURST_S * turns_per_s)
        self._pools: dict[PoolId, _Pool] = {}
        self._open: OrderedDict[RequestId, _Open] = OrderedDict()
        self._left: OrderedDict[RequestId, _Left] = OrderedDict()
        self._shared: OrderedDict[Hashable, float] = OrderedDict()
        """By agent type: what its conversations begin with, all alike."""
        self._pool_of: dict[ReplicaId, _Pool] = {}
        self._now = 0.0
        self._takes: dict[type, Callable[[Any], None]] = {
            rec.TurnArrived: self._arrived,
            rec.GpuSubmit: self._submitted,
            rec.GpuFirstToken: self._began,
            rec.GpuEnd: self._ended,
            rec.Refused: self._gone,
            rec.TurnLeft: self._gone,
            rec.PrefilledAhead: self._computed_beside,
            rec.PrefillLegEnded: self._computed_beside,
            rec.ReplicaChanged: self._replica_changed,
        }

    def saved(self) -> dict[PoolId, Saved]:
        return {name: pool.saved(self._bars(pool.costs.known)) for name, pool in self._pools.items()}

    def _bars(self, known: ReplicaId | None) -> tuple[float, float]:
        return (self._watched.first_token_bars(known) if known is not None else None) or (0.0, 2.0)

    def take(self, records: Sequence[rec.Record]) -> None:
        takes = self._takes
        for record in records:
            if (take := takes.get(type(record))) is not None:
                take(record)
        if records:
            self._now = records[-1].at_s
        self._play()

    def settle(self) -> None:
        """Plays everything to its end, whatever the time."""
        for pool in self._pools.values():
            for fleet in (pool.ours, pool.blind):
                while not fleet.play(float("inf")):
                    pass

    def _play(self) -> None:
        """As far as nothing can come any more that was before."""
        until_s = self._now
        if self._open:
            first = next(iter(self._open.values()))
            until_s = max(first.arrived.at_s, self._now - _LONG_S)
        for pool in self._pools.values():
            if pool.costs.known is not None or pool.ours.behind >= _HELD_UP:
                pool.ours.play(until_s)
                pool.blind.play(until_s)

    def _arrived(self, record: rec.TurnArrived) -> None:
        if record.session is not None:
            self._open[record.turn] = _Open(record)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)

    def _gone(self, record: rec.Refused | rec.TurnLeft) -> None:
        self._open.pop(record.turn, None)

    def _submitted(self, record: rec.GpuSubmit) -> None:
        turn = self._open.get(record.turn)
        if turn is not None and record.pool is not None:
            turn.pool, turn.submitted_s = record.pool, record.at_s
            if record.pool not in self._pools:
                costs = PlayedCosts(self._watched, self._kv_tokens)
                made = _Pool(costs, lambda: self._replicas(record.pool or PoolId("")))
                self._pools[record.pool] = made
            self._pool_of[record.replica] = self._pools[record.pool]

    def _began(self, record: rec.GpuFirstToken) -> None:
        turn = self._open.get(record.turn)
        if turn is not None and turn.arrived.is_streamed:
            turn.first_s = record.launch_delay_ms / 1e3

    def _ended(self, record: rec.GpuEnd) -> None:
        if record.outcome == "failed":
            return
        turn = self._open.pop(record.turn, None)
        prompt, cached = record.usage.prompt_tokens, record.usage.cached_tokens
        if turn is None or turn.pool is None or prompt is None:
            return
        pool, arrived = self._pools[turn.pool], turn.arrived
        left = self._left.get(arrived.parent) if arrived.parent is not None else None
        if cached is None or (left is None and arrived.edge in _GOES_ON):
            pool.uncounted += 1
            return
        if not self._allowance.take(now=record.at_s):
            pool.left_out += 1
            return
        conversation, known = self._begins(pool, arrived, left, prompt, cached)
        output = max(1.0, float(record.usage.output_tokens or 0))
        ours = ShadowTurn(
            conversation=conversation, known=known, prompt=prompt, output=output, found=float(cached)
        )
        blind = ShadowTurn(conversation=conversation, known=known, prompt=prompt, output=output)
        took_s = record.duration_ms / 1e3
        first_s = turn.first_s
        ours.then.append(lambda over: pool.played(over, took_s, first_s))
        pool.ours.send(ours, record.replica, at_s=turn.submitted_s)
        if left is None:
            pool.blind.send(blind, None, at_s=arrived.at_s)
        else:
            self._send_behind(pool, blind, left.blind, arrived.at_s - left.ended_s)
        self._left[record.turn] = _Left(conversation, prompt, prompt + output, record.at_s, blind)
        if len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)
        pool.turns += 1
        pool.prompt += prompt
        pool.cached += cached
        anew_s = self._watched.prefill_s(record.replica, Usage(prompt_tokens=prompt, cached_tokens=0))
        if anew_s is not None:
            pool.costs.known = record.replica
            pool.cached_s += anew_s - (self._watched.prefill_s(record.replica, record.usage) or 0.0)

    def _begins(
        self, pool: _Pool, arrived: rec.TurnArrived, left: _Left | None, prompt: int, cached: int
    ) -> tuple[Hashable, float]:
        """The conversation of a turn, and how many tokens of its prompt were there before."""
        conversation: Hashable = arrived.turn if arrived.edge is Edge.SERVES else arrived.thread
        if left is not None and arrived.edge in _GOES_ON:
            known = min(prompt, left.prompt if arrived.edge in _BEGINS_LIKE else left.tokens)
            if left.conversation == conversation or arrived.edge is Edge.CONTINUES:
                return left.conversation, known
            of = left.conversation
        else:
            of = (arrived.tenant, arrived.agent)
            known = float(cached) or min(self._shared.get(of, 0.0), prompt)
            if not known:  # nobody knows yet how much of it others begin with, too
                pool.ours.cache.begins_with(conversation, of, prompt)
                pool.blind.cache.begins_with(conversation, of, prompt)
                return conversation, 0.0
            self._shared[of] = known
            if len(self._shared) > MAX_TYPES:
                self._shared.popitem(last=False)
        pool.ours.cache.begins_with(conversation, of, known)
        pool.blind.cache.begins_with(conversation, of, known)
        return conversation, known

    def _send_behind(self, pool: _Pool, turn: ShadowTurn, before: ShadowTurn, gap_s: float) -> None:
        if before.ended_s is not None:
            pool.blind.send(turn, None, at_s=before.ended_s + gap_s)
        else:
            before.then.append(lambda over: pool.blind.send(turn, None, at_s=(over.ended_s or 0.0) + gap_s))

    def _computed_beside(self, record: rec.PrefilledAhead | rec.PrefillLegEnded) -> None:
        """For a turn that then found it."""
        prompt, cached = record.usage.prompt_tokens, record.usage.cached_tokens
        pool = self._pool_of.get(record.replica)
        if pool is not None and prompt is not None and cached is not None:
            pool.beside += prompt - cached
            pool.beside_s += self._watched.prefill_s(record.replica, record.usage) or 0.0

    def _replica_changed(self, record: rec.ReplicaChanged) -> None:
        if record.state in ("down", "left"):
            for pool in self._pools.values():
                pool.ours.cache.lost(record.replica)
                pool.blind.cache.lost(record.replica)
        if record.state == "left":
            self._pool_of.pop(record.replica, None)
