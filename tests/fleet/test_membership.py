"""Membership: who is in, who leaves; the trickle of moved sessions, adapters, and whose turns are late."""

import pytest

from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.fleet.adapters import AdapterSlots
from gateway.fleet.membership import SET, Member, Membership, MembershipError
from gateway.fleet.migration_limiter import MigrationLimiter, TrickleConfig
from gateway.fleet.outliers import OutlierDetection, Phase

LARGE = 100_000


def trickle():
    return MigrationLimiter(TrickleConfig(moving_at_once=1))


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
    assert all(some.may_move(f"r{n}", "pool", 1000, replicas=1) for n in range(9)) and not some.known


def test_pools_do_not_wait_for_each_other():
    some = trickle()
    assert some.may_move("r0", "one", LARGE, replicas=1) and some.may_move("r1", "two", LARGE, replicas=1)


def test_nothing_is_left_of_those_that_are_over():
    some = trickle()
    for number in range(9):
        some.may_move(f"r{number}", "pool", LARGE, replicas=2)
    assert some.known
    for number in range(9):
        some.over(f"r{number}")
        some.over("unknown")
    assert not some.known and not some.pools() and not any(some._moving.values())
    assert some.next_to_move("pool", 2) is None


A, B = ReplicaId("a"), ReplicaId("b")
R1, R2, R3 = map(RequestId, ("r1", "r2", "r3"))


def slots(most: int = 1) -> AdapterSlots:
    known = AdapterSlots()
    for replica in (A, B):
        known.listed(replica, ("sql", "law"))
        known.engine_reported(replica, most, ())
    return known


def full(known: AdapterSlots, model: str | None, *, have_others: bool = False) -> list[ReplicaId]:
    return [each for each in (A, B) if known.is_full(each, model, have_others=have_others)]


def test_another_adapter_waits_where_all_places_are_taken():
    known = slots()
    known.began(R1, A, "sql")
    assert full(known, "law") == [A] and full(known, "sql") == []
    known.began(R2, A, "sql")
    known.ended(R1, A)
    assert full(known, "law") == [A]
    known.ended(R2, A)
    known.ended(R3, A)
    assert full(known, "law") == []


def test_the_base_model_and_unknown_names_take_no_place():
    known = slots()
    for request, model in ((R1, "base"), (R2, None)):
        known.began(request, A, model)
    known.began(R3, A, "sql")
    assert full(known, "law") == [A] and full(known, "base") == full(known, None) == []


def test_several_may_run_at_a_time():
    known = slots(most=2)
    known.began(R1, A, "sql")
    assert full(known, "law") == []


def test_what_others_run_counts_where_they_do():
    known = slots()
    known.engine_reported(A, 1, ("sql",))
    assert full(known, "law") == [] and full(known, "law", have_others=True) == [A]


def test_nobody_waits_where_nothing_is_said_of_places():
    known = AdapterSlots()
    known.listed(A, ("sql", "law"))
    known.engine_reported(A, None, ())
    known.began(R1, A, "sql")
    assert not known.is_used
    assert full(known, "law") == []


def test_nothing_is_kept_of_who_left():
    known = slots()
    known.began(R1, A, "sql")
    known.ended(R1, A)
    for replica in (A, B):
        known.left(replica)
    assert not any(vars(known).values())


def fleet(**settings):
    first = Member(name=ReplicaId("default-0"), pool=PoolId("default"), url="http://a:1", origin=SET)
    return Membership([first], **settings)


def names(members):
    return [member.name for member in members]


def test_a_list_is_what_it_says_now():
    members = fleet()
    first = members.replace_listed("default", "dns", ["http://a:1", "http://b:1/", "http://c:1"])
    assert names(first.joined) == ["default-b-1", "default-c-1"] and not first.left, "a is set already"
    second = members.replace_listed("default", "dns", ["http://c:1", "http://d:1"])
    assert names(second.joined) == ["default-d-1"] and names(second.left) == ["default-b-1"]
    assert not members.replace_listed("default", "dns", ["http://c:1", "http://d:1"]).joined
    assert names(members.replace_listed("default", "dns", []).left) == ["default-c-1", "default-d-1"]
    assert "default-0" in members


