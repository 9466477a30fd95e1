"""Membership: who is in by a list, by registration, or by setting; who leaves, and under what name."""

import pytest

from gateway.domain.ids import PoolId, ReplicaId
from gateway.fleet.membership import SET, Member, Membership, MembershipError


def fleet(**settings):
    first = Member(name=ReplicaId("default-0"), pool=PoolId("default"), url="http://a:1", origin=SET)
    return Membership([first], **settings)


def names(members):
    return [member.name for member in members]


def test_a_list_is_what_it_says_now():
    members = fleet()
    first = members.list_says("default", "dns", ["http://a:1", "http://b:1/", "http://c:1"])
    assert names(first.joined) == ["default-b-1", "default-c-1"] and not first.left, "a is set already"
    second = members.list_says("default", "dns", ["http://c:1", "http://d:1"])
    assert names(second.joined) == ["default-d-1"] and names(second.left) == ["default-b-1"]
    assert not members.list_says("default", "dns", ["http://c:1", "http://d:1"]).joined
    assert names(members.list_says("default", "dns", []).left) == ["default-c-1", "default-d-1"]
    assert "default-0" in members


def test_lists_do_not_speak_for_each_other():
    members = fleet()
    members.list_says("default", "dns", ["http://b:1"])
    assert not members.list_says("default", "file", ["http://b:1"]).joined
    assert not members.list_says("default", "file", []).left


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
    assert not members.list_says("default", "dns", ["http://d:1"]).joined


def test_the_settings_say_who_is_set():
    members = fleet()
    members.list_says("default", "dns", ["http://b:1", "http://c:1"])
    members.heartbeat(PoolId("default"), "http://d:1", "late", ttl_s=5.0, now=0.0)

    def member(name: str, url: str) -> Member:
        return Member(name=ReplicaId(name), pool=PoolId("default"), url=url, origin=SET)

    changes = members.settings_say(
        [member("default-0", "http://a:2"), member("b", "http://b:1"), member("late", "http://e:1")]
    )
    assert set(names(changes.left)) == {"default-0", "default-b-1", "late"}, (
        "moved, found by address, by name"
    )
    assert names(changes.joined) == ["default-0", "b", "late"]
    assert "default-c-1" in members and not members.expired(now=10.0), "a name that is set does not lapse"
    again = members.settings_say([member("b", "http://b:1")])
    assert names(again.left) == ["default-0", "late"] and not again.joined
    assert not members.list_says("default", "dns", ["http://b:1", "http://c:1"]).joined, "b is set"
