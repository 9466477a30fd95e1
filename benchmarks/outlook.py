"""Is it used? Eviction by what the workflow view expects, in simulated engines around vLLM's real scheduler.

Run with `python -m benchmarks.outlook WORKLOAD [--kv-blocks N] [--count N] [--json]`. One replica behind the
gateway's floor (bounded concurrency, so that nothing but eviction differs) plays a workload
(docs/reference/workloads.md). Who is overwritten first:

* `lru`: vLLM's own order;
* `ours`: whoever is expected back last (`gateway/workflow/return_model.py`), learned as the simulation goes;
* `constant_reuse`, `constant_ttl`: the same with one probability of the end, or one time of return, for all;
* `belady`: whoever comes back last.

Told are the mean completion of sessions and the share of prompt tokens that were cached.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.verdict import Verdict
from gateway.assembly import assemble
from gateway.core.coordinator import Coordinator
from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.ids import SessionId, ThreadId
from gateway.domain.request import Answer, Protocol, RequestFacts, ToolCall, Transcript, Usage, Work
from gateway.domain.session_ids import numbered_ids
from gateway.simulator.baselines.belady import Belady
from gateway.simulator.engine.options import EngineOptions
from gateway.simulator.engine.policy import EnginePolicy
from gateway.simulator.engine.turn import EngineTurn
from gateway.simulator.fleet import FleetSpec, ReplicaGroup
from gateway.simulator.results import Ignore, SessionOutcome
from gateway.simulator.run import simulate, stock_config
from gateway.workflow.predictor import Predictor, WorkflowConfig
from gateway.workflow.retention import RetentionDecision
from gateway.workflow.return_model import expected_wait_s
from gateway.workload.trace.files import read_workload

MEDIAN_S: Final = 2.0
P95_S: Final = 6.0
ENDS: Final = 0.05


class Expecting(EnginePolicy):
    """Overwrites what is expected back last."""

    def __init__(self, *, knows_ends: bool, knows_times: bool) -> None:
        self._knows_ends = knows_ends
        self._knows_times = knows_times
        self._predictor = Predictor(WorkflowConfig())
        self._paused: dict[str, tuple[float, float, RetentionDecision | None]] = {}
        """By conversation: since when, with which probability of the end, and what is expected."""

    def priority(self, turn: EngineTurn, *, now: float) -> int:
        """No order; a conversation is back."""
        ref = _ref(turn)
        self._paused.pop(ref.thread, None)
        self._predictor.arrived(ref, _facts(turn), now=now)
        return 0

    def retain_until(self, turn: EngineTurn, *, now: float) -> float | None:
        """Nothing is retained; a conversation pauses."""
        ref = _ref(turn)
        tools = tuple(ToolCall(f"{at}", tool.name) for at, tool in enumerate(turn.turn.tools))
        usage = Usage(prompt_tokens=turn.turn.input_tokens, output_tokens=turn.turn.output_tokens)
        answer = Answer(status=200, tool_calls=tools, has_terminal=True, usage=usage)
        pause = self._predictor.answered(ref, _facts(turn), answer, now=now)
        if pause is not None:
            self._paused[ref.thread] = now, pause.ends, self._predictor.retention(ref.thread, pause, None)
        return None

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        since_s, ends, decision = self._paused.get(_ref(turn).thread, (now, 0.0, None))
        median_s, p95_s = MEDIAN_S, P95_S
        if self._knows_times and decision is not None and decision.returns_in_s is not None:
            median_s, p95_s = decision.returns_in_s, max(decision.retain_s, decision.returns_in_s)
        known = ends if self._knows_ends else ENDS
        return -expected_wait_s(now - since_s, median_s=median_s, p95_s=p95_s, ends=known)


def _ref(turn: EngineTurn) -> SessionRef:
    return SessionRef(
        session=SessionId(turn.session.id),
        source=SessionSource.CLIENT_ID,
        confidence=1.0,
        thread=ThreadId(f"{turn.session.id}.{turn.ref.thread}"),
        edge=Edge.CONTINUES if turn.ref.thread == 0 else Edge.SPAWNED,
    )


def _facts(turn: EngineTurn) -> RequestFacts:
    kind = Transcript(agent_type=sum(turn.session.agent_type.encode()) + 1)
    return RequestFacts(protocol=Protocol.CHAT, work=Work.GENERATE, tool_count=1, transcript=kind)


POLICIES: Final[dict[str, Callable[[], EnginePolicy] | None]] = {
    "lru": None,
    "ours": partial(Expecting, knows_ends=True, knows_times=True),
    "constant_reuse": partial(Expecting, knows_ends=False, knows_times=True),
    "constant_ttl": partial(Expecting, knows_ends=True, knows_times=False),
    "belady": Belady,
}


class Completions(Ignore):
    def __init__(self) -> None:
        self.took_s: list[float] = []

    def session_done(self, outcome: SessionOutcome) -> None:
        self.took_s.append(outcome.end_s - outcome.arrival_s)


def floor(fleet: FleetSpec) -> Coordinator:
    config = stock_config(fleet)
    admission = msgspec.structs.replace(config.admission, shadow=True)
    return assemble(msgspec.structs.replace(config, admission=admission), session_ids=numbered_ids())


def main() -> int:
    parser = argparse.ArgumentParser(description="Eviction by what is expected of sessions.")
    parser.add_argument("workload", type=Path)
    parser.add_argument("--profile", default="qwen3-coder-30b-a3b@h200")
    parser.add_argument("--kv-blocks", type=int, default=None)
    parser.add_argument("--count", type=int, default=None, help="the first so many sessions")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    arguments = parser.parse_args()
    verdict = Verdict()
    group = ReplicaGroup(profile=arguments.profile, kv_blocks=arguments.kv_blocks)
    for name, policy in POLICIES.items():
        sink = Completions()
        _, sessions = read_workload(str(arguments.workload))
        some = list(islice(sessions, arguments.count))
        totals = simulate(
            some, FleetSpec(replicas=(group,)), floor, options=EngineOptions(policy=policy), sink=sink
        )
        verdict.tell(f"{name}.completion_s", sum(sink.took_s) / len(sink.took_s))
        verdict.tell(f"{name}.hit_rate", totals.cached_tokens / totals.prompt_tokens)
        if not arguments.json:
            took, hits = (verdict.figures[f"{name}.{each}"].value for each in ("completion_s", "hit_rate"))
            print(f"{name:<16}{took:>10}{hits:>10}")
    print(verdict.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
