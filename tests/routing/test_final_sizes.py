"""What sessions hold in the end, as learned from those that ended."""

import pytest

from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import TenantId
from gateway.routing import final_sizes
from gateway.routing.final_sizes import FinalSizes

ONE, TWO, THREE, UNKNOWN = (AgentKey(TenantId("t"), number) for number in (1, 2, 3, 0))
STRANGER = AgentKey(TenantId("other"), 1)


def told(*ended: tuple[AgentKey, float]) -> FinalSizes:
    known = FinalSizes()
    for agent, tokens in ended:
        known.held(agent, tokens)
    return known


def test_the_first_sessions_teach_most_of_it():
    before = FinalSizes().of(UNKNOWN)
    assert told((UNKNOWN, 5_000.0)).of(UNKNOWN) <= (before + 5_000) / 2
    assert told(*[(UNKNOWN, 5_000.0)] * 10).of(UNKNOWN) < 10_000


def test_an_agent_of_which_little_is_known_is_like_its_owners_others():
    known = told(*[(ONE, 10_000.0)] * 20)
    assert known.of(TWO) == known.of(UNKNOWN) == pytest.approx(10_000, rel=0.5)
    known.held(TWO, 90_000.0)
    assert 30_000 < known.of(TWO) < 60_000
    for _ in range(5):
        known.held(TWO, 90_000.0)
    assert known.of(TWO) > 70_000 and known.of(ONE) < 15_000


def test_what_was_long_ago_is_forgotten():
    known = told(*[(ONE, 90_000.0)] * 50, *[(ONE, 10_000.0)] * 20)
    assert 10_000 < known.of(ONE) < 20_000 and known.of(UNKNOWN) < 45_000


def test_who_ended_a_session_longest_ago_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(final_sizes, "_TYPES", 2)
    known = told((ONE, 90_000.0), (TWO, 90_000.0), (ONE, 90_000.0), (THREE, 1_000.0))
    assert known.of(ONE) > known.of(UNKNOWN) > 1_000
    assert known.of(THREE) == known.of(UNKNOWN), "the unknown one took its place"


def test_what_sessions_of_one_tenant_become_says_nothing_of_anothers():
    alone, beside = told((ONE, 10_000.0)), told(*[(STRANGER, 1e9)] * 20, (ONE, 10_000.0))
    for agent in (ONE, TWO, UNKNOWN):
        assert beside.of(agent) == alone.of(agent)


def test_a_session_that_is_silent_and_goes_on_counts_once_with_what_it_holds_by_then():
    known, once = FinalSizes(), told((ONE, 80_000.0), *[(ONE, 50_000.0)] * 3)
    counted = known.held(ONE, 5_000.0)
    for tokens in (10_000.0, 20_000.0, 40_000.0):
        counted = known.held(ONE, tokens, counted)
        known.held(ONE, 50_000.0)  # others end meanwhile
    known.held(ONE, 80_000.0, counted)
    assert known.of(ONE) == pytest.approx(once.of(ONE), rel=1e-3)
    assert known.of(UNKNOWN) == pytest.approx(once.of(UNKNOWN), rel=1e-3)


def test_what_was_counted_of_a_type_that_is_forgotten_changes_nothing(monkeypatch):
    monkeypatch.setattr(final_sizes, "_TYPES", 1)
    known = FinalSizes()
    counted = known.held(ONE, 5_000.0)
    known.of(TWO)
    known.held(ONE, 1e9, counted)
    own, _ = known._means.of(ONE)
    assert (own.tokens, own.counted) == (40_000.0, 0)
