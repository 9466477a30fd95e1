"""Of how many turns a second admission learns, and whose."""

from typing import Any

from tests.admission.applicants import POOL, Play, answered


def turns_learned(play: Play, tenant: str) -> int:
    return int(play.pool.lessons._given_to.get(tenant, 0))


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
    assert turns_learned(play, "t") == 50, "of those that were looked at before"


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


def test_what_a_replica_lost_with_its_engine_is_no_overload():
    play = Play(gaps={"unknown_tool_s": 300.0}).has(kv_tokens=1_000_000)

    def rounds(count: int, *, cached: int) -> None:
        for _ in range(count):
            for number in range(12):
                assert play.turn(f"s{number}", tokens=40_000, cached=cached, lasts=0.5)
            play.now += 6.0

    rounds(10, cached=40_000)
    budget, gpu = play.pool.window.budget, play.pool.limits.gpu
    turns_before = gpu._longer.turns
    play.policy.fleet_changed(POOL, [], now=play.now)
    play.now += 20.0
    play.has(kv_tokens=1_000_000)
    rounds(1, cached=0)
    assert gpu._longer.turns <= turns_before, "they could not find anything there"
    rounds(4, cached=40_000)
    assert play.pool.window.budget == budget
    assert not [each for each in play.told() if each.reason == "state_lost"]
    rounds(6, cached=0)
    assert play.pool.window.budget < budget, "what is lost while it lives is"
