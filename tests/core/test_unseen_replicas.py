"""A replica that has not answered yet, among some that are known, through the whole brain."""

from collections import Counter
from typing import Any

from gateway.core import events as ev
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Usage
from tests.core.playbook import (
    Playbook,
    arrived,
    dispatch,
    down,
    finished,
    first_token,
    nothing,
    refuse,
    started,
    stated,
    up,
)

NEW = ReplicaId("new")


def fleet(*pools: str) -> Playbook:
    return Playbook(
        replicas="a b",
        pools=tuple({"name": name} for name in pools),
        have_homes=True,
        admission={"policy": "sessions"},
    )


def begins(play: Playbook, name: str, **fields: Any) -> ReplicaId:
    sent: Any = play.arrives(name, explicit=stated(name), stream=True, body_bytes=20_000, **fields)
    return sent.placement.replica


def answered(play: Playbook, name: str, *, after_s: float = 40.0) -> None:
    play.now += after_s / 2
    _ = play >> started(name) >> first_token(name)
    play.now += after_s / 2
    usage = Usage(prompt_tokens=5_000, cached_tokens=0, output_tokens=100)
    _ = play >> finished(name, usage=usage)


def known(play: Playbook, turns: int = 6) -> None:
    """Both replicas answer, and take far longer than a server of which nothing is known is believed to."""
    for number in range(turns):
        begins(play, f"known{number}")
        answered(play, f"known{number}")


def turn_s(play: Playbook, replica: str) -> float:
    return play.brain.forecasts.turn_s(ReplicaId(replica), 2_000, 0, 100)


def test_who_joins_does_not_draw_what_comes_until_its_first_answer():
    play = fleet("pool")
    known(play)
    play >> up(NEW)
    began = Counter(begins(play, f"t{number}") for number in range(12))
    assert 1 <= began[NEW] <= 6, began
    assert min(began[ReplicaId(name)] for name in "ab") >= 3, began


def test_replicas_of_another_pool_say_nothing():
    play = fleet("pool", "other")
    known(play)
    guess_s = turn_s(fleet("pool"), "a")
    play >> up(NEW, pool="other")
    assert turn_s(play, NEW) == guess_s < turn_s(play, "a")


def test_a_member_that_is_not_up_is_of_its_pool_too():
    play = fleet("pool")
    known(play)
    _ = play >> ev.ReplicaJoined(NEW, PoolId("pool"))
    assert turn_s(play, NEW) > 5 * turn_s(fleet("pool"), "a")


def test_who_has_left_says_nothing():
    play = fleet("pool")
    known(play)
    for gone in ("a", "b"):
        _ = play >> down(gone) >> ev.ReplicaLeft(ReplicaId(gone), "is not listed")
    play >> up(NEW)
    assert turn_s(play, NEW) == turn_s(fleet("pool"), "a")


def test_who_never_came_up_is_absent_like_one_that_went_down():
    """One of two was never there, and the other one goes: turns wait for one of them, then are refused."""
    play = Playbook(replicas="a")
    _ = play >> ev.ReplicaJoined(NEW, PoolId("pool")) >> down("a")
    _ = play >> arrived("t") << nothing
    _ = play.later(60.0) << refuse("t", RefusalReason.NO_REPLICA)
    _ = play >> arrived("u") << nothing >> up(NEW) << dispatch("u", to="new")
