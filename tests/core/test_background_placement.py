"""Background sessions on a fleet of fast and slow replicas, through the whole brain."""

from collections import Counter
from typing import Any

from gateway.domain.ids import ReplicaId
from gateway.routing.predicted import PredictedPlacement
from tests.core.playbook import Playbook, arrived, stated

FAST, SLOW = ("f1", "f2"), ("s1", "s2")


def fleet(weight: float) -> Playbook:
    replicas = [
        {"url": f"http://{name}", "name": name, "profile": f"qwen3-14b@{kind}"}
        for names, kind in ((FAST, "h200"), (SLOW, "l40s"))
        for name in names
    ]
    return Playbook(
        replicas=" ".join(FAST + SLOW),
        pools=({"name": "pool", "replicas": replicas},),
        have_homes=True,
        admission={"policy": "sessions"},
        routing={"background_weight": weight},
    )


def placed(weight: float, count: int = 24) -> tuple[Playbook, Counter[str], Counter[str]]:
    """Where sessions that somebody waits for, and background ones, begin."""
    play, people, background = fleet(weight), Counter[str](), Counter[str]()
    for number in range(count):
        is_background, name = number % 2 == 1, f"t{number}"
        _ = play >> arrived(name, explicit=stated(name), is_background=is_background, body_bytes=20_000)
        sent: Any = play.take()
        (background if is_background else people)[sent.placement.replica] += 1
    return play, people, background


def at(replicas: tuple[str, ...], counts: Counter[str]) -> int:
    return sum(counts[name] for name in replicas)


def test_background_sessions_begin_on_the_slow_replicas_more_often():
    _, people, background = placed(0.5)
    _, even_people, even_background = placed(1.0)
    assert at(SLOW, background) > at(SLOW, even_background)
    assert at(FAST, people) > at(FAST, even_people)


def test_who_can_wait_is_asked_only_where_it_counts():
    for weight in (0.5, 1.0):
        play, _, background = placed(weight)
        placement = play.brain.placement
        assert isinstance(placement, PredictedPlacement)
        for name in FAST + SLOW:
            counted = placement.ledger.sums(ReplicaId(name)).background
            assert counted == (background[name] if weight < 1.0 else 0)
