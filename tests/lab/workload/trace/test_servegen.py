"""ServeGen's clients: what is drawn follows what was fitted."""

import statistics
from itertools import pairwise

import pytest

from lab.workload.trace.servegen import OUTPUT_TOKENS, PROMPT_TOKENS, SERVEGEN
from tests.lab.workload.trace.made import imported, lines, table

BUSY = table(
    (0, 1.0, 0.5, "Gamma", 4.0, 0.25),
    (600, 0, 0, "", 0, 0),
    (1200, 2.0, 1.0, "Weibull", 1.0, 0.5),
    name="data/x/chunk-1-trace",
)
CALM = table((0, 0.05, 1.0, "Weibull", 1.0, 20.0), name="data/x/chunk-2-trace")
LENGTHS = lines(
    {
        "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"},
        "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{0: 1.0}"},
        "600": {"input_tokens": "{}", "output_tokens": "{}"},
    },
    name="data/x/chunk-1-dataset",
)


def test_clients_are_tenants_whose_requests_lie_over_one_another():
    sessions = imported(SERVEGEN, BUSY, CALM)
    assert {s.tenant for s in sessions} == {"client-1", "client-2"}
    turns = [s.threads[0].turns for s in sessions]
    assert {(t.input_tokens, t.output_tokens) for (t,) in turns} == {(PROMPT_TOKENS, OUTPUT_TOKENS)}


def test_gaps_are_as_fitted():
    arrivals = [s.arrival_s for s in imported(SERVEGEN, BUSY)]
    first, last = [t for t in arrivals if t < 600], [t for t in arrivals if t >= 600]
    assert min(last) > 1200
    assert len(first) == pytest.approx(600, rel=0.1)
    assert len(last) == pytest.approx(1200, rel=0.1)
    gaps = [later - earlier for earlier, later in pairwise(first)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(0.5, rel=0.15)


def test_lengths_are_of_the_latest_window_that_has_some():
    sessions = imported(SERVEGEN, LENGTHS, BUSY)
    early = [s.threads[0].turns[0] for s in sessions if s.arrival_s < 600]
    late = [s.threads[0].turns[0] for s in sessions if s.arrival_s > 1200]
    assert {t.output_tokens for t in early} == {5}
    assert sum(t.input_tokens == 20 for t in early) / len(early) == pytest.approx(0.75, abs=0.1)
    assert {(t.input_tokens, t.output_tokens) for t in late} == {(30, 1)}
