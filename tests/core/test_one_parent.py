"""One session may have any number of children, threads and ids: what is kept of them has a bound."""

from collections import deque
from typing import Any

import pytest

from gateway.core import forecasts
from tests.examples import examples
from tests.reachable import reachable
from tests.workflow.world import World, call, user

CHILDREN = examples(2000)
MOST = 300
"""Of anything that is kept of one session. (Tables of what was learned are keyed by numbers.)"""


def containers(root: object) -> list[tuple[int, str]]:
    """The sizes of everything that `root` leads to, with an entry of each."""
    large = (
        each for each in reachable(root) if isinstance(each, dict | set | list | deque) and len(each) > MOST
    )
    entries = ((len(each), next(iter(each))) for each in large)
    return [(size, repr(entry)[:60]) for size, entry in entries if not isinstance(entry, int)]


def by_header(world: World, at: int) -> dict[str, Any]:
    return {"x_turnpike_session": f"child-{at}", "x_turnpike_parent": "root"}


def by_thread(world: World, at: int) -> dict[str, Any]:
    return {"session_id": "root", "thread_id": f"thread-{at}"}


def by_guess(world: World, at: int) -> dict[str, Any]:
    return {"system": f"You are number {at}.", "tools": None}


@pytest.mark.parametrize("child", [by_header, by_thread, by_guess])
def test_what_is_kept_of_one_parents_children_is_bounded(child, monkeypatch):
    monkeypatch.setattr(forecasts, "REMEMBERED", MOST // 3)  # turns, whosever they are
    world = World(max_sessions=10)
    first = world.ask([user("Start them all")], x_turnpike_session="root", session_id="root")
    world.answer(first, "ok", call("call_aaaaaaaaaaaa", task="look into the weather of Paris now"))
    for at in range(CHILDREN):
        turn = world.ask([user("look into the weather of Paris now")], after=0.01, **child(world, at))
        world.answer(turn, f"done {at}", call(f"call_{at:012}"))
        world.play.records.clear()
    assert len(world.sessions) <= 11
    assert containers(world.play.brain) == []