def test_lists_do_not_speak_for_each_other():
    members = fleet()
    members.replace_listed("default", "dns", ["http://b:1"])
    assert not members.replace_listed("default", "file", ["http://b:1"]).joined
    assert not members.replace_listed("default", "file", []).left


def test_whoever_registers_stays_as_long_as_it_is_heard_of():
    members = fleet()
    member, is_new = members.heartbeat("default", "http://b:1", "gpu-7", ttl_s=15, now=0.0)
    assert member.name == "gpu-7" and is_new
    assert members.heartbeat("default", "http://b:1/", None, ttl_s=15, now=10.0) == (member, False)
    assert not members.expired(now=24.9)
    assert names(members.expired(now=25.0)) == ["gpu-7"] and "gpu-7" not in members
    assert not members.expired(now=1e9)


def test_whoever_registered_may_leave_and_nobody_else():
    members = fleet()
    members.heartbeat("default", "http://b:1", None, ttl_s=15, now=0.0)
    assert members.withdraw("default-b-1").url == "http://b:1"
    for name in ("default-b-1", "default-0", "unknown"):
        with pytest.raises(MembershipError, match="has registered"):
            members.withdraw(name)


def test_a_heartbeat_of_one_that_is_set_changes_nothing():
    members = fleet()
    assert members.heartbeat("default", "http://a:1", None, ttl_s=1, now=0.0)[1] is False
    assert not members.expired(now=1e9)


def test_names_and_addresses_are_not_shared():
    members = fleet(most=2)
    with pytest.raises(MembershipError, match="another member of the name"):
        members.heartbeat("default", "http://b:1", "default-0", ttl_s=1, now=0.0)
    with pytest.raises(MembershipError, match="is a member already"):
        members.heartbeat("other", "http://a:1", None, ttl_s=1, now=0.0)
    members.heartbeat("default", "http://b.c:1", None, ttl_s=1, now=0.0)
    assert members.heartbeat("default", "http://b-c:1", None, ttl_s=1, now=0.0)[0].name == "default-b-c-1-2"
    with pytest.raises(MembershipError, match="as many members"):
        members.heartbeat("default", "http://d:1", None, ttl_s=1, now=0.0)
    assert not members.replace_listed("default", "dns", ["http://d:1"]).joined


def test_the_settings_say_who_is_set():
    members = fleet()
    members.replace_listed("default", "dns", ["http://b:1", "http://c:1"])
    members.heartbeat(PoolId("default"), "http://d:1", "late", ttl_s=5.0, now=0.0)

    def member(name: str, url: str) -> Member:
        return Member(name=ReplicaId(name), pool=PoolId("default"), url=url, origin=SET)

    changes = members.replace_configured(
        [member("default-0", "http://a:2"), member("b", "http://b:1"), member("late", "http://e:1")]
    )
    assert set(names(changes.left)) == {"default-0", "default-b-1", "late"}, (
        "moved, found by address, by name"
    )
    assert names(changes.joined) == ["default-0", "b", "late"]
    assert "default-c-1" in members and not members.expired(now=10.0), "a name that is set does not lapse"
    again = members.replace_configured([member("b", "http://b:1")])
    assert names(again.left) == ["default-0", "late"] and not again.joined
    assert not members.replace_listed("default", "dns", ["http://b:1", "http://c:1"]).joined, "b is set"


SLOW, SOUND, THIRD = map(ReplicaId, "abc")


def came(found, replica, lateness, others=(SLOW, SOUND, THIRD), phase=Phase.END, *, is_over=True, now=0.0):
    others = [each for each in others if each != replica]
    return found.saw(replica, phase, lateness, others, is_over=is_over, now=now)


