"""The fleet, the stream, the table of a request's life; what admission and the brain tell of themselves."""

from collections import deque
from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core import forecasts
from gateway.core.fleet import Fleet, PoolFacts
from gateway.core.pool_views import view_members, view_pools, view_tenants
from gateway.core.snapshot import SessionViews, TurnView
from gateway.core.turns.lifecycle import FINAL_STATES, TRANSITIONS, LifecycleError, State, Step, advance
from gateway.domain import records as rec
from gateway.domain.decision import Edge, SessionSource
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import Abilities, ReplicaFacts, ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId
from gateway.domain.request import Usage, Work
from tests.core.playbook import (
    Playbook,
    arrived,
    call_seen,
    down,
    finished,
    first_token,
    left,
    started,
    stated,
)
from tests.core.snapshots import take_snapshot
from tests.examples import examples
from tests.project.layout import ROOT
from tests.reachable import reachable
from tests.workflow.world import World, call, user

ONE, TWO = PoolId("one"), PoolId("two")
A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


def replica(name: ReplicaId, pool: PoolId = ONE, *models: str) -> ReplicaFacts:
    return ReplicaFacts(id=name, pool=pool, models=models)


def two_pools(one: tuple[str, ...] = (), two: tuple[str, ...] = ()) -> Fleet:
    return Fleet([PoolFacts(ONE, one), PoolFacts(TWO, two)])


def test_a_fleet_needs_a_pool():
    with pytest.raises(ValueError, match="needs a pool"):
        Fleet([])


def test_news_is_what_was_not_known():
    fleet = two_pools()
    assert not fleet.went_down(A, "gone", now=0.0)
    assert fleet.came_up(replica(A), now=0.0)
    assert not fleet.came_up(replica(A, ONE, "m"), now=0.0)
    assert fleet.went_down(A, "gone", now=0.0) and not fleet.went_down(A, "gone", now=0.0)
    assert fleet.came_up(replica(A), now=0.0)
    assert [state.facts.id for state in fleet] == [A]


def test_facts_may_change_but_not_the_pool():
    fleet = two_pools()
    fleet.came_up(replica(A), now=0.0)
    fleet.came_up(ReplicaFacts(id=A, pool=ONE, abilities=Abilities(engine="vllm")), now=0.0)
    assert fleet.abilities(A).engine == "vllm"
    with pytest.raises(ValueError, match="cannot be in pool two"):
        fleet.came_up(replica(A, TWO), now=0.0)
    with pytest.raises(ValueError, match="cannot be in pool three"):
        fleet.came_up(replica(B, PoolId("three")), now=0.0)


def test_candidates_are_up_in_the_pool_and_not_left_out():
    fleet = two_pools()
    for facts in (replica(A), replica(B), replica(C, TWO)):
        fleet.came_up(facts, now=0.0)
    fleet.submitted(A)
    assert fleet.candidates(ONE, only=None, without=()) == [ReplicaLoad(A, 1), ReplicaLoad(B, 0)]
    assert fleet.candidates(ONE, only=B, without=()) == [ReplicaLoad(B, 0)]
    for late in [0.01] * 9 + [0.2] * 2:
        name = A if late > 0.1 else B
        first, second = fleet.candidates(ONE, only=None, without=())
        assert first.slower == second.slower == second.seems_slower == 1.0, "not as often as that"
        fleet.health.sent(RequestId("r"), name, 0.1, now=0.0)
        fleet.health.first_token(RequestId("r"), name, now=late)
        first, second = fleet.candidates(ONE, only=None, without=())
        assert (first.seems_slower > 5.0) is (name == A), "the last turn was late"
    first, second = fleet.candidates(ONE, only=None, without=())
    assert first.slower > 5.0 and second.slower == 1.0, "one of them is late"
    assert fleet.candidates(ONE, only=C, without=()) == []
    assert fleet.candidates(ONE, only=None, without=(A, B)) == []
    fleet.went_down(A, "gone", now=0.0)
    assert fleet.candidates(ONE, only=A, without=()) == []


