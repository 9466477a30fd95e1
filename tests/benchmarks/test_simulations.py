"""What `benchmarks.run` does beside simulating."""

import pytest

from benchmarks.simulations import papers, reference
from benchmarks.simulations.comparison import Comparison, Scope
from benchmarks.simulations.knee import BEHIND, SATURATED, Slow, find_knee
from benchmarks.simulations.pages import whole
from benchmarks.simulations.workloads import Workload
from gateway.workload.trace.format import Header
from tests.simulator.report.cells import cell


@pytest.mark.parametrize("true_knee", [3.0, 60.0, 64.0, 900.0])
def test_a_knee_is_found_from_any_guess(true_knee):
    knee, tried = find_knee(lambda load: 2.0 * (load / true_knee) ** 4, 64.0, at_most=2.0)
    assert knee == pytest.approx(true_knee, rel=0.1)
    assert len(tried) <= 11


def test_a_knee_that_is_nowhere_ends_the_search():
    knee, tried = find_knee(lambda load: 1.0, 10.0)
    assert knee >= max(tried)
    assert len(tried) <= 10


def test_the_knee_is_where_memory_costs_or_else_where_processors_are_full():
    assert Slow(stock=1.2, unlimited=1.1).measure < 1
    assert Slow(stock=BEHIND * 1.1, unlimited=1.1).measure == pytest.approx(1.0)
    assert Slow(stock=SATURATED, unlimited=SATURATED).measure == pytest.approx(1.0)


def _comparison() -> Comparison:
    cells = []
    for load, mean_s in ((70.0, 100.0), (100.0, 150.0), (150.0, 900.0)):
        cells += [
            cell("affinity", load, mean_s),
            cell("affinity+offload", load, mean_s / 2),
            cell("session-cap:n=4/8", load, mean_s / 3, variant="session-cap:n=4", variants=2),
            cell("turnpike", load, mean_s / 4),
            cell("turnpike+offload", load, mean_s),
            cell("belady", load, mean_s / 5, is_clairvoyant=True),
        ]
    return Comparison(
        workload=Workload(header=Header(name="made-up"), sessions=[], left_out=3),
        knee_per_h=100.0,
        tried={80.0: Slow(1.2, 1.1), 120.0: Slow(3.0, 1.2)},
        cells=cells,
        policies=[],
        sessions=40,
        took_s=1.0,
    )


def test_the_page_tells_of_gains_and_of_losses():
    scope = Scope(sessions=10, seeds=1, jobs=1, others=())
    page = whole([_comparison()], scope, fleet="one engine", command="it", reference=["beside"])
    assert "Measured knee: **100 sessions/h**" in page
    # A quarter of affinity's; twice as long with offload; a third in the best window.
    assert "| made-up | at the knee | **0.25** | **2.00** | **0.33** |" in page
    assert "### Above the knee: 150 sessions/h" in page
    assert "belady *" in page and "3 sessions are too long" in page
    assert page.rstrip().endswith("beside")


def test_headlines_are_compared_with_what_was_run_and_nothing_else():
    rows = papers.table([_comparison()])
    text = "\n".join(rows)
    assert "÷ 0.50 to ÷ 4.00" in text  # with offload twice as slow, without four times as fast
    assert text.count("| – |") >= 4, "what nobody ran has no figure"
    assert all(row.count("|") == 6 for row in rows if row.startswith("|"))


def test_the_reference_marks_what_is_off():
    labels = reference.labels()
    cells = [
        cell("affinity", 36.0, 290.0, variant=labels["affinity"]),  # the median is 435
        cell("affinity", 63.0, 4000.0, variant=labels["affinity"]),  # 6000, for 3634
    ]
    row = next(line for line in reference.table(cells) if line.startswith("| `affinity` |"))
    assert "| 434 | 435 (290–580) | +0% |" in row
    assert "+65% **✗**" in row
