"""Of how many turns a second admission learns, and whose."""

from typing import Any

from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import TenantId
from tests.admission.applicants import Play, answered


def turns_learned(play: Play, tenant: str) -> int:
    own, _ = play.pool.footprints.types.of(AgentKey(TenantId(tenant)))
    return int(own.hazard.turns)


def live(play: Play, tenant: str, sessions: int) -> None:
    """All of them, a turn each, at once."""
    for number in range(sessions):
        assert play.is_let_in(f"{tenant}-{number}", tenant=tenant)
        play.end(f"{tenant}-{number}", answered(tokens=1_000))


def test_a_bounded_number_of_turns_a_second_teaches():
    play = Play()
    live(play, "t", 80)
    assert turns_learned(play, "t") == 50
    play.now += 1.0
    live(play, "t", 80)
    assert turns_learned(play, "t") == 100, "of those that were looked at before"


def test_a_flood_of_turns_takes_nobody_elses_share():
    play = Play()
    live(play, "loud", 500)
    for tenant in ("one", "two", "three"):
        live(play, tenant, 10)
    assert [turns_learned(play, tenant) for tenant in ("loud", "one", "two", "three")] == [50, 10, 10, 10]


def test_many_tenants_together_teach_little_more():
    play = Play()
    for number in range(1_000):
        live(play, f"tenant-{number}", 3)
    given: Any = play.pool.lessons._given
    assert given <= 50 * 5