def test_what_runs_is_counted_also_while_the_replica_is_down():
    fleet = two_pools()
    fleet.came_up(replica(A), now=0.0)
    fleet.submitted(A)
    fleet.submitted(A)
    fleet.went_down(A, "gone", now=0.0)
    fleet.ended(A)
    state = fleet.get(A)
    assert state is not None and state.running == 1


def test_one_pool_serves_whatever_is_asked():
    fleet = Fleet([PoolFacts(ONE, ("m1",))])
    assert fleet.pool_for("anything") == fleet.pool_for(None) == ONE


def test_several_pools_serve_what_is_configured_else_what_their_replicas_say():
    fleet = two_pools(one=("m1",))
    fleet.came_up(replica(A, ONE, "m3"), now=0.0)
    fleet.came_up(replica(B, TWO, "m1", "m2"), now=0.0)
    assert fleet.pool_for(None) == ONE
    assert fleet.pool_for("m1") == ONE
    assert fleet.pool_for("m2") == TWO
    assert fleet.pool_for("m3") is None, "the settings say that pool one serves m1 only"


def test_a_pool_that_has_not_spoken_yet_may_serve_any_model():
    fleet = two_pools(one=("m1",))
    assert fleet.pool_for("m2") == TWO
    fleet.came_up(replica(B, TWO), now=0.0)
    assert fleet.pool_for("m2") == TWO
    fleet.came_up(replica(B, TWO, "m3"), now=0.0)
    assert fleet.pool_for("m2") is None


def test_light_requests_are_no_load_and_still_keep_a_replica_that_leaves():
    fleet = Fleet([PoolFacts(ONE)])
    fleet.came_up(replica(A), now=0.0)
    fleet.submitted(A, is_light=True)
    assert [load.running for load in fleet.candidates(ONE, only=None, without=())] == [0]
    fleet.went_down(A, "gone", now=0.0)
    fleet.left(A)
    assert fleet.get(A) is not None
    fleet.ended(A, is_light=True)
    assert fleet.get(A) is None


def test_a_model_that_some_replicas_serve_goes_to_those():
    fleet = two_pools()
    for facts in (replica(A, ONE, "base", "lora"), replica(B, ONE, "base"), replica(C, TWO, "lora", "base")):
        fleet.came_up(facts, now=0.0)
    assert fleet.served_by_some(ONE, "lora") == "lora"
    assert fleet.served_by_some(ONE, "base") is None, "all do"
    assert fleet.served_by_some(ONE, "alias") is None, "nobody says so, and backends judge names themselves"
    assert fleet.served_by_some(None, "lora") is fleet.served_by_some(ONE, None) is None
    assert fleet.candidates(ONE, only=None, without=(), model="lora") == [ReplicaLoad(A, 0)]
    d = ReplicaId("d")
    fleet.came_up(replica(d), now=0.0)
    assert [load.replica for load in fleet.candidates(ONE, only=None, without=(), model="lora")] == [A, d]


def test_one_that_is_ejected_may_have_what_nobody_else_may():
    fleet = two_pools()
    for name in (A, B):
        fleet.came_up(replica(name), now=0.0)
    for _ in range(3):
        fleet.health.ended(RequestId("r"), A, failed=True, now=0.0)
    assert fleet.candidates(ONE, only=None, without=()) == [ReplicaLoad(B, 0)]
    assert fleet.candidates(ONE, only=None, without=(B,)) == [ReplicaLoad(A, 0)]


def test_a_replica_that_is_drained_before_it_comes_up_gets_no_turns():
    fleet = two_pools()
    for name in (A, B):
        fleet.drained(name, is_draining=True)
    fleet.drained(B, is_draining=False)
    for name in (A, B):
        fleet.came_up(replica(name), now=0.0)
    assert [load.replica for load in fleet.candidates(ONE, only=None, without=())] == [B]
    assert fleet.drained(A, is_draining=False)
    assert len(fleet.candidates(ONE, only=None, without=())) == 2


