"""The books of sessions: turns that arrive and end; what others say of sessions."""

from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Cancel, Dispatch, Publish, Refuse
from gateway.core.sessions.publishing import Publishing
from gateway.domain import records as rec
from gateway.domain.decision import RefusalReason, SessionRef, SessionSource
from gateway.domain.ids import PoolId, RequestId, SessionId
from gateway.domain.request import Claims, NewItems, Transcript, Work
from gateway.domain.turn_trace import TurnTrace
from gateway.workflow import engine_hints as hints
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    at_once,
    call_closed,
    call_seen,
    dispatch,
    finished,
    left,
    nothing,
    refuse,
    session_finished,
    started,
    state_minted,
    stated,
    up,
)
from tests.core.test_session_limits import USAGE, turn
from turnpike_vllm.hints import Hint, ServiceClass, parse


def run(play: Playbook, request: str, *calls: str, status: int = 200, **fields) -> None:
    """A turn arrives, is answered with these tool calls, and ends."""
    play.begins(request, **fields)
    for call in calls:
        play >> call_seen(request, call)
    play >> finished(request, *calls, status=status)


def test_tool_phases_open_and_close():
    play = Playbook()
    run(play, "r1", "c1", "c2")
    play.now += 2
    run(play, "r2", echoed_ids=("c2", "c1"), tool_result_ids=("c1", "c2"))
    (start,), (end,) = play.seen(rec.ToolStart), play.seen(rec.ToolEnd)
    assert (start.names, end.names, end.duration_ms) == (("bash", "bash"), ("bash", "bash"), 2000)
    assert (start.turn, end.turn) == ("r1", "r2")
    assert [num.active for num in play.seen(rec.ToolNum)] == [1, 0]
    assert [turn.source for turn in play.seen(rec.TurnArrived)] == [SessionSource.NEW, SessionSource.CALL_ID]
    assert len(play.seen(rec.SessionStarted)) == 1


def test_results_that_nobody_asked_for_close_nothing():
    play = Playbook()
    run(play, "r1", tool_result_ids=("c9",))
    assert not play.seen(rec.ToolEnd)


def test_a_call_that_was_passed_on_counts_though_the_client_left():
    play = Playbook()
    play.begins("r1") >> left("r1", answer("c1"))
    assert play.seen(rec.ToolStart)[0].names == ("bash",)


def test_a_ready_call_is_timed_from_its_answers_end_and_its_wait_is_told():
    play = Playbook()
    play.begins("r1") >> call_seen("r1", "c1") >> call_closed("r1", "c1")
    assert not play.seen(rec.ToolStart) and not play.seen(rec.ToolNum)
    play.now += 1.5
    play >> call_seen("r1", "c2") >> call_closed("r1", "c2")
    play.now += 0.5
    play >> finished("r1", "c1", "c2")
    play.now += 2
    run(play, "r2", echoed_ids=("c2", "c1"), tool_result_ids=("c1", "c2"))
    (start,), (end,) = play.seen(rec.ToolStart), play.seen(rec.ToolEnd)
    assert (start.names, start.ready_ms, end.duration_ms) == (("bash", "bash"), (2000, 500), 2000)


def test_how_long_a_call_was_ready_is_unknown_where_the_client_left():
    play = Playbook()
    play.begins("r1") >> call_closed("r1", "c1")
    play.now += 1
    play >> left("r1", answer("c1"))
    (start,) = play.seen(rec.ToolStart)
    assert (start.names, start.ready_ms) == (("bash",), ())


def test_a_turn_is_told_with_what_its_client_claims():
    play = Playbook(tenants_have_keys=True)  # of whom nobody is trusted
    claims = Claims(service_class="proactive", retain_s=30.0)
    run(play, "r1", claims=claims)
    run(play, "r2")
    assert [turn.claims for turn in play.seen(rec.TurnArrived)] == [claims, None]


