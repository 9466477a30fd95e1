"""The books of sessions: what a turn's arrival and end mean for its session, tools and state."""

from gateway.domain import records as rec
from gateway.domain.decision import SessionSource
from gateway.domain.ids import TenantId
from gateway.domain.request import Claims, Work
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    call_seen,
    facts,
    finished,
    left,
    session_finished,
    started,
    state_minted,
    stated,
)


def run(play: Playbook, request: str, *calls: str, status: int = 200, **fields) -> None:
    """A turn arrives, is answered with these tool calls, and ends."""
    play >> arrived(request, **fields)
    play.take()
    play >> started(request)
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
    play >> arrived("r1")
    play.take()
    play >> started("r1") >> left("r1", answer("c1"))
    assert play.seen(rec.ToolStart)[0].names == ("bash",)


def test_a_turn_is_told_with_what_its_client_claims():
    play = Playbook(tenants_have_keys=True)  # of whom nobody is trusted
    claims = Claims(service_class="proactive", deadline_s=30.0)
    run(play, "r1", claims=claims)
    run(play, "r2")
    assert [turn.claims for turn in play.seen(rec.TurnArrived)] == [claims, None]


def test_state_leads_back_to_its_session():
    play = Playbook()
    play >> arrived("r1")
    play.take()
    play >> started("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    run(play, "r2", state_ids=("unknown", "resp_1"))
    assert [turn.session for turn in play.seen(rec.TurnArrived)] == [play.session.id] * 2
    assert play.seen(rec.TurnArrived)[1].source is SessionSource.STATE_ID


def test_unknown_state_is_named():
    play = Playbook(tenants_have_keys=True)
    play >> arrived("r1")
    play.take()
    play >> started("r1") >> state_minted("r1", "resp_1") >> finished("r1")
    unknown = play.brain.sessions.first_unknown_state
    assert unknown(TenantId("t"), facts(state_ids=("resp_1",))) is None
    assert unknown(TenantId("t"), facts(state_ids=("resp_1", "resp_2"))) == "resp_2"
    assert unknown(TenantId("other"), facts(state_ids=("resp_1",))) == "resp_1"


def test_a_session_expires_with_its_open_calls():
    play = Playbook(sessions={"idle_s": 60})
    run(play, "r1", "c1")
    play.later(60)
    assert play.seen(rec.SessionEnded)[0].reason == "idle"
    assert [num.active for num in play.seen(rec.ToolNum)] == [1, 0]


def test_what_is_no_turn_may_mint_state_but_has_no_calls():
    play = Playbook()
    play >> arrived("r1", work=Work.STATE)
    play.take()
    play >> started("r1") >> state_minted("r1", "conv_1") >> call_seen("r1", "c1") >> finished("r1", "c1")
    run(play, "r2", state_ids=("conv_1",), echoed_ids=("c1",))
    assert play.seen(rec.TurnArrived)[0].source is SessionSource.NEW
    assert not play.seen(rec.ToolStart)


def test_a_session_ends_with_the_last_of_its_parallel_turns():
    play = Playbook()
    same = stated("x")
    play >> arrived("r1", explicit=same)
    play.take()
    run(play, "r2", explicit=stated("x", final=True))
    assert not play.seen(rec.SessionEnded)
    run(play, "r3", explicit=same)
    play >> left("r1")
    (ended,) = play.seen(rec.SessionEnded)
    assert (ended.turns, ended.reason) == (3, "finished")


def test_a_final_turn_that_failed_will_be_sent_again():
    play = Playbook()
    run(play, "r1", status=500, explicit=stated("x", final=True))
    play >> arrived("r2", explicit=stated("x", final=True))
    play.take()
    play >> left("r2")
    assert not play.seen(rec.SessionEnded)


def test_sessions_are_ended_by_word_at_once_or_with_their_last_turn():
    play = Playbook()
    play >> session_finished("unknown")
    play >> arrived("r1")
    play.take()
    play >> session_finished(play.session.id)
    assert not play.seen(rec.SessionEnded)
    play >> left("r1")
    run(play, "r2", "c1")
    play >> session_finished(play.session.id)
    assert [ended.turns for ended in play.seen(rec.SessionEnded)] == [1, 1]
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
