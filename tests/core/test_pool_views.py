"""What admission tells of itself."""

from gateway.core import events as ev
from gateway.core.pool_views import view_members, view_pools, view_tenants
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, SessionId
from tests.core.playbook import Playbook, arrived, finished, stated


def full_pool():
    """Two sessions are in, of one tenant; one of another waits."""
    play = Playbook(admission={"policy": "session-cap", "session_cap": 2})
    for name in ("a", "b"):
        play.arrives(name, "alice", explicit=stated(name))
    play >> arrived("c", "bob", explicit=stated("c"))
    return play


def test_a_pool_tells_who_is_in_and_who_waits():
    play = full_pool()
    [pool] = view_pools(play.brain.admission)
    assert (pool.id, pool.window, pool.admitted, pool.waiting) == ("pool", 2.0, 2, 1)
    assert pool.kv_budget is None
    alice, bob = view_tenants(play.brain.admission)
    assert (alice.id, alice.admitted, alice.waiting) == ("alice", 2, 0)
    assert (bob.id, bob.admitted, bob.waiting, bob.weight) == ("bob", 0, 1, 1.0)


def test_pressures_are_those_that_the_window_saw():
    play = Playbook()
    signals = EngineSignals(kv_tokens=1000, kv_used=0.95, running=1, waiting=9)
    play >> ev.EngineReported(ReplicaId("a"), signals)
    [pool] = view_pools(play.brain.admission)
    assert pool.gpu_pressure == 1.8 and pool.kv_budget == 900.0


def test_a_session_is_found_with_its_class_and_replica():
    play = Playbook()
    play.begins("r1", explicit=stated("a")) >> finished("r1")
    member = view_members(play.brain.admission).get(play.session.id)
    assert member is not None and member.service_class == "reactive"
    assert view_members(play.brain.admission).get(SessionId("s-none")) is None
