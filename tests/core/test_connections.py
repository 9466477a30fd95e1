"""Turns that come by a connection: they run where it goes, and nowhere else."""

from typing import Any

import msgspec
import pytest

from gateway.core.commands import Dispatch
from gateway.core.connections import place_connection, pool_of_connection
from gateway.domain import records as rec
from gateway.domain.decision import PlacementReason, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId, TenantId
from gateway.domain.request import Protocol
from tests.core.playbook import (
    Playbook,
    arrived,
    dispatch,
    down,
    finished,
    left,
    nothing,
    refuse,
    started,
    state_minted,
    stated,
    up,
)

HERE = PlacementReason.STATE_LIVES_THERE


def comes_by(replica: str, request: str, **fields):
    fields.setdefault("protocol", Protocol.RESPONSES)
    return msgspec.structs.replace(arrived(request, **fields), only=ReplicaId(replica))


def test_it_runs_there_and_waits_for_a_place_there():
    play = Playbook(replicas="a b", max_running_per_replica=1)
    _ = play >> comes_by("b", "r1") << dispatch("r1", to="b", because=HERE)
    _ = play >> comes_by("b", "r2") << nothing
    _ = play >> arrived("r3") << dispatch("r3", to="a")
    _ = play >> started("r1") >> finished("r1") << dispatch("r2", to="b", because=HERE)
    _ = play >> started("r2") >> finished("r2") << nothing


def test_state_that_lives_elsewhere_does_not_take_it_away():
    """The one that has the connection says that it does not know it."""
    play = Playbook(replicas="a b")
    _ = play >> arrived("r1", protocol=Protocol.RESPONSES) << dispatch("r1", to="a")
    _ = play >> started("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    _ = play >> comes_by("b", "r2", state_ids=("resp_1",)) << dispatch("r2", to="b", because=HERE)
    [first, second] = play.seen(rec.TurnArrived)
    assert first.session == second.session, "whose turn it is follows from what it builds on all the same"


def test_where_its_replica_is_down_it_is_refused():
    play = Playbook(replicas="a b", core={"max_outage_s": 5})
    _ = play >> comes_by("b", "r1") << dispatch("r1", to="b", because=HERE)
    _ = play >> down("b")
    _ = play >> comes_by("b", "r2") << nothing
    _ = play.later(6) << refuse("r2", RefusalReason.NO_REPLICA)
    _ = play >> started("r1") >> left("r1")


def test_where_its_replica_comes_back_it_goes_on():
    play = Playbook(replicas="a b", core={"max_outage_s": 5})
    _ = play >> down("b") >> comes_by("b", "r1") << nothing
    _ = play >> up("b") << dispatch("r1", to="b", because=HERE)


def test_a_replica_that_nobody_knows_takes_nothing():
    play = Playbook(replicas="a")
    _ = play >> comes_by("z", "r1") << refuse("r1", RefusalReason.NO_REPLICA)


def test_a_fault_of_ours_sends_it_nowhere_else(monkeypatch):
    play = Playbook(replicas="a b")
    monkeypatch.setattr(play.brain.gate, "ask", lambda *_, **__: 1 / 0)
    event = comes_by("b", "r1")
    with pytest.raises(ZeroDivisionError):
        play.brain.handle(event, now=play.now)
    [decided] = [each for each in play.brain.recover(now=play.now) if hasattr(each, "placement")]
    assert decided.placement.replica == "b"


# --- where a connection goes ------------------------------------------------------------------------


def goes(play: Playbook, *, session: str | None = None, without: str = "", tenant: str = "t", **open_at: int):
    return place_connection(
        play.brain,
        PoolId("pool"),
        TenantId(tenant),
        stated(session) if session is not None else None,
        without={ReplicaId(name) for name in without.split()},
        connections={ReplicaId(name): count for name, count in open_at.items()},
    )


def test_each_counts_as_a_turn():
    play = Playbook(replicas="a b c")
    _ = play >> arrived("r1") << dispatch("r1", to="a")
    assert goes(play, b=1) == "c"
    assert goes(play, b=1, c=2) in ("a", "b")
    assert goes(play, a=0, b=2, c=2) == "a"
    assert goes(play, without="b c") == "a" and goes(play, without="a b c") is None
    _ = play >> down("a")
    assert goes(play, without="b c") is None


def test_a_session_comes_back_to_its_home():
    play = Playbook(replicas="a b", have_homes=True)
    _ = play >> arrived("r1", explicit=stated("s1"))
    sent = play.take()
    assert isinstance(sent, Dispatch)
    first = sent.placement.replica
    busy: dict[str, Any] = {first: 3}
    _ = play >> started("r1") >> finished("r1")
    assert goes(play, session="s1", **busy) == first
    assert goes(play, session="s1", tenant="another", **busy) != first
    assert goes(play, session="s2", **busy) != first
    assert goes(play, session="s1", without=first) not in (None, first)


def test_of_several_pools_it_must_be_said():
    pools = ({"name": "pool", "models": ["m"]}, {"name": "other", "models": ["n"]})
    play = Playbook(pools=pools)
    assert pool_of_connection(play.brain, None) is None
    assert pool_of_connection(play.brain, "n") == "other"
    assert pool_of_connection(play.brain, "x") is None
    assert pool_of_connection(Playbook().brain, None) == "pool"