def late(**turns: list[float]) -> OutlierDetection:
    found = OutlierDetection(lasts_s=5.0)
    for number in range(max(map(len, turns.values()))):
        for name, each in turns.items():
            if number < len(each):
                came(found, ReplicaId(name), each[number])
    return found


@pytest.mark.parametrize(
    ("turns", "is_late"),
    [
        ([4.0], False),
        ([4.0, 4.0], True),
        ([4.0, 0.3, 4.0], False),
        ([4.0, 4.0, 0.3, 4.0], True),
        ([2.0] * 9, False),  # far later, but not so far that a busy replica never is
        ([0.9] * 9, False),  # in time, whatever the others do
        ([4.0, 4.0, 4.0, 0.3], False),  # it was
    ],
)
def test_two_in_a_row_are_late(turns, is_late):
    found = late(b=[0.45] * 9, c=[0.5] * 9)
    for each in turns:
        came(found, SLOW, each)
    assert found.slower(SLOW) == (pytest.approx(4.0 / 0.5, rel=0.15) if is_late else 1.0)
    assert found.slower(SOUND) == found.slower(THIRD) == 1.0


def test_one_that_was_late_seems_slower_until_the_next_is_in_time():
    found = late(b=[0.45] * 9, c=[0.5] * 9)
    came(found, SLOW, 4.0)
    assert found.slower(SLOW) == 1.0 and found.slower(SLOW, at_least=0.0) == pytest.approx(
        4.0 / 0.5, rel=0.15
    )
    assert found.slower(SOUND, at_least=0.0) == 1.0
    came(found, SLOW, 0.3, phase=Phase.START)
    assert found.slower(SLOW, at_least=0.0) > 1.0, "another phase"
    came(found, SLOW, 0.3, is_over=False)
    assert found.slower(SLOW, at_least=0.0) > 1.0, "it is not over"
    came(found, SLOW, 0.3)
    assert found.slower(SLOW, at_least=0.0) == 1.0 and not found.late


@pytest.mark.parametrize(("times", "in_time"), [(1, 1), (2, 2), (4, 3)])
def test_the_more_often_it_was_late_the_longer_it_seems_slower(times, in_time):
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0] * times)
    for number in range(in_time):
        assert found.slower(SLOW, at_least=0.0) > 1.0, f"{number} in time"
        came(found, SLOW, 0.3)
    assert found.slower(SLOW, at_least=0.0) == 1.0 and not found.late


def test_who_is_slower_seems_so():
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0] * 8)
    came(found, SLOW, 0.3)
    assert found.slower(SLOW) == found.slower(SLOW, at_least=0.0) > 4.0, (
        "one in time is no proof that it is over"
    )


def test_alone_nobody_is_late():
    found = OutlierDetection(lasts_s=5.0)
    for _ in range(9):
        came(found, SLOW, 50.0, [])
    assert not found.late and found.usual(Phase.END, []) == 0.0


def test_first_tokens_in_time_do_not_excuse_late_ends():
    found = late(b=[0.3] * 9, c=[0.3] * 9)
    for _ in range(3):
        came(found, SLOW, 0.3, phase=Phase.START)
        came(found, SLOW, 4.0, phase=Phase.END)
    assert found.slower(SLOW) > 4.0
    came(found, SLOW, 0.3, phase=Phase.START)
    assert found.slower(SLOW) > 4.0
    came(found, SLOW, 0.3, phase=Phase.END)
    assert found.slower(SLOW) == 1.0


def test_what_is_awaited_still_says_nothing_of_being_in_time():
    found = late(b=[0.3] * 9, c=[0.3] * 9, a=[4.0])
    assert not came(found, SLOW, 1.4, is_over=False)
    assert came(found, SLOW, 4.0, is_over=False)
    assert found.slower(SLOW) > 1.0, "the second in a row"
    assert not came(found, SLOW, 1.4) and found.slower(SLOW) == 1.0, "its end was in time"
