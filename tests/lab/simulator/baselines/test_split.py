"""The static split, event by event; and which replicas are for what."""

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, PrefillLeg
from gateway.domain.ids import ReplicaId, RequestId
from lab.simulator.baselines.roles import roles_of, with_roles, without_network
from lab.simulator.baselines.split import SplitRouter
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from tests.lab.simulator.baselines.router_play import Play

FLEET = FleetSpec(replicas=(ReplicaGroup(profile="p", count=3, network_gbit_s=100),))


class SplitPlay(Play):
    """r0 and r1 compute prompts of more than a thousand tokens, r2 and r3 decode."""

    def __init__(self):
        prompts = (ReplicaId("r0"), ReplicaId("r1"))
        super().__init__(None, replicas=4, kind=lambda sizes: SplitRouter(sizes, prompts, 1_000))

    def hears(self, event, now=0.0):
        found = []
        for command in self.router.handle(event, now=now):
            if isinstance(command, PrefillLeg):
                found.append(f"{command.request} first on {command.replica}")
            else:
                assert isinstance(command, Dispatch)
                found.append(f"{command.request} on {command.placement.replica}")
        return found

    def computed(self, name):
        return self.hears(ev.PrefillLegEnded(RequestId(name), None))


def test_a_long_prompt_is_computed_first_and_a_session_keeps_both_its_replicas():
    play = SplitPlay()
    assert play.asks("a/0", 5_000) == ["a/0 first on r0"]
    assert play.asks("b/0", 5_000) == ["b/0 first on r1"]
    assert play.computed("b/0") == ["b/0 on r2"]
    assert play.computed("a/0") == ["a/0 on r3"]
    play.ends("a/0", prompt=5_000)
    assert play.asks("a/1", 6_500) == ["a/1 first on r0"]


def test_what_is_cached_where_it_is_decoded_does_not_count():
    play = SplitPlay()
    assert play.asks("a/0", 1_000) == ["a/0 on r2"]
    play.ends("a/0", prompt=1_000, output=500)
    assert play.asks("a/1", 2_500) == ["a/1 on r2"]
    play.ends("a/1", prompt=2_500, output=0)
    assert play.asks("a/2", 3_501) == ["a/2 first on r0"]


def test_roles_by_number():
    fleet = with_roles(FLEET, "0.2")
    assert roles_of(fleet, "prefill") == {"sim-0", "sim-2"} and roles_of(fleet, "decode") == {"sim-1"}
    assert with_roles(FLEET, "") is FLEET
    plain = without_network(fleet)
    assert len(roles_of(plain, "both")) == 3 and not plain.hands_over


@pytest.mark.parametrize("text", ["3", "x", "0.1.2", "-1"])
def test_roles_that_cannot_be(text):
    with pytest.raises(SimulatorError, match=f"prefill={text}"):
        with_roles(FLEET, text)


def test_a_fleet_says_what_it_cannot_be():
    with pytest.raises(ValueError, match="all replicas"):
        FleetSpec(replicas=(ReplicaGroup(profile="p"), ReplicaGroup(profile="p", network_gbit_s=1)))
    with pytest.raises(ValueError, match="need a `network_gbit_s`"):
        FleetSpec(replicas=(ReplicaGroup(profile="p"), ReplicaGroup(profile="p", role="prefill")))
    with pytest.raises(ValueError, match="one connector"):
        ReplicaGroup(profile="p", network_gbit_s=1, offload_gb=1)
