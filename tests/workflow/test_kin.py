"""Relatives: what the family and the world say, in shares."""

import pytest

from gateway.workflow.kin import Kin, World
from gateway.workflow.nodes import END, TEXT
from gateway.workflow.walk import Walk


def kin(world: World | None = None) -> Kin:
    return Kin(world or World(half_life=1e9), max_contexts=64, half_life=1e9)


def test_nothing_is_known_of_the_first_agent():
    common = Walk().common_contexts()
    found = kin().shares(common, kin().spread({END: 0, TEXT: 1}))
    assert found == pytest.approx([1 / 3] * 3)


def test_the_world_tells_kinds_of_steps_and_the_family_which_tools():
    world = World(half_life=1e9)
    family, stranger, common = kin(world), kin(world), Walk().common_contexts()
    for node in (5, 5, 5, 6, END):
        family.add((0, 77), common, node, 1.0)
    place = {END: 0, TEXT: 1, 5: 2, 6: 3}
    mine, theirs = (each.shares(common, each.spread(place)) for each in (family, stranger))
    assert sum(mine) == pytest.approx(1.0) == sum(theirs)
    assert mine[2] > mine[3] > mine[4] and theirs[2] == theirs[3] == theirs[4]
    assert mine[0] == theirs[0] > mine[1]