def test_only_work_for_the_engine_is_told_as_such():
    for work, is_told in ((Work.GENERATE, 1), (Work.POOL, 1), (Work.LIGHT, 0), (Work.STATE, 0)):
        play = Playbook()
        play.begins("r1", work=work) >> first_token("r1") >> finished("r1")
        assert len(play.seen(rec.Routed)) == 1
        assert [len(play.seen(kind)) for kind in (rec.GpuSubmit, rec.GpuFirstToken, rec.GpuEnd)] == [
            is_told
        ] * 3


def test_the_end_without_an_answer():
    play = Playbook()
    play.arrives("r1")
    play >> left("r1")
    (end,) = play.seen(rec.GpuEnd)
    assert (end.outcome, end.status, end.usage) == ("client_left", None, Usage())
    assert not play.brain.live


def test_who_leaves_while_it_waits_is_told():
    play = Playbook(max_running_per_replica=1)
    play.arrives("r1")
    play >> arrived("r2")
    play.now += 2.0
    play >> left("r2") >> left("r1")
    [gone] = play.seen(rec.TurnLeft)
    assert (gone.turn, gone.waited_ms) == ("r2", 2000.0)


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
    assert pool.gpu_pressure == 1.8 and pool.kv_budget == 1000.0


def test_an_ejected_replica_is_no_capacity_and_no_pressure():
    play = Playbook(replicas="a b")
    quiet = EngineSignals(kv_tokens=1000, kv_used=0.1, waiting=0, running=0)
    for name in "ab":
        play >> ev.EngineReported(ReplicaId(name), quiet)
    play.now += 40.0
    [pool] = play.brain.admission.pools.values()
    assert pool.limits.capacity() == 2000.0
    for number in range(60):
        decision: Any = play.arrives(f"r{number}")
        status = 500 if decision.placement.replica == "b" else 200
        play >> started(f"r{number}", status) >> finished(f"r{number}", status=status)
        play.decisions.clear()
        play.now += 0.2
        if play.brain.fleet.is_ejected(ReplicaId("b")):
            break
    play >> ev.EngineReported(
        ReplicaId("b"), EngineSignals(kv_tokens=1000, kv_used=1.0, waiting=50, running=5)
    )
    play.now += 2.0
    play >> ev.EngineReported(ReplicaId("a"), quiet)
    seen = pool.limits.seen
    assert pool.limits.capacity() == 1000.0 and seen is not None and seen.gpu.pressure == 0.0


def test_a_session_is_found_with_its_class_and_replica():
    play = Playbook()
    play.begins("r1", explicit=stated("a")) >> finished("r1")
    member = view_members(play.brain.admission).get(play.session.id)
    assert member is not None and member.service_class == "reactive"
    assert view_members(play.brain.admission).get(SessionId("s-none")) is None


def test_the_best_evidence_counts_and_what_nobody_reports_is_not_0():
    play = Playbook()
    play.begins("r1", explicit=stated("one")) >> finished("r1")
    views, session = SessionViews(play.brain), next(play.brain.sessions.sessions.newest_first())
    turn = TurnView(turn=RequestId("r1"), thread=None, edge=Edge.OPENS, parent=None, model="m", arrived_s=1.0)
    replace = msgspec.structs.replace
    echo, ids = SessionSource.ECHO, SessionSource.CALL_ID
    turns = [
        replace(turn, confidence=1.0),  # new
        replace(turn, source=echo, confidence=0.9, client="claude-cli"),
        replace(turn, source=ids, confidence=0.99),
        replace(turn, source=echo, confidence=0.99),
    ]
    seen = views.view(session, turns, now=play.now)
    assert seen.source in (echo, ids) and seen.confidence == 0.99 and seen.client == "claude-cli"
    assert (seen.prompt_tokens, seen.cached_tokens) == (0, None)
    alone = views.view(session, turns[:1], now=play.now)
    assert (alone.source, alone.confidence) == (session.source, session.confidence)


