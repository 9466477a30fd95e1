"""The fleet's secret: kept in the store, and taken from there by a gateway that began alone."""

import logging

import pytest

from gateway.server.peer_secret import PeerSecret
from gateway.shared_state.fleet_secret import keep, standing
from lab.evaluation.memory_store import MemoryStore

FLEETS, OWN = b"f" * 32, b"o" * 32


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(lambda: 0.0)


async def test_a_store_that_lost_it_gets_it_back(store):
    await PeerSecret(FLEETS, None).keep(store, has_settled=False)
    assert await standing(store) == FLEETS


async def test_who_began_alone_waits_for_the_others_before_its_own_is_the_fleets(store):
    heard: list[bytes] = []
    secret = PeerSecret(OWN, heard.append)
    await secret.keep(store, has_settled=False)
    assert await standing(store) is None and secret.is_its_own
    await secret.keep(store, has_settled=True)
    assert await standing(store) == OWN and not secret.is_its_own and not heard


async def test_who_began_alone_takes_the_fleets_once_it_is_there(store):
    await keep(store, FLEETS)
    heard: list[bytes] = []
    secret, before = PeerSecret(OWN, heard.append), PeerSecret(OWN, None)
    await secret.keep(store, has_settled=False)
    of_fleet = PeerSecret(FLEETS, None)
    assert (secret.token, secret.fleet) == (of_fleet.token, of_fleet.fleet) != (before.token, before.fleet)
    await secret.keep(store, has_settled=True)
    assert heard == [FLEETS] and not secret.is_its_own


async def test_who_runs_with_another_one_keeps_it_and_says_so_once(store, caplog):
    await keep(store, FLEETS)
    secret = PeerSecret(OWN, None)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await secret.keep(store, has_settled=True)
    assert secret.token == PeerSecret(OWN, None).token and await standing(store) == FLEETS
    assert [each.message for each in caplog.records] == [
        "the shared store has another secret: sessions are shared after a restart"
    ]


async def test_a_store_that_is_away_changes_nothing(store):
    store.is_up = False
    secret = PeerSecret(OWN, lambda _: pytest.fail("there is nobody to hear of"))
    await secret.keep(store, has_settled=True)
    assert secret.is_its_own
