"""The snapshot: what a person sees of the brain."""

from tests.core.playbook import Playbook, arrived, call_seen, down, finished, stated
from tests.core.snapshots import take_snapshot


def test_it_counts_and_shows_each_phase():
    play = Playbook(replicas="a b", max_running_per_replica=1)
    play >> down("b")
    play.begins("r1", explicit=stated("tool")) >> call_seen("r1", "c1") >> finished("r1", "c1")
    play.begins("r2", explicit=stated("idle")) >> finished("r2")
    play.arrives("r3", explicit=stated("busy"))
    play >> arrived("r4", explicit=stated("waits"))
    seen = take_snapshot(play.brain, now=play.now)
    assert (seen.running, seen.waiting, seen.active_tools, seen.session_count) == (1, 1, 1, 4)
    assert {view.id: (view.is_up, view.running) for view in seen.replicas} == {
        "a": (True, 1),
        "b": (False, 0),
    }
    assert [view.state for view in seen.sessions] == ["waiting", "generating", "idle", "tool"]
    assert seen.sessions[-1].open_tools == ("bash",) and seen.sessions[0].service_class == "reactive"
    assert [view.is_active for view in seen.sessions] == [True, True, False, True]
    later = take_snapshot(play.brain, now=play.now + 601.0)
    assert [view.is_active for view in later.sessions] == [True, True, False, False], "its agent may be gone"
    assert seen.waiting_by == {"reactive": 1}
    assert all(view.since_s == play.now and view.threads == 1 for view in seen.sessions)
