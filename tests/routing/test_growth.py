"""What sessions hold in the end, as learned from those that ended."""

from gateway.routing import growth
from gateway.routing.growth import Growth


def told(*ended: tuple[int, float]) -> Growth:
    known = Growth()
    for agent, tokens in ended:
        known.ended(agent, tokens)
    return known


def test_the_first_sessions_teach_most_of_it():
    before = Growth().usual
    assert told((0, 5_000.0)).usual <= (before + 5_000) / 2
    assert told(*[(0, 5_000.0)] * 10).usual < 10_000


def test_an_agent_of_which_little_is_known_is_like_the_others():
    known = told(*[(1, 10_000.0)] * 20)
    assert known.of(2) == known.of(0) == known.usual
    known.ended(2, 90_000.0)
    assert 30_000 < known.of(2) < 60_000
    for _ in range(5):
        known.ended(2, 90_000.0)
    assert known.of(2) > 70_000 and known.of(1) < 15_000


def test_what_was_long_ago_is_forgotten():
    known = told(*[(1, 90_000.0)] * 50, *[(1, 10_000.0)] * 20)
    assert 10_000 < known.of(1) < 20_000 and known.usual < 45_000


def test_who_ended_a_session_longest_ago_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(growth, "_AGENTS", 2)
    known = told((1, 90_000.0), (2, 90_000.0), (1, 90_000.0), (3, 1_000.0))
    assert known.of(2) == known.usual
    assert known.of(1) > known.usual > known.of(3)