def test_a_session_sums_up_all_its_turns():
    play = Playbook()
    for number in range(30):
        usage = Usage(prompt_tokens=90, output_tokens=10, cached_tokens=0 if number else None)
        play.begins(f"r{number}", explicit=stated("one")) >> finished(f"r{number}", usage=usage)
    play.begins("r30", explicit=stated("one")) >> finished("r30", status=500)
    seen = SessionViews(play.brain).view(play.session, now=play.now)
    assert (seen.prompt_tokens, seen.output_tokens, seen.cached_tokens) == (2700, 300, 0)
    assert (seen.turns, seen.troubles) == (31, 1)


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


CHILDREN = examples(2000)
MOST = 300
"""Of anything that is kept of one session. (Tables of what was learned are keyed by numbers.)"""


def containers(root: object) -> list[tuple[int, str]]:
    """The sizes of everything that `root` leads to, with an entry of each."""
    large = (
        each for each in reachable(root) if isinstance(each, dict | set | list | deque) and len(each) > MOST
    )
    entries = ((len(each), next(iter(each))) for each in large)
    return [(size, repr(entry)[:60]) for size, entry in entries if not isinstance(entry, int)]


def by_header(world: World, at: int) -> dict[str, Any]:
    return {"x_turnpike_session": f"child-{at}", "x_turnpike_parent": "root"}


def by_thread(world: World, at: int) -> dict[str, Any]:
    return {"session_id": "root", "thread_id": f"thread-{at}"}


def by_guess(world: World, at: int) -> dict[str, Any]:
    return {"system": f"You are number {at}.", "tools": None}


@pytest.mark.parametrize("child", [by_header, by_thread, by_guess])
def test_what_is_kept_of_one_parents_children_is_bounded(child, monkeypatch):
    monkeypatch.setattr(forecasts, "REMEMBERED", MOST // 3)  # turns, whosever they are
    world = World(max_sessions=10)
    first = world.ask([user("Start them all")], x_turnpike_session="root", session_id="root")
    world.answer(first, "ok", call("call_aaaaaaaaaaaa", task="look into the weather of Paris now"))
    for at in range(CHILDREN):
        turn = world.ask([user("look into the weather of Paris now")], after=0.01, **child(world, at))
        world.answer(turn, f"done {at}", call(f"call_{at:012}"))
        world.play.records.clear()
    assert len(world.sessions) <= 11
    assert containers(world.play.brain) == []


def reached(start: State) -> set[State]:
    found, border = {start}, [start]
    while border:
        after = set(TRANSITIONS[border.pop()].values()) - found
        found |= after
        border += after
    return found


def test_every_state_can_be_reached_and_can_end():
    assert set(TRANSITIONS) == set(State) == reached(State.UNDECIDED)
    assert {state.value for state in FINAL_STATES} == {"finished", "cut", "left", "refused"}
    assert all(reached(state) & FINAL_STATES for state in State)


def test_a_step_that_the_table_lacks_raises():
    assert advance(State.UNDECIDED, Step.WAIT) is State.WAITING
    with pytest.raises(LifecycleError, match="a request that is cut cannot fail"):
        advance(State.CUT, Step.FAIL)


def test_the_diagram_in_the_documentation_is_this_table():
    lines = ["stateDiagram-v2", "    [*] --> undecided"]
    for state, steps in TRANSITIONS.items():
        lines += [f"    {state.value} --> {after.value}: {step.value}" for step, after in steps.items()]
        lines += [] if steps else [f"    {state.value} --> [*]"]
    page = (ROOT / "docs/contribute/lifecycle.md").read_text(encoding="utf-8")
    assert "\n".join(["```mermaid", *lines, "```"]) in page
