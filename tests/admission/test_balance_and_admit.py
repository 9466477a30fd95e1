"""Who enters next: whoever fits, and somebody who does not where nobody else would move."""

from gateway.admission.quotas import Quota
from gateway.admission.session_admission import SessionAdmission
from gateway.domain.by_agent import AgentKey
from gateway.domain.decision import Wait, WaitReason
from gateway.domain.host import HostSignals
from gateway.domain.ids import SessionId
from tests.admission.applicants import FULL, Play, T, U, answered, capped, config, in_by_tenant


def test_if_nobody_who_is_in_has_a_turn_the_next_one_enters_within_100_ms():
    play = capped(1)
    play.is_let_in("parent")
    play.is_let_in("unlabelled sub-agent")
    play.end("parent", calls=True)
    assert play.later(0.05) == []
    assert play.later(0.051) == ["unlabelled sub-agent"]
    play.is_let_in("another")
    assert play.later(1.0) == []  # the pool is at work
    play.end("unlabelled sub-agent", calls=False)
    assert play.later(0.1) == ["another"]


def test_liveness_knows_no_quota():
    play = Play(SessionAdmission(config(), {T: Quota(max_sessions=1)}))
    play.is_let_in("parent")
    assert play.ask("sub-agent") == Wait(reason=WaitReason.TENANT_SESSIONS)
    assert play.later(5.0) == []
    play.end("parent")
    assert play.later(0.1) == ["sub-agent"]


def test_whom_liveness_lets_in_beyond_its_quota_stays_for_a_turn():
    play = Play(SessionAdmission(config(), {T: Quota(max_sessions=2)})).has(kv_tokens=650_000)
    most = 0
    for number in range(12):
        play.is_let_in(f"s{number}")
    for _ in range(20):
        for session in {str(each.session) for each in play.running.values()}:
            play.end(session)
        play.later(0.2)
        most = max(most, in_by_tenant(play)["t"])
    assert most == 3, "one more, so that nobody waits for whom it holds up"
    for session in {str(each.session) for each in play.running.values()}:
        play.end(session)
    assert in_by_tenant(play) == {"t": 2} and play.pool.places.above == 0


def test_liveness_lets_in_who_is_within_its_quota_first():
    play = Play(SessionAdmission(config(policy="session-cap", session_cap=1), {T: Quota(max_sessions=1)}))
    play.is_let_in("t1")
    play.is_let_in("t2")
    play.now += 1.0
    play.pool.fair.hold(U, 3.0)  # it holds more, but not more than it may
    play.is_let_in("u1", tenant="u")
    play.end("t1")
    assert play.later(0.1) == ["u1"]


def test_the_aged_may_exceed_the_window_one_at_a_time():
    play = capped(1, classes={"age_s": 5.0})
    play.is_let_in("s1")
    play.is_let_in("b1", background=True)
    play.is_let_in("b2", background=True)
    assert play.later(4.8) == []
    assert play.later(0.4) == ["b1"]
    assert play.later(10.0) == []
    assert play.end("b1") == ["b2"]  # a guest's place ends with its turn
    assert play.ask("b1", background=True) == FULL


def test_a_session_larger_than_everything_enters_an_empty_pool():
    play = Play().has(kv_tokens=1000)
    assert play.is_let_in("s1", body_bytes=1_000_000)
    assert play.ask("s2", body_bytes=1_000) == Wait(reason=WaitReason.KV_FULL)
    play.end("s1")
    assert play.later(0.1) == ["s2"]


def tools_of_agent_1_slow_down(play: Play) -> None:
    """Those of agent 2 do not; the host has more to run than it has cores."""
    for slower in (1.0, 9.0):
        for _ in range(20):
            play.policy._cpu.saw_tool(("make",), slower, AgentKey(T, 1))
            play.policy._cpu.saw_tool(("fetch",), 1.0, AgentKey(T, 2))
        play.policy._cpu.active = 9
        play.policy.host_reported("h", HostSignals(cores=1, runnable=9), now=play.now)
        play.policy._cpu.read(now=play.now)
    play.pool.window.with_tools = 1.0


def test_who_brings_little_for_tools_passes_those_who_wait_for_them():
    play = Play()
    play.turn("s0", calls=True)
    play.pool.release(play.pool.places.members[SessionId("s0")], now=play.now)
    play.is_let_in("s1", agent=1)
    tools_of_agent_1_slow_down(play)
    assert play.ask("s2", agent=1) == Wait(reason=WaitReason.TOOLS_FULL)
    assert not play.is_let_in("s3", agent=1)
    play.ask("s4", agent=2)
    assert play.let_in() == ["s4"]
    assert play.over("s1") == []  # of those who gave their places back, one still has tools run
    play.policy.tools_ran(SessionId("s0"), ("make",), 1.0)
    play.ask("s5", agent=1)
    assert "s2" in play.let_in()


def test_who_brings_little_for_tools_passes_one_that_starves_and_has_to_wait_for_them():
    play = Play(packing={"starved_s": 5.0})
    play.is_let_in("s1", agent=1)
    tools_of_agent_1_slow_down(play)
    assert play.ask("heavy", agent=1) == Wait(reason=WaitReason.TOOLS_FULL)
    play.now += 20.0
    play.policy.host_reported("h", HostSignals(cores=1, runnable=9), now=play.now)
    play.pool.window.with_tools = 1.0
    play.ask("light", agent=2)
    assert play.let_in() == ["light"] and list(play.waiting) == ["r2"]


def test_engines_may_rest_while_hosts_say_that_tools_are_the_bottleneck():
    play = Play(window={"min_feedback_s": 5.0})
    play.is_let_in("s1", agent=1)
    play.policy._cpu.active = 9
    play.pool.window.with_tools = 1.0
    play.pool.window.set_feedback(5.0)
    play.policy.host_reported("h", HostSignals(cores=1, runnable=9), now=play.now)
    assert play.ask("s2", agent=1) == Wait(reason=WaitReason.TOOLS_FULL)
    play.end("s1", outcome=answered(tokens=100))
    entered = play.later(1.0)
    assert not entered and play.pool.next_deadline_s()
    assert play.later(play.pool.window.feedback_s) == ["s2"]
