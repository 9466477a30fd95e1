"""Results as an experiment leaves them behind, made up."""

from gateway.domain.ids import ReplicaId
from lab.simulator.experiment.results import Cell, Spread
from lab.simulator.measures.figures import METRICS, RunFigures
from lab.simulator.measures.waterfall import Shown
from lab.simulator.results import TurnOutcome


def run(mean_s: float) -> RunFigures:
    turns = [
        TurnOutcome(
            session="<a&b>",
            thread=thread,
            turn=number,
            tenant="t",
            replica=ReplicaId("sim-0"),
            arrival_s=10.0 * number,
            waited_s=1.0,
            began_s=10.0 * number + 2.0,
            first_token_s=10.0 * number + 3.0,
            end_s=10.0 * number + 6.0,
            prompt_tokens=1000,
            cached_tokens=500,
            output_tokens=50,
            preemptions=0,
            refusals=0,
        )
        for thread in (0, 1)
        for number in range(3)
    ]
    return RunFigures(
        sessions=10,
        turns=30,
        metrics={metric.name: mean_s for metric in METRICS},
        tenants={"t": {"sessions": 10.0, "slo": 0.5}},
        completion_cdf=[(mean_s * share, share) for share in (0.5, 1.0)],
        slowdown_cdf=[(1.0 + share, share) for share in (0.5, 1.0)],
        ttft_cdf=[(0.1 * share, share) for share in (0.5, 1.0)],
        over_time={
            name: [(1800.0, 3.0), (5400.0, 1.0)]
            for name in (
                "sessions inside",
                "waiting sessions",
                "turns in engine queues",
                "turns running",
                "KV used",
                "hit rate",
            )
        },
        shown=[Shown("<a&b>", 0.0, 15.0, 26.0, turns)],
    )


def cell(policy: str, per_h: float | None, mean_s: float, *, variant: str = "", **fields) -> Cell:
    runs = [run(mean_s), run(mean_s * 2)]
    return Cell(
        policy=policy,
        variant=variant or policy,
        per_h=per_h,
        metrics={metric.name: Spread(mean_s, 1.5 * mean_s, 2 * mean_s) for metric in METRICS},
        tenants={},
        runs=runs,
        **{"is_clairvoyant": False, **fields},
    )
