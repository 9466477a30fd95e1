"""The trickle: how many sessions of a lost replica move at a time, and in what order."""

from gateway.fleet.trickle import Trickle, TrickleConfig

LARGE = 100_000


def trickle():
    return Trickle(TrickleConfig(moving_at_once=1))


def test_so_many_for_each_replica_move_at_a_time_in_order():
    some = trickle()
    went = [some.may_move(f"r{n}", "pool", LARGE, replicas=2) for n in range(5)]
    assert went == [True, True, False, False, False]
    assert some.next_to_move("pool", 2) is None and some.pools() == ["pool"]
    some.over("r0")
    assert not some.may_move("r5", "pool", LARGE, replicas=2), "others wait already"
    assert some.next_to_move("pool", 2) == "r2"
    assert some.may_move("r2", "pool", LARGE, replicas=2), "asked again, it moves still"
    some.over("r3")
    some.over("r1")
    assert some.next_to_move("pool", 2) == "r4"


def test_small_ones_just_go():
    some = trickle()
    assert all(some.may_move(f"r{n}", "pool", 1000, replicas=1) for n in range(9)) and not some


def test_pools_do_not_wait_for_each_other():
    some = trickle()
    assert some.may_move("r0", "one", LARGE, replicas=1) and some.may_move("r1", "two", LARGE, replicas=1)


def test_nothing_is_left_of_those_that_are_over():
    some = trickle()
    for number in range(9):
        some.may_move(f"r{number}", "pool", LARGE, replicas=2)
    assert some
    for number in range(9):
        some.over(f"r{number}")
        some.over("unknown")
    assert not some and not some.pools() and not any(some._moving.values())
    assert some.next_to_move("pool", 2) is None
