"""SAGA, as its paper has it: workflow-aware eviction and TTLs of tools in engines, behind its scheduler.

Source: SAGA (arXiv 2605.00528), §4.1 Eq. 1–5 (WA-LRU), §4.2 Alg. 1 and Eq. 6 (TTL). Routing, stealing and
fair shares are in `saga_router.py`.

Symbols: α, β, γ → `_RECENCY`, `_REUSE`, `_SIZE`; R̂, Ŝ, P_reuse, overlap → in `Worker.eviction_rank`; H_t →
`LogQuantiles` of a tool.

Deviations: a node of the execution graph is a set of tools, and its successors are that the conversation goes
on, or does not. What is conversation-wide goes with its last blocks first, so that beginnings that are shared
stay.

Invariants: the TTL is at most `retention.MAX_S`; a rank is within −1 and 0.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.retention import MAX_S, PERCENTILE, UNKNOWN_S, overlap, ttl_s
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.saga_router import SagaRouter
from lab.simulator.engine.policy import EnginePolicy, Retained
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.fleet import FleetSpec

_RECENCY, _REUSE, _SIZE = 0.3, 0.5, 0.2
_LEAST_S = 0.01
"""Shorter gaps are not told apart."""
_NETWORK_GBIT_S = 200.0
"""Of a replica: the paper's, of a node."""

_Node = tuple[str, ...]


class Worker(EnginePolicy):
    waiting_grace_s = 0.0

    def __init__(self) -> None:
        self._goes_on: defaultdict[_Node, list[int]] = defaultdict(lambda: [1, 2])
        """How often a conversation went on from there, and was there; as if seen twice before."""
        self._observed: defaultdict[_Node, float] = defaultdict(float)
        """n̂_obs, in tokens: an EMA."""
        self._latencies: defaultdict[_Node, LogQuantiles] = defaultdict(lambda: LogQuantiles(low=_LEAST_S))
        self._paused: dict[tuple[str, int], tuple[EngineTurn, float]] = {}
        self._longest_idle_s = 1.0

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        """The router has an order already; but what leaves for another replica keeps nobody waiting."""
        if turn.is_prefill:
            return -turn.hands_over
        before, since_s = self._paused.pop((turn.session.id, turn.ref.thread), (None, now))
        if before is not None:
            node = _node(before)
            self._goes_on[node][0] += 1
            self._latencies[node].add(now - since_s)
            said = turn.turn.input_tokens - before.turn.input_tokens - before.turn.output_tokens
            self._observed[node] += 0.1 * (max(0, said) - self._observed[node])
            self._longest_idle_s = max(self._longest_idle_s, now - since_s)
        return 0

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        if turn.is_prefill:
            return None if turn.hands_over else now + UNKNOWN_S
        node = _node(turn)
        self._goes_on[node][1] += 1
        if turn.is_last:  # nobody knows, but nothing comes that would ask
            return None
        self._paused[turn.session.id, turn.ref.thread] = turn, now
        if not turn.turn.tools:
            return None
        base_s = self._latencies[node].quantile(PERCENTILE)
        return now + ttl_s(UNKNOWN_S if base_s is None else base_s, self.kv_used(), least_s=0.0, most_s=MAX_S)

    def release_order(self, retained: Sequence[Retained], *, now: float) -> Sequence[Retained]:
        return sorted(retained, key=lambda each: self.eviction_rank(each.turn, now=now))

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        """−P_evict, Eq. 1."""
        _, since_s = self._paused.get((turn.session.id, turn.ref.thread), (None, turn.submitted_s))
        node = _node(turn)
        went_on, seen = self._goes_on[node]
        reuse = went_on / seen * overlap(_tokens(turn), self._observed[node])
        recency = min(1.0, (now - since_s) / self._longest_idle_s)
        tokens = _tokens(turn)
        size = tokens / max(tokens, *(_tokens(each) for each, _ in self._paused.values()), 1)
        return -(_RECENCY * recency + _REUSE * (1 - min(1.0, reuse)) + _SIZE * size)


def _node(turn: EngineTurn) -> _Node:
    return tuple(sorted({tool.name for tool in turn.turn.tools}))


def _tokens(turn: EngineTurn) -> int:
    return turn.turn.input_tokens + turn.turn.output_tokens


def _saga(plan: Plan, values: Values) -> Plan:
    groups = plan.fleet.replicas
    if len(plan.fleet.each()) > 1 and not any(group.offload_gb for group in groups):  # it has one connector
        groups = tuple(msgspec.structs.replace(group, network_gbit_s=_NETWORK_GBIT_S) for group in groups)
    fleet = msgspec.structs.replace(plan.fleet, replicas=groups)
    plan = msgspec.structs.replace(plan, fleet=fleet)

    def brain(fleet: FleetSpec) -> SagaRouter:
        alpha = float(values["alpha"])
        return SagaRouter(plan.kv_tokens(fleet), plan.profile, alpha=alpha, moves=fleet.hands_over)

    return plan.with_brain(brain).with_policy(Worker, by_priority=True)


SAGA = Recipe(
    name="saga",
    summary="affinity by load, work stealing, urgency by tenant, workflow-aware eviction and TTLs",
    source="arXiv 2605.00528",
    apply=_saga,
    knobs=(Knob(name="alpha", default=1.5, sweep=(1.5,), meaning="deadlines, of a session's usual time"),),
)