def test_state_leads_back_to_its_session():
    play = Playbook()
    play.begins("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    run(play, "r2", state_ids=("unknown", "resp_1"))
    assert [turn.session for turn in play.seen(rec.TurnArrived)] == [play.session.id] * 2
    assert play.seen(rec.TurnArrived)[1].source is SessionSource.STATE_ID


def test_a_session_expires_with_its_open_calls():
    play = Playbook(sessions={"idle_s": 60})
    run(play, "r1", "c1")
    play.later(60)
    assert play.seen(rec.SessionEnded)[0].reason == "idle"
    assert [num.active for num in play.seen(rec.ToolNum)] == [1, 0]
    assert play.brain.next_deadline_s() is None


def test_what_is_no_turn_may_mint_state_but_has_no_calls():
    play = Playbook()
    play.begins("r1", work=Work.STATE) >> state_minted("r1", "conv_1")
    play >> call_seen("r1", "c1") >> finished("r1", "c1")
    run(play, "r2", state_ids=("conv_1",), echoed_ids=("c1",))
    assert play.seen(rec.TurnArrived)[0].source is SessionSource.NEW
    assert not play.seen(rec.ToolStart)


def test_a_session_ends_with_the_last_of_its_parallel_turns():
    play = Playbook()
    same = stated("x")
    play.arrives("r1", explicit=same)
    run(play, "r2", explicit=stated("x", final=True))
    assert not play.seen(rec.SessionEnded)
    run(play, "r3", explicit=same)
    play >> left("r1")
    (ended,) = play.seen(rec.SessionEnded)
    assert (ended.turns, ended.reason) == (3, "finished")


def test_a_final_turn_that_failed_will_be_sent_again():
    play = Playbook()
    run(play, "r1", status=500, explicit=stated("x", final=True))
    play.arrives("r2", explicit=stated("x", final=True))
    play >> left("r2")
    assert not play.seen(rec.SessionEnded)


def test_sessions_are_ended_by_word_at_once_or_with_their_last_turn():
    play = Playbook()
    play >> session_finished("unknown")
    play.arrives("r1")
    play >> session_finished(play.session.id)
    assert not play.seen(rec.SessionEnded)
    play >> left("r1")
    run(play, "r2", "c1")
    play >> session_finished(play.session.id)
    assert [(ended.turns, ended.reason) for ended in play.seen(rec.SessionEnded)] == [(1, "finished")] * 2
    assert [num.active for num in play.seen(rec.ToolNum)] == [1, 0]


def test_sessions_are_bounded_and_forgetting_is_graceful():
    play = Playbook(sessions={"max_sessions": 2})
    for number in range(5):
        run(play, f"r{number}", f"c{number}")
    assert len(play.brain.sessions.sessions) == 2
    assert [ended.reason for ended in play.seen(rec.SessionEnded)] == ["evicted"] * 3
    assert play.brain.sessions.tools.active_sessions == 2
    run(play, "again", echoed_ids=("c0",), tool_result_ids=("c0",))
    assert play.seen(rec.TurnArrived)[-1].source is SessionSource.NEW
    assert not play.seen(rec.ToolEnd)


def test_a_step_is_told_with_what_is_expected():
    play = Playbook(workflow={"progress": {"types": {"min_tasks": 0}}})
    play >> up("a", follows_hints=True)
    for number in range(6):
        run(play, f"a{number}", f"c{number}", body_bytes=4000)
        play.now += 2
        run(play, f"b{number}", echoed_ids=(f"c{number}",), tool_result_ids=(f"c{number}",))
        play.now += 100
    told = [record for record in play.seen(rec.StepPredicted) if record.tools == ("bash",)]
    assert told[-1].next == () and told[-1].ends < 0.3 and 1.0 < told[-1].retain_s < 30.0
    assert told[-1].turn == "a5" and told[-1].reuse > 0.5
    [*_, last] = play.seen(rec.StepPredicted)
    assert last.next is None and last.ends > 0.5 and last.retain_s == 0.0
    play >> up("a")
    run(play, "stock", "c9", body_bytes=4000)
    [*_, last] = play.seen(rec.StepPredicted)
    assert (last.turn, last.next, last.reuse, last.retain_s) == ("stock", (), None, None), "nobody is sent it"


def test_tool_ends_carry_what_came_back():
    play = Playbook()
    run(play, "r1", "c1")
    new = NewItems(1234, (), True)
    run(play, "r2", echoed_ids=("c1",), tool_result_ids=("c1",), transcript=Transcript(new=new))
    (end,) = play.seen(rec.ToolEnd)
    assert end.observation_bytes == 1234 and end.has_failed


def test_an_engine_with_the_plugin_is_told_with_the_request_at_the_pause_and_at_the_end():
    play = Playbook()
    play >> up("a", follows_hints=True)
    with_request: Any = play.arrives("r1")
    play >> started("r1") >> finished("r1", "c1")
    [at_pause] = play.hints
    play >> session_finished(play.session.id)
    [_, at_end] = play.hints
    hints: list[Any] = [parse(each.hint) for each in (with_request, at_pause, at_end)]
    assert all(isinstance(each, Hint) and each.session == hints[0].session for each in hints)
    assert [each.is_finished for each in hints] == [False, False, True]
    assert [each.seq for each in hints] == sorted({each.seq for each in hints})
    assert at_pause.replica == "a" and hints[1].retain_s == 6.0


@pytest.mark.parametrize("is_on", [True, False])
def test_a_stock_engine_gets_the_hint_of_a_request_alone_and_where_that_is_on(is_on):
    play = Playbook(hints={"kv_hints": is_on})
    play >> up("a", knows_envelopes=True)
    with_request: Any = play.arrives("r1")
    play >> started("r1") >> finished("r1", "c1") >> session_finished(play.session.id)
    assert (with_request.hint is not None, play.hints) == (is_on, [])


def test_an_engine_is_told_whether_somebody_waits_for_the_session():
    play = Playbook(admission={"policy": "sessions"})
    play >> up("a", follows_hints=True)
    said = []
    for name, is_background in (("one", False), ("two", True)):
        told: Any = play.arrives(name, explicit=stated(name), is_background=is_background)
        hint: Any = parse(told.hint)
        said.append(hint.service)
    assert said == [ServiceClass.REACTIVE, ServiceClass.PROACTIVE]
    assert [each.engine_class for each in play.seen(rec.GpuSubmit)] == ["reactive", "proactive"]


def test_a_gateway_that_cannot_write_hints_claims_to_have_told_nothing(monkeypatch):
    monkeypatch.setattr(hints, "HAS_CONTRACT", False)
    play = Playbook(admission={"policy": "sessions"})
    play >> up("a", follows_hints=True)
    told: Any = play.arrives("r1", explicit=stated("one"))
    assert told.hint is None and play.seen(rec.GpuSubmit)[0].engine_class is None


@pytest.mark.parametrize("trust", [(), ("scheduling",)])
def test_how_long_to_hold_is_believed_of_whom_the_operator_trusts(trust):
    tenant = {"name": "t", "key_hashes": ["sha256:" + "0" * 64], "permissions": list(trust)}
    play = Playbook(tenants=[tenant])
    play >> up("a", follows_hints=True)
    with_request: Any = play.arrives("r1", tenant="t", claims=Claims(retain_s=120.0))
    play >> started("r1") >> finished("r1", "c1")
    [at_pause] = play.hints
    held_s = [parse(each.hint).retain_s for each in (with_request, at_pause)]  # type: ignore[union-attr]
    assert held_s == ([120.0, 120.0] if trust else [6.0, 6.0])


def test_an_engine_without_it_is_told_nothing():
    play = Playbook()
    told: Any = play.arrives("r1")
    assert told.hint is None and play.seen(rec.GpuSubmit)[0].engine_class is None
    play >> started("r1") >> finished("r1", "c1")
    assert not play.hints


def test_admission_knows_how_many_run_tools_when_they_begin_and_when_their_session_ends():
    play = Playbook()
    admission: Any = play.brain.admission
    cpu = admission._cpu
    run(play, "r1", "call-1")
    assert cpu.active == 1
    play >> session_finished(play.session.id)
    assert cpu.active == 0


def stop(play: Playbook, *, for_s: float = 3600.0, cancels: bool = True) -> list[Cancel]:
    commands = play.brain.handle(
        ev.SessionStopped(play.session.id, for_s, cancels, by="0123abcd"), now=play.now
    )
    play.records += [each for each in commands if isinstance(each, rec.SessionStopped)]
    play.decisions += [each for each in commands if isinstance(each, Refuse)]
    return [each for each in commands if isinstance(each, Cancel)]


def test_a_stopped_session_runs_nothing_until_its_time_is_over():
    play = Playbook()
    turn(play, "r1")
    assert stop(play, for_s=60.0) == []
    play >> arrived("r2", explicit=stated("x")) << refuse("r2", RefusalReason.SESSION_STOPPED)
    turn(play, "r3", "y")
    play.later(59.0)
    play >> arrived("r4", explicit=stated("x")) << refuse("r4", RefusalReason.SESSION_STOPPED)
    play.later(1.0)
    turn(play, "r5", "x")
    (record,) = play.seen(rec.SessionStopped)
    assert (record.tenant, record.for_s, record.cancelled, record.by) == ("t", 60.0, 0, "0123abcd")


def test_what_runs_is_cancelled_or_may_end():
    for cancels in (True, False):
        play = Playbook()
        play >> arrived("r1", explicit=stated("x")) << dispatch("r1", to="a")
        play >> started("r1")
        cancelled = stop(play, cancels=cancels)
        assert [each.request for each in cancelled] == ["r1"] * cancels
        places = play.brain.admission.pools[PoolId("pool")].places
        assert len(places.members) == 1, "its turn has not ended"
        play >> (left("r1", answer(has_terminal=False)) if cancels else finished("r1", usage=USAGE))
        assert places.members == {} and not places.count, "others may have its place"


def test_what_waits_is_refused_at_once():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1", explicit=stated("y")) << dispatch("r1", to="a")
    play >> arrived("r2", explicit=stated("x")) << nothing
    assert stop(play, cancels=False) == []
    play << refuse("r2", RefusalReason.SESSION_STOPPED)
    play >> at_once("r1", usage=USAGE)
    assert play.seen(rec.SessionStopped)[0].cancelled == 1


def test_what_runs_on_its_behalf_stops_too():
    play = Playbook()
    turn(play, "r1")
    sub = stated("sub", parent="x")
    play >> arrived("r3", explicit=sub) << dispatch("r3", to="a")
    assert play.brain.live[RequestId("r3")].session_id == play.session.id
    assert [each.request for each in stop(play)] == ["r3"]
    play >> left("r3")
    play >> arrived("r4", explicit=sub) << refuse("r4", RefusalReason.SESSION_STOPPED)


def test_to_stop_nobody_is_no_error():
    play = Playbook()
    assert play.brain.handle(ev.SessionStopped(SessionId("s-nobody"), 60.0), now=play.now) == []
    assert not play.brain.session_limits.is_on


def test_one_that_rests_gives_its_place_to_others():
    play = Playbook(admission={"policy": "session-cap", "session_cap": 1})
    turn(play, "r1", "x")
    stopped = play.session.id
    play >> arrived("r2", explicit=stated("y")) << nothing
    commands = play.brain.handle(ev.SessionStopped(stopped, 60.0), now=play.now)
    assert [each.request for each in commands if isinstance(each, Dispatch)] == ["r2"]


@pytest.mark.parametrize(
    ("known", "changes", "lives_at"),
    [("a b", {}, "b"), ("a b", {"is_side": True}, None), ("a", {}, None), ("a b", {"replica": None}, None)],
)
def test_a_session_of_another_gateway_lives_where_it_ran_there(known: str, changes: dict[str, Any], lives_at):
    other = Playbook(replicas="b")
    other.brain.sessions.publishing = Publishing(other.brain.sessions.sessions)
    other >> arrived("r1", explicit=stated("x")) << dispatch("r1", to="b")
    commands = other.brain.handle(at_once("r1", usage=USAGE), now=other.now)
    [trace] = [each.trace for each in commands if isinstance(each, Publish) and each.trace is not None]
    sent = msgspec.structs.replace(trace, **changes)
    here = Playbook(replicas=known, have_homes=True)
    here >> ev.SessionAdopted(msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=TurnTrace))
    ledger = here.brain.placement.ledger
    at = SessionRef(session=trace.session, source=SessionSource.NEW, confidence=1.0, thread=trace.thread)
    assert ledger.home(at) == lives_at
    assert not ledger.sessions_at, "its own gateway counts it"
