from lab.simulator.baselines.spec import parse_policies
from lab.simulator.experiment.results import planned, put_together
from lab.simulator.measures.figures import METRICS, RunFigures


def run(mean_s: float) -> RunFigures:
    curve = [(mean_s * share, share) for share in (0.5, 1.0)]
    return RunFigures(
        sessions=10, turns=30, metrics={metric.name: mean_s for metric in METRICS},
        tenants={"t": {"sessions": 10.0, "slo": 0.5}}, completion_cdf=curve, slowdown_cdf=curve,
        ttft_cdf=curve, over_time={}, shown=[],
    )  # fmt: skip


def test_everything_is_run_once_and_put_where_it_was_asked_for():
    specs = parse_policies("affinity,session-cap:n=8/12")
    loads = [40.0, 70.0]
    trials = planned(specs, loads, seeds=3)
    assert len(trials) == len(set(trials)) == 3 * 2 * 3
    assert trials[0].per_h == 70.0  # what takes the longest first

    def mean_s(trial) -> float:
        is_12 = trial.variant.label.endswith("12")
        base = (
            100.0 if trial.variant.label == "affinity" else (50.0 if is_12 == (trial.per_h == 70.0) else 60.0)
        )
        return base + trial.seed

    cells = put_together(specs, loads, trials, [run(mean_s(trial)) for trial in trials])
    assert [(cell.policy, cell.variant, cell.per_h, cell.is_best) for cell in cells] == [
        ("affinity", "affinity", 40.0, True),
        ("affinity", "affinity", 70.0, True),
        ("session-cap:n=8/12", "session-cap:n=8", 40.0, True),
        ("session-cap:n=8/12", "session-cap:n=12", 40.0, False),
        ("session-cap:n=8/12", "session-cap:n=8", 70.0, False),
        ("session-cap:n=8/12", "session-cap:n=12", 70.0, True),
    ]
    spread = cells[0].metrics["completion_mean_s"]
    assert spread is not None
    assert (spread.min, spread.median, spread.max) == (101.0, 102.0, 103.0)
    assert [figures.metrics["slo"] for figures in cells[0].runs] == [101.0, 102.0, 103.0]


def test_the_best_is_the_highest_where_higher_is_better():
    specs = parse_policies("session-cap:n=8/12")
    trials = planned(specs, [40.0], seeds=1)
    figures = [run(1.0), run(2.0)]
    cells = put_together(specs, [40.0], trials, figures, best_by="goodput_2")
    assert [cell.is_best for cell in cells] == [False, True]
