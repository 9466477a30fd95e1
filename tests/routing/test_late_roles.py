"""Roles bound late: what is asked decides whether one of four replicas computes prompts for the others."""

import pytest

from gateway.domain.ids import ReplicaId
from gateway.routing.late_roles import LateRoles

NAMES = [ReplicaId(name) for name in "hgfedcba"]


def watched(share: float, *, replicas: int = 4, for_s: int = 60, roles: LateRoles | None = None) -> LateRoles:
    """Prompts that take that share of so many replicas' time, one a second."""
    roles = roles or LateRoles()
    began_s = int(roles._seen_s)
    for second in range(began_s, began_s + for_s):
        roles.asked(share * replicas, now=float(second))
        roles.settle(NAMES[:replicas], now=float(second))
    return roles


@pytest.mark.parametrize("share", [0.1, 0.5, 1.5])
def test_what_is_asked_each_second_is_found(share):
    assert watched(share).demand(now=59.5) == pytest.approx(4 * share, rel=0.03)


def test_what_is_asked_no_more_is_forgotten():
    assert watched(1.0).demand(now=59.0 + 40.0) == pytest.approx(1.0, rel=0.2), "two half-lives later"


@pytest.mark.parametrize(("share", "are_apart"), [(0.47, False), (0.53, True), (3.0, True)])
def test_roles_are_bound_where_prompts_take_half_of_the_time(share, are_apart):
    assert bool(watched(share).replicas) == are_apart


@pytest.mark.parametrize(("share", "are_apart"), [(0.43, True), (0.37, False), (0.0, False)])
def test_they_stay_bound_until_prompts_take_clearly_less(share, are_apart):
    assert bool(watched(share, for_s=200, roles=watched(0.6)).replicas) == are_apart


@pytest.mark.parametrize(("replicas", "count"), [(0, 0), (1, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_one_of_four_is_for_prompts(replicas, count):
    assert len(watched(0.9, replicas=replicas).replicas) == count


def test_nothing_is_said_before_it_was_watched_for_a_while():
    assert not watched(0.9, for_s=20).replicas
    assert watched(0.9, for_s=22).replicas


def test_all_who_see_the_same_replicas_choose_the_same():
    roles, other = watched(0.9), LateRoles()
    for second in range(60):
        other.asked(3.0, now=float(second))
    other.settle(sorted(NAMES[:4]), now=60.0)
    assert other.replicas == roles.replicas == {"e"}


def test_one_that_is_gone_is_none_of_them():
    roles = watched(0.9)
    roles.settle([name for name in NAMES[:5] if name != "e"], now=60.0)
    assert roles.replicas == {"d"}
