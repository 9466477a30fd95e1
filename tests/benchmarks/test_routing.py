"""What the simulations of routing are held against."""

import pytest

from benchmarks.routing import OURS, SAGA, fleets, judge
from benchmarks.verdict import Verdict
from gateway.simulator.fleet import decode_fleet
from gateway.simulator.measures.figures import RunFigures

HASH = "turnpike:placement=session-hash"


def runs(*means_s: float, busy: float = 0.8, spread: float = 1.1) -> list[RunFigures]:
    return [
        RunFigures(
            sessions=10,
            turns=100,
            tenants={},
            completion_cdf=[],
            slowdown_cdf=[],
            ttft_cdf=[],
            over_time={},
            metrics={
                "completion_mean_s": mean_s,
                "hit_rate": 0.9,
                "busy": busy,
                "busy_max_to_mean": spread,
            },
        )
        for mean_s in means_s
    ]


@pytest.mark.parametrize(
    ("ours", "relative", "missed"),
    [
        (runs(100, 202), 1.0, []),
        (runs(100, 210), 1.0, ["at_mean_to_affinity"]),
        (runs(148, 290), 1.0, ["at_mean_to_affinity", "at_mean_to_session-hash_high"]),
        (runs(148, 290), 0.6, ["at_mean_to_affinity"]),
        (runs(100, 200, spread=1.4), 1.0, ["at_busy_max_to_mean"]),
        (runs(100, 200, spread=1.4, busy=0.5), 1.0, []),
    ],
)
def test_losses_are_losses(ours, relative, missed):
    verdict = Verdict()
    judge("at", relative, {OURS: ours, SAGA: runs(100, 200), HASH: runs(150, 298)}, verdict)
    assert verdict.missed == missed


def test_a_single_seed_has_no_interval():
    verdict = Verdict()
    judge("at", 1.0, {OURS: runs(100), SAGA: runs(100), HASH: runs(150)}, verdict)
    assert not verdict.missed and "at_mean_to_session-hash_high" not in verdict.figures


def test_fleets_are_as_large_as_they_are_called():
    for name, text in fleets(8).items():
        fleet = decode_fleet(text.encode())
        assert len(fleet.each()) == 8
        assert len({spec.profile for _, spec in fleet.each()}) == (2 if "unlike" in name else 1)
