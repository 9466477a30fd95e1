"""WebSockets in the brain: turns of which nothing is known but that they run."""

from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason
from gateway.domain.ids import ReplicaId
from gateway.domain.request import Work
from tests.core.playbook import (
    Playbook,
    arrived,
    dispatch,
    failed,
    finished,
    left,
    nothing,
    refuse,
    started,
    stated,
    up,
)

HASH = "sha256:" + "0" * 64


def tunnel(request: str, *without: str, **fields: Any) -> ev.RequestArrived:
    event = arrived(request, work=Work.TUNNEL, is_replayable=True, **fields)
    return msgspec.structs.replace(event, without=tuple(map(ReplicaId, without)))


def test_it_takes_a_place_and_teaches_nothing():
    play = Playbook(max_running_per_replica=1)
    play >> tunnel("r1", explicit=stated("s")) << dispatch("r1", to="a")
    play >> started("r1", 101) >> arrived("r2") << nothing
    play.later(3600.0) << refuse("r2", RefusalReason.QUEUE_TIMEOUT)
    play >> finished("r1", status=101)
    [submitted] = play.seen(rec.GpuSubmit)
    [end] = play.seen(rec.GpuEnd)
    assert submitted.expected is None and end.status == 101 and end.usage.prompt_tokens is None
    assert not play.brain.forecasts.is_experienced(ReplicaId("a"))
    assert play.session.turns == 1 and not play.session.live_turns


def test_placement_hears_nothing_of_it(monkeypatch):
    """It would hold that this session has nothing in the cache."""
    play, heard = Playbook(), []
    monkeypatch.setattr(play.brain.placement, "turn_over", lambda *_, **__: heard.append(1))
    play >> tunnel("r1") << dispatch("r1", to="a")
    play >> started("r1", 101) >> finished("r1", status=101)
    assert not heard
    play >> arrived("r2") << dispatch("r2", to="a")
    play >> started("r2") >> finished("r2")
    assert heard


def test_it_never_runs_where_it_may_not():
    play = Playbook(replicas="a b c", core={"max_outage_s": 0.0})
    play >> tunnel("r1", "a") << dispatch("r1", to="b")
    play >> failed("r1") << dispatch("r1", to="c", because=PlacementReason.RETRIED_ELSEWHERE)
    play >> failed("r1") << refuse("r1", RefusalReason.UPSTREAM_UNREACHABLE)
    play >> tunnel("r2", "a", "b", "c") << refuse("r2", RefusalReason.NO_REPLICA)


def test_it_waits_for_one_where_it_may():
    play = Playbook(replicas="a", core={"max_outage_s": 10.0})
    play >> tunnel("r1", "a") << nothing
    play >> up("b") << dispatch("r1", to="b")
    play >> left("r1") << nothing


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({}, False),
        ({"tenants": [{"name": "t", "key_hashes": [HASH], "quota": {"max_sessions": 1}}]}, False),
        ({"tenants": [{"name": "t", "key_hashes": [HASH], "quota": {"tokens_per_minute": 1}}]}, True),
        ({"bounds": [{"name": "b", "turns": 1}]}, False),
        ({"bounds": [{"name": "b", "tokens": 1}]}, True),
        ({"bounds": [{"name": "b", "cost": 1.0}], "prices": [{"model": "*"}]}, True),
        ({"bounds": [{"name": "b", "tokens": 1, "tenants": ["u"]}]}, False),
        ({"bounds": [{"name": "b", "tokens": 1, "shadow": True}]}, False),
    ],
)
def test_who_has_limits_of_tokens_gets_none(settings, is_refused):
    play = Playbook(**settings)
    expected = refuse("r1", RefusalReason.UNSUPPORTED_UPGRADE) if is_refused else dispatch("r1", to="a")
    play >> tunnel("r1") << expected
