"""KVFlow: what is the most steps away from running again is overwritten first.

Source: KVFlow (arXiv 2507.07400), §3: steps-to-execution over the agent step graph as eviction priority.

Symbols: steps-to-execution of an agent → `steps_to_next`: LLM calls up to its next one.

Deviations: the paper's agents are fixed prompts within a workflow; here an agent is a conversation. So one
that waits for its tools is one step away, one that waits for a sub-agent as many more as that one makes
calls, and one that is over is never called again. The graph is given, as in the paper. Among equals the
least recently used goes first. Prefetching from the host's memory is not part of it.

Invariants: a conversation that is over goes before all that are not.
"""

import math

from lab.simulator.baselines.pauses import steps_to_next
from lab.simulator.baselines.plan import Plan, Recipe, Values
from lab.simulator.engine.policy import EnginePolicy
from lab.simulator.engine.turn import EngineTurn

_LONGEST_S = 1e9
"""No simulation takes as long, so recency only decides among equals."""


class KvFlow(EnginePolicy):
    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        steps = steps_to_next(turn.session, turn.ref)
        recency = turn.submitted_s / _LONGEST_S
        return -math.inf if steps is None else recency - steps


def _kvflow(plan: Plan, values: Values) -> Plan:
    return plan.with_policy(KvFlow)


KVFLOW = Recipe(
    name="kvflow",
    summary="evicts what is the most steps away from running again",
    source="arXiv 2507.07400",
    apply=_kvflow,
)
