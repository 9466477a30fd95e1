"""A turn that is sent to a replica which lacks its prompt is told who has it."""

from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.prefix_pull import PullPrefix
from gateway.domain.request import Transcript, Usage
from tests.core.playbook import Playbook, arrived, down, failed, finished, first_token, started, stated

SIZE, TOKENS = 20_000, 5_000


class Fleet(Playbook):
    """A session has left its prompt and answer on one of two replicas, its home."""

    def __init__(self, *, pulls: bool = True, transfer: str | None = "p2p") -> None:
        replicas = [{"url": f"http://{name}", "name": name} for name in "ab"]
        super().__init__(
            replicas="a b",
            pools=({"name": "pool", "transfer": transfer, "replicas": replicas},),
            have_homes=True,
            disaggregation={"threshold_tokens": 1 << 40},
            prefix_pull={"enabled": pulls},
        )
        first = self.asks("r1", size=SIZE - 400)
        self.now += 1.0  # who answers at once computes more quickly than anything is pulled
        self.home = first.placement.replica
        self.other = ReplicaId("b" if self.home == "a" else "a")
        usage = Usage(prompt_tokens=TOKENS - 100, cached_tokens=0, output_tokens=20)
        _ = self >> started("r1") >> first_token("r1") >> finished("r1", usage=usage)

    def asks(self, turn: str, *, size: int = SIZE, **ids: Any) -> Dispatch:
        _ = self >> arrived(
            turn,
            explicit=stated("s", **ids),
            is_replayable=True,
            stream=True,
            body_bytes=size,
            transcript=Transcript(agent=7, agent_type=7),
        )
        sent = self.take()
        assert isinstance(sent, Dispatch)
        return sent

    def drains_home(self) -> "Fleet":
        _ = self >> ev.ReplicaDrained(self.home, is_draining=True)
        return self

    def seconds_of(self, tokens: float) -> float:
        return self.brain.legs.rates[PoolId("pool")].transfer_s(tokens, now=self.now)


def test_at_home_nothing_is_pulled():
    fleet = Fleet()
    sent = fleet.asks("r2")
    assert (sent.placement.replica, sent.pull) == (fleet.home, None)


@pytest.mark.parametrize("ids", [{}, {"thread": "fork"}], ids=["moved", "forked"])
def test_elsewhere_what_home_holds_is_pulled(ids):
    fleet = Fleet().drains_home()
    sent = fleet.asks("r2", **ids)
    assert sent.placement.replica == fleet.other
    assert sent.pull == PullPrefix(fleet.home, TOKENS - 80)


@pytest.mark.parametrize("settings", [{"pulls": False}, {"transfer": "nixl"}, {"transfer": None}], ids=str)
def test_not_where_it_is_off_or_cannot_be(settings):
    assert Fleet(**settings).drains_home().asks("r2").pull is None


def test_not_from_a_replica_that_is_down():
    fleet = Fleet()
    _ = fleet >> down(fleet.home)
    assert fleet.asks("r2").pull is None


def test_how_long_it_took_is_learned():
    fleet = Fleet().drains_home()
    before_s = fleet.seconds_of(1_000)
    fleet.asks("r2")
    fleet.now += 30.0
    _ = fleet >> started("r2") >> first_token("r2")
    assert fleet.seconds_of(1_000) > 2 * before_s


def test_an_attempt_that_failed_takes_nothing_along():
    fleet = Fleet().drains_home()
    assert fleet.asks("r2").pull is not None
    _ = fleet >> ev.ReplicaDrained(fleet.home, is_draining=False) >> failed("r2", was_sent=True)
    again = fleet.take()
    assert isinstance(again, Dispatch) and again.placement.replica == fleet.home
    assert again.pull is None and fleet.brain.live[RequestId("r2")].handed_over == 0.0
