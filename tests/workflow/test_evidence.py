"""Evidence: counts that decay, of a bounded number of contexts."""

import pytest

from gateway.workflow.evidence import EDGES, Evidence, smooth


def test_counts_decay():
    known = Evidence(max_contexts=10, half_life=1.0)
    known.add((1,), 7)
    known.add((2,), 8)
    known.add((1,), 9)
    counts = known.get(1)
    assert counts is not None and known.get(3) is None
    assert counts.by_node[9] / counts.by_node[7] == pytest.approx(4.0)


def test_what_was_supposed_is_taken_back():
    known = Evidence(max_contexts=10, half_life=1e9)
    known.add((1, 2), 7)
    known.add((1,), 8)
    known.add((1, 2), 7, -1.0)
    known.add((1, 2), 7, -1.0)  # never below nothing
    counts = known.get(1)
    assert counts is not None and counts.by_node[7] == 0.0 and counts.total == pytest.approx(1.0)


def test_contexts_are_bounded_and_the_heaviest_stay():
    known = Evidence(max_contexts=8, half_life=1e9)
    for _ in range(5):
        known.add((0,), 1)
    for context in range(1, 100):
        known.add((context,), 1)
    assert len(known) <= 9 and known.get(0) is not None


def test_edges_are_bounded_and_those_of_the_heaviest_contexts_stay():
    known = Evidence(max_contexts=64, half_life=1e9)
    for _ in range(50):
        known.add((0,), 1)
    for number in range(20_000):
        known.add((1 + number % 60,), number // 60 % 50)
        held = sum(len(counts.by_node) for counts in known._contexts.values())
        assert known.edges == held <= EDGES * 64
    assert known.get(0) is not None


def test_it_goes_on_for_ever():
    known = Evidence(max_contexts=8, half_life=3.0)
    for number in range(500):
        known.add((1,), number % 2)
    counts = known.get(1)
    assert counts is not None and known.gain <= 1e6 * 2
    assert 3.0 < counts.total / known.gain < 6.0


def test_few_observations_lean_on_what_is_simpler():
    known = Evidence(max_contexts=8, half_life=1e9)
    known.add((1,), 7)
    counts = known.get(1)
    assert counts is not None
    shares = smooth(counts.by_node, counts.total, known.gain, [0.2, 0.3, 0.5], {7: 0, 8: 1})
    assert sum(shares) == pytest.approx(1.0) and shares[0] > 0.6 and shares[2] > shares[1] > 0.1
    for _ in range(100):
        known.add((1,), 9)  # which has no place of its own
    shares = smooth(counts.by_node, counts.total, known.gain, [0.2, 0.3, 0.5], {7: 0, 8: 1})
    assert shares[2] > 0.97
