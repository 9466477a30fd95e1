"""The snapshot: what a person sees of the brain."""

import msgspec

from gateway.core.snapshot import SessionViews, TurnView
from gateway.domain.decision import Edge, SessionSource
from gateway.domain.ids import RequestId
from tests.core.playbook import Playbook, arrived, call_seen, down, finished, stated
from tests.core.snapshots import take_snapshot


def test_the_best_evidence_counts_and_what_nobody_reports_is_not_0():
    play = Playbook()
    play.begins("r1", explicit=stated("one")) >> finished("r1")
    views, session = SessionViews(play.brain), next(play.brain.sessions.sessions.newest_first())
    turn = TurnView(turn=RequestId("r1"), thread=None, edge=Edge.OPENS, parent=None, model="m", arrived_s=1.0)
    replace = msgspec.structs.replace
    echo, ids = SessionSource.ECHO, SessionSource.CALL_ID
    turns = [
        replace(turn, confidence=1.0),  # new
        replace(turn, source=echo, confidence=0.9, client="claude-cli", prompt_tokens=9),
        replace(turn, source=ids, confidence=0.99, prompt_tokens=9),
        replace(turn, source=echo, confidence=0.99),
    ]
    seen = views.view(session, turns, now=play.now)
    assert seen.source in (echo, ids) and seen.confidence == 0.99 and seen.client == "claude-cli"
    assert (seen.prompt_tokens, seen.cached_tokens) == (18, None)
    told = views.view(session, [*turns, replace(turn, cached_tokens=0)], now=play.now)
    assert told.cached_tokens == 0, "an engine said so"
    alone = views.view(session, turns[:1], now=play.now)
    assert (alone.source, alone.confidence) == (session.source, session.confidence)


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
