"""SAGA, as its paper has it: affinity by load, fair share by urgency, workflow-aware eviction, TTLs of tools.

Source: SAGA (arXiv 2605.00528), §4.1 Eq. 1–5 (WA-LRU), §4.2 Alg. 1 and Eq. 6 (TTL), §5.1 Eq. 7 (routing), §6
Eq. 8 (Agent Fair Share).

Symbols: α, β, γ → `_RECENCY`, `_REUSE`, `_SIZE`; R̂, Ŝ, P_reuse, overlap → in `Worker.eviction_rank`; H_t →
`LogQuantiles` of a tool; θ → `_STAY_BELOW`; AFS_i → `Tenants.share`; work_remain, deadline → from the mean
time of an agent type's sessions so far, deadlines at `alpha` times that.

Deviations: a node of the execution graph is a set of tools, and its successors are that the conversation goes
on, or does not. load(w) is the share of the KV cache that its sessions hold, as a gateway in front of vLLM
knows no other capacity; that a session is still cached is assumed. AFS orders turns when they are let in
(vLLM's priority), and nothing is preempted for it. No work stealing: nothing is pending in a router that
sends at once. No prefetch. What is conversation-wide goes with its last blocks first, so that beginnings that
are shared stay.

Invariants: the TTL is at most `retention.MAX_S`; a rank is within −1 and 0.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from gateway.tool_probe.quantiles import LogQuantiles
from gateway.workflow.retention import MAX_S, PERCENTILE, UNKNOWN_S, overlap, ttl_s
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.router import Member, ReplicaBook
from lab.simulator.engine.policy import EnginePolicy, Retained
from lab.simulator.engine.turn import EngineTurn

_RECENCY, _REUSE, _SIZE = 0.3, 0.5, 0.2
_STAY_BELOW = 0.8
_LEAST_S = 0.01
"""Shorter gaps are not told apart."""
_USUAL_S = 60.0
"""A session's time, while nobody was seen to end."""
_PER_SHARE = 1e6
"""Priorities are whole numbers."""

_Node = tuple[str, ...]


class Routing:
    """Eq. 7."""

    def choose(self, member: Member, books: list[ReplicaBook]) -> ReplicaBook:
        home = member.book
        if home is not None and _load(home) < _STAY_BELOW:
            return home
        least = min(books, key=_load)
        if home is not None and least is not home:
            del home.members[member.name]
            member.book, least.members[member.name] = least, member
        return least


def _load(book: ReplicaBook) -> float:
    return sum(member.tokens for member in book.members.values()) / book.kv_tokens


class _Task(msgspec.Struct):
    agent_type: str
    arrived_s: float
    served_s: float = 0.0


class Tenants:
    """Eq. 8, of all workers."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._tasks: defaultdict[str, dict[str, _Task]] = defaultdict(dict)
        self._usual_s: dict[str, tuple[float, float]] = {}
        """By agent type: of a session, alone: in the engine, and in all."""

    def turn_arrived(self, turn: EngineTurn, *, now: float) -> None:
        session = turn.session
        self._tasks[session.tenant].setdefault(session.id, _Task(session.agent_type, now))

    def turn_ended(self, turn: EngineTurn, *, now: float) -> None:
        session = turn.session
        task = self._tasks[session.tenant].get(session.id)
        if task is None:
            return
        task.served_s += now - (turn.began_s or now)
        if turn.is_last and turn.ref.thread == 0:
            del self._tasks[session.tenant][session.id]
            work_s, all_s = self._usual(session.agent_type)
            took_s = now - task.arrived_s
            self._usual_s[session.agent_type] = (
                work_s + 0.1 * (task.served_s - work_s),
                all_s + 0.1 * (took_s - all_s),
            )

    def share(self, tenant: str, *, now: float) -> float:
        """AFS_i: without bound as deadlines come near, and beyond them."""
        urgency = 0.0
        for task in self._tasks[tenant].values():
            work_s, all_s = self._usual(task.agent_type)
            slack_s = task.arrived_s + self._alpha * all_s - now
            urgency += max(0.0, work_s - task.served_s) / slack_s if slack_s > 0 else 1e3
        return urgency

    def _usual(self, agent_type: str) -> tuple[float, float]:
        return self._usual_s.get(agent_type, (_USUAL_S / 2, _USUAL_S))


class Worker(EnginePolicy):
    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._goes_on: defaultdict[_Node, list[int]] = defaultdict(lambda: [1, 2])
        """How often a conversation went on from there, and was there; as if seen twice before."""
        self._observed: defaultdict[_Node, float] = defaultdict(float)
        """n̂_obs, in tokens: an EMA."""
        self._latencies: defaultdict[_Node, LogQuantiles] = defaultdict(lambda: LogQuantiles(low=_LEAST_S))
        self._paused: dict[tuple[str, int], tuple[EngineTurn, float]] = {}
        self._longest_idle_s = self._largest = 1.0

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        self._tenants.turn_arrived(turn, now=now)
        before, since_s = self._paused.pop((turn.session.id, turn.ref.thread), (None, now))
        if before is not None:
            node = _node(before)
            self._goes_on[node][0] += 1
            self._latencies[node].add(now - since_s)
            said = turn.turn.input_tokens - before.turn.input_tokens - before.turn.output_tokens
            self._observed[node] += 0.1 * (max(0, said) - self._observed[node])
            self._longest_idle_s = max(self._longest_idle_s, now - since_s)
        return -int(_PER_SHARE * min(1e3, self._tenants.share(turn.session.tenant, now=now)))

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        self._tenants.turn_ended(turn, now=now)
        self._largest = max(self._largest, _tokens(turn))
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
        size = _tokens(turn) / self._largest
        return -(_RECENCY * recency + _REUSE * (1 - min(1.0, reuse)) + _SIZE * size)


def _node(turn: EngineTurn) -> _Node:
    return tuple(sorted({tool.name for tool in turn.turn.tools}))


def _tokens(turn: EngineTurn) -> int:
    return turn.turn.input_tokens + turn.turn.output_tokens


def _saga(plan: Plan, values: Values) -> Plan:
    tenants = Tenants(float(values["alpha"]))
    return plan.with_placement(Routing).with_policy(lambda: Worker(tenants), by_priority=True)


SAGA = Recipe(
    name="saga",
    summary="affinity by load, urgency by tenant, workflow-aware eviction and TTLs",
    source="arXiv 2605.00528",
    apply=_saga,
    knobs=(Knob(name="alpha", default=1.5, sweep=(1.5,), meaning="deadlines, of a session's usual time"),),
)
