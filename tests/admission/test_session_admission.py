"""Session admission: who gets a place, who keeps it, who is next."""

from typing import Any

import msgspec
import pytest

from gateway.admission.classes import ServiceClass
from gateway.admission.cpu_pressure import CpuReading
from gateway.admission.limits import Excess
from gateway.admission.session_admission import NO_REPLICA, SessionAdmission
from gateway.admission.sessions import Member
from gateway.admission.tenants.quotas import Quota
from gateway.admission.turn_request import TurnOutcome
from gateway.cost.estimator import IsolatedCost
from gateway.domain.admission_records import SessionAdmitted, SessionHeld, WindowUpdated
from gateway.domain.agent_key import AgentKey
from gateway.domain.decision import Admit, Edge, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Claims
from gateway.workflow.aeg.graph import Step
from tests.admission.applicants import FULL, POOL, Play, T, U, answered, capped, config, in_by_tenant, room
from tests.workflow.aeg.test_lifetimes import ends

OF_T = AgentKey(T)


# --- without contention ----------------------------------------------------------------------------


def is_in_tools(member: Member) -> bool:
    assert member.silence is not None
    return member.silence.has_tools


def test_nothing_waits_where_nothing_is_known_to_be_full():
    play = Play()
    assert all(play.is_admitted(f"s{number}") for number in range(500))
    assert play.policy.next_deadline_s() is None and play.drain_queue() == []


def test_requests_of_no_session_take_no_place():
    play = capped(1)
    assert play.is_admitted("s1")
    assert play.ask(None) == Admit()
    assert play.pool.places.count == 1
    play.policy.turn_over(RequestId("r2"), None, now=play.now)  # unknown to it, and no error


def test_replicas_bound_turns_as_before():
    play = Play(max_running_per_replica=1)
    assert play.ask("s1", room=room(running=())).reason is RefusalReason.NO_REPLICA
    assert play.ask("s1") == Admit()
    assert play.ask("s1", room=room(running=(1,))) == Wait(reason=WaitReason.CONCURRENCY_FULL)
    assert play.ask("s1", room=room(must_queue=True)) == Wait(reason=WaitReason.CONCURRENCY_FULL)
    refused = play.ask("s1", room=room(running=(1,), full=RefusalReason.QUEUE_FULL))
    assert isinstance(refused, Refusal) and refused.reason is RefusalReason.QUEUE_FULL
    assert play.pool.places.members[SessionId("s1")].live == 3


# --- the unit is the session -----------------------------------------------------------------------


def test_a_session_keeps_its_place_between_its_turns():
    play = capped(1)
    assert play.is_admitted("s1")
    assert play.ask("s2") == FULL
    assert play.end("s1") == []
    assert play.is_admitted("s1")  # past the one that waits
    assert play.is_admitted("s1", thread="sub-agent")
    assert play.end("s1") == [] and play.finish("s1") == ["s2"]


def test_an_idle_session_gives_its_place_back_and_comes_back_before_others():
    play = capped(1)
    play.is_admitted("s1")
    play.end("s1", calls=False)
    play.is_admitted("s2", task_arrived_s=0.0)
    assert play.later(20.0) == ["s2"]  # long before, by liveness
    play.is_admitted("s3", task_arrived_s=0.0)
    assert play.ask("s1") == Wait(reason=WaitReason.BEHIND_OTHERS)
    assert play.over("s2") == ["s1"]


def test_all_turns_of_a_session_enter_with_it():
    play = capped(1)
    play.is_admitted("s1")
    for _ in range(3):
        play.ask("s2")
    assert play.over("s1") == ["s2", "s2", "s2"]
    assert play.pool.places.members[SessionId("s2")].live == 3


def test_sessions_are_told_apart_by_pool():
    play = capped(1)
    assert play.is_admitted("s1") and play.is_admitted("s1", pool="other")
    assert play.is_admitted("s2", pool="third") and not play.is_admitted("s2")
    assert play.over("s1") == ["s2"]


# --- classes ---------------------------------------------------------------------------------------


def test_a_class_is_stated_by_who_may_or_comes_with_the_key():
    tenants = {T: Quota(service_class="background"), U: Quota(service_class="background")}
    capped_at_one = config(policy="session-cap", session_cap=1)
    play = Play(SessionAdmission(capped_at_one, tenants, trusted={U}))
    play.is_admitted("s1")
    urgent = Claims(service_class="reactive")
    play.is_admitted("t1", claims=urgent, tenant="t")
    play.is_admitted("u1", claims=urgent, tenant="u")
    play.is_admitted("t2", claims=urgent, tenant="t")
    assert play.over("s1") == ["u1"]


@pytest.mark.parametrize("claims", [Claims(service_class="proactive"), Claims(service_tier="flex")])
def test_who_is_not_trusted_cannot_even_ask_for_less(claims):
    play = Play(SessionAdmission(config(policy="session-cap", session_cap=1), {T: Quota(), U: Quota()}))
    play.is_admitted("t1", claims=claims, tenant="t")
    assert play.pool.places.members[SessionId("t1")].service_class is ServiceClass.REACTIVE


def test_where_there_are_no_tenants_everybody_is_believed():
    play = capped(1)
    play.is_admitted("s1")
    play.is_admitted("b1", claims=Claims(service_tier="flex"))
    play.is_admitted("p1")
    assert play.over("s1") == ["p1"]


def test_who_ever_spoke_for_a_person_stays_reactive():
    tenants = {T: Quota(), U: Quota()}
    play = Play(SessionAdmission(config(policy="session-cap", session_cap=9), tenants, trusted={U}))
    for session, tenant in (("t1", "t"), ("u1", "u")):
        play.is_admitted(session, tenant=tenant, background=True)
        for service_class in ("reactive", "proactive"):
            play.is_admitted(session, tenant=tenant, claims=Claims(service_class=service_class))
    of = play.pool.places.members
    assert of[SessionId("u1")].service_class is ServiceClass.REACTIVE
    assert of[SessionId("t1")].service_class is ServiceClass.PROACTIVE


def test_a_guest_stays_where_there_is_room_by_then():
    play = capped(1)
    play.is_admitted("parent")
    play.is_admitted("sub-agent")
    play.end("parent", calls=True)
    assert play.later(0.1) == ["sub-agent"]
    assert play.pool.places.above == 1
    play.finish("parent")
    play.end("sub-agent")
    assert play.pool.places.above == 0 and play.is_admitted("sub-agent")


# --- KV --------------------------------------------------------------------------------------------


def test_sessions_enter_while_their_footprints_fit():
    play = Play().has(kv_tokens=100_000)
    entered = 0
    while play.is_admitted(f"s{entered}", body_bytes=80_000):  # 20k tokens
        entered += 1
        play.now += 100
        for each in range(entered):
            play.turn(f"s{each}", tokens=20_000)
    assert 4 <= entered <= 5
    assert play.ask("s-new", body_bytes=80_000).reason is WaitReason.BEHIND_OTHERS


def test_a_sub_agent_that_is_done_holds_nothing():
    play = Play()
    play.is_admitted("s1")
    play.end("s1", tokens=50_000)
    play.is_admitted("s1", thread="sub")
    play.end("s1", tokens=9_000, calls=False)
    assert play.pool.places.members[SessionId("s1")].tokens == 50_000
    play.is_admitted("s1", thread="sub")
    play.end("s1", tokens=9_000, calls=True)
    assert play.pool.places.members[SessionId("s1")].tokens == 59_000


def test_without_usage_the_bytes_count():
    play = Play()
    play.is_admitted("s1", body_bytes=4000)
    play.end("s1", tokens=None)
    assert play.pool.places.members[SessionId("s1")].tokens == pytest.approx(1000)


# --- promises to others ----------------------------------------------------------------------------


def alone(seconds: float) -> IsolatedCost:
    return IsolatedCost(
        seconds=seconds, fresh_s=0.9 * seconds, full_prefill_s=seconds, decode_s=0.0, row_s=0.0
    )


def flood(play: Play, seconds: int, *, taken_s: float, alone_s: float) -> None:
    """Ten sessions of one tenant, two of others; turns of all of them take that long."""
    until = play.now + seconds
    owners = {f"flood-{number}": "flood" for number in range(10)} | {"u1": "u", "v1": "v"}
    while play.now < until:
        waiting = {each.session for each in play.waiting.values()}
        running = [
            name
            for name, tenant in owners.items()
            if name not in waiting and play.is_admitted(name, tenant=tenant)
        ]
        play.now += taken_s
        for name in running:
            turn = msgspec.structs.replace(answered(tokens=5_000), alone=alone(alone_s))
            play.end(name, turn)
        play.drain_queue()


def test_a_flood_gives_way_to_tenants_whose_turns_are_late():
    play = Play().has(kv_tokens=70_000)
    flood(play, 100, taken_s=2.0, alone_s=1.9)
    assert in_by_tenant(play) == {"flood": 10, "u": 1, "v": 1}
    play.told()
    flood(play, 60, taken_s=2.0, alone_s=1.0)
    held = in_by_tenant(play)
    assert held["flood"] < 10 and held["u"] == held["v"] == 1
    update = next(record for record in play.told() if record.reason == "others_late")
    assert isinstance(update, WindowUpdated) and update.level == pytest.approx(4.2, abs=0.1)
    assert play.ask("flood-more", tenant="flood") == Wait(reason=WaitReason.BEHIND_OTHERS)
    assert play.ask("w1", tenant="w") == Admit() or play.later(1.0) == ["w1"], "others enter soon"


def test_weights_may_change_while_tenants_are_there():
    play = Play(SessionAdmission(config(), {T: Quota(weight=4.0)}))
    play.is_admitted("s1")
    play.is_admitted("u1", tenant="u")
    for weight in (0.5, 2.0):
        play.policy.set_tenants({T: Quota(weight=weight)}, ())
        assert play.pool.fair.share == pytest.approx(0.5 * 2 / (weight + 1))
    play.over("s1")
    play.finish("s1")
    assert play.pool.fair.share == pytest.approx(0.5)


def test_who_has_to_go_already_is_not_counted_again():
    play = Play()
    for name, tenant in [(f"flood-{number}", "flood") for number in range(10)] + [("u1", "u"), ("v1", "v")]:
        assert play.is_admitted(name, tenant=tenant)
    play.pool.promises.level = 4.0  # half of what is held, as nothing was held lately
    for _ in range(2):
        play.pool.evictor.for_the_late(now=play.now)
        leaving = [each for each in play.pool.places.members.values() if each.eviction_reason]
        assert len(leaving) == 2 and {each.tenant for each in leaving} == {"flood"}


@pytest.mark.parametrize(("sessions", "must_go"), [(3, {"flood"}), (5, {"flood", "busy"})])
def test_who_asks_for_less_than_half_of_what_a_flood_does_need_not_give_way(sessions, must_go):
    play = Play()
    for tenant, count in [("flood", 10), ("busy", sessions), *((each, 1) for each in "uvwxyz")]:
        for number in range(count):
            assert play.is_admitted(f"{tenant}-{number}", tenant=tenant)
    play.pool.update_window(now=play.now + 2.0)
    play.pool.promises.level = 0.5
    play.pool.evictor.for_the_late(now=play.now)
    assert {each.tenant for each in play.pool.places.members.values() if each.eviction_reason} == must_go
    assert (play.ask("busy-more", tenant="busy") == Admit()) is ("busy" not in must_go)


def test_no_flood_gives_way_where_there_is_much_room():
    play = Play().has(kv_tokens=200_000)
    flood(play, 160, taken_s=2.0, alone_s=1.0)
    assert in_by_tenant(play)["flood"] == 10


def test_a_tenant_alone_may_hold_what_there_is():
    play = Play().has(kv_tokens=76_000)
    flood(play, 160, taken_s=2.0, alone_s=1.0)
    assert in_by_tenant(play)["flood"] < 10
    for name in ("u1", "v1"):
        play.over(name)
    play.later(1.0)
    assert all(play.is_admitted(f"flood-{number}", tenant="flood") for number in range(10))
    assert in_by_tenant(play) == {"flood": 10} and not play.waiting


# --- pressure --------------------------------------------------------------------------------------


def thrash(play: Play, sessions: int, seconds: int) -> None:
    """The sessions make turn after turn, and find nothing of what they left behind."""
    until = play.now + seconds
    while play.now < until:
        for number in range(sessions):
            if play.is_admitted(f"s{number}", task_arrived_s=float(number)):
                play.now += 1.0
                play.end(f"s{number}", tokens=50_000, cached=0)
                play.now += 0.2


def test_lost_state_shrinks_the_window_and_the_newest_sessions_wait_at_their_next_turn():
    play = Play(gaps={"unknown_tool_s": 300.0})
    thrash(play, 10, 15)
    assert play.pool.places.count == 10
    thrash(play, 10, 60)
    updates = [record for record in play.told() if isinstance(record, WindowUpdated)]
    assert updates[0].reason == "state_lost" and updates[0].gpu_pressure > 1.0
    assert (updates[0].sessions or 99) < 10 and (updates[0].kv_budget or 1e9) < 10 * 50_000
    assert play.told() == []
    waiting = {str(each.session) for each in play.waiting.values()}
    assert waiting and "s0" not in waiting and "s9" in waiting
    assert play.pool.places.count <= 9


def test_a_session_whose_turn_runs_yields_when_it_ends():
    play = Play()
    for number in range(6):
        play.is_admitted(f"s{number}", task_arrived_s=float(number))
    play.pool.evictor.give_way(Excess(2, "state_lost"), now=play.now)
    assert play.pool.places.count == 6
    play.end("s5")
    assert play.pool.places.count == 5 and play.is_admitted("s3")
    play.end("s4", outcome=TurnOutcome(was_answered=False))
    assert in_by_tenant(play) == {"t": 4}


def test_slow_tools_shrink_the_window():
    play = Play()
    for number in range(20):
        play.is_admitted(f"s{number}")
    for _ in range(200):
        play.policy._cpu.active = 10
        play.policy.tools_ran(SessionId("s1"), ("bash",), 1.0)
    for _ in range(100):
        play.policy._cpu.active = 20
        play.policy.tools_ran(SessionId("s1"), ("bash",), 8.0)
    for _ in range(30):
        play.now += 1
        play.pool.update_window(now=play.now)
    last: Any = play.told()[-1]
    assert last.reason == "tools_slow" and last.cpu_pressure > 1.0 and last.sessions < 20
    assert play.ask("s-new") == Wait(reason=WaitReason.TOOLS_FULL)


def test_tools_of_one_pool_take_no_place_in_another():
    play = Play()
    for number in range(2):
        play.is_admitted(f"a{number}")
    for number in range(50):
        play.is_admitted(f"b{number}", pool="other")
    play.policy._cpu.active = 50
    play.pool.window.with_tools = 35.0
    assert play.pool.limits._with_tools() == 2
    other = play.policy.pools[PoolId("other")].limits
    cpu, slow = play.policy._cpu, CpuReading(pressure=1.0, reason="tools_slow", inflation=4.0)
    assert cpu.limits(50, slow, pool=PoolId("other"))[0] == 25.0
    assert cpu.limits(2, slow, pool=POOL)[0] == 1.0, "of those that were in here"
    assert other._with_tools() == 50


def test_who_waits_for_slow_tools_is_not_gone():
    play = Play()
    play.is_admitted("s1", agent=1)
    play.end("s1", outcome=answered(tokens=100))
    limit_s = 120.0  # of tools of which nothing is known
    play.now += 2 * limit_s
    assert not play.pool.places.gone(tools_slower=3.0, now=play.now)
    assert [each.session for each in play.pool.places.gone(now=play.now)] == ["s1"]


# --- tenants ---------------------------------------------------------------------------------------


def test_a_blocked_tenant_gets_a_place_of_one_that_holds_too_many():
    play = capped(8)
    for number in range(8):
        play.is_admitted(f"t{number}", tenant="t", task_arrived_s=float(number))
    play.is_admitted("u0", tenant="u")
    assert play.later(0.45) == []
    assert play.later(0.5) == []  # the newest of them runs a turn
    assert play.end("t7") == ["u0"]
    play.end("t6")
    play.is_admitted("u1", tenant="u")
    assert play.later(0.4) == []
    assert play.later(0.3) == ["u1"]  # a session that rests gives its place at once
    assert play.ask("t6", tenant="t").reason is WaitReason.WINDOW_FULL
    assert play.later(1.0) == []  # 6 and 2; t7 waits in vain for the places of its own tenant
    assert play.over("t0") == ["t6"]


def test_a_session_of_many_threads_weighs_what_it_runs_at_once():
    play = capped(1)
    assert all(play.is_admitted("flood", tenant="flood", thread=f"{n}") for n in range(100))
    assert play.pool.places.count == 100 and play.pool.fair.held.get(TenantId("flood"), 0.0) == 100.0
    assert play.ask("u1", tenant="u") == FULL
    assert play.later(0.7) == []
    assert not play.is_admitted("flood", tenant="flood", thread="100"), "it has to give its place back"
    assert play.end("flood") == ["u1"]
    assert play.later(1.0) == []
    assert play.pool.places.count == 1 and play.pool.fair.held.get(TenantId("flood"), 0.0) == 0.0


def test_threads_of_a_session_enter_with_it_where_there_is_room_for_them():
    play = capped(10)
    for number in range(5):
        play.is_admitted(f"s{number}")
    play.is_admitted("many")
    play.pool.places.members[SessionId("many")].eviction_reason = "state_lost"
    for thread in range(8):
        assert not play.is_admitted("many", thread=f"{thread}")
    play.end("many")
    assert not play.later(5.0), "five and eight are more than ten"
    for number in range(3):
        play.end(f"s{number}")
    assert [play.finish(f"s{number}") for number in range(3)] == [[], [], ["many"] * 8]
    assert play.pool.places.count == 10


def test_tokens_per_minute():
    play = Play(SessionAdmission(config(), {T: Quota(tokens_per_minute=1000)}))
    assert play.is_admitted("s1", body_bytes=3200)
    refused: Any = play.ask("s2", body_bytes=3200)
    assert isinstance(refused, Refusal) and refused.reason is RefusalReason.TENANT_QUOTA
    assert 1 <= (refused.retry_after_s or 0) <= 30 and "The 1,000 tokens per minute" in refused.message
    assert play.is_admitted("u1", body_bytes=1_000_000, tenant="u")
    play.end("s1", tokens=100)
    assert play.is_admitted("s2", body_bytes=3200)
    play.end("s2")


def test_what_was_charged_is_given_back_to_who_did_not_run():
    play = Play(
        SessionAdmission(config(policy="session-cap", session_cap=1), {T: Quota(tokens_per_minute=1000)})
    )
    play.is_admitted("s1")
    play.ask("s2", body_bytes=4000)
    assert play.ask("s3", body_bytes=4000).reason is RefusalReason.TENANT_QUOTA
    play.leave("s2")
    assert play.ask("s3", body_bytes=4000).reason is WaitReason.WINDOW_FULL
    play.leave("s3")
    full = room(full=RefusalReason.QUEUE_FULL)
    refused = [play.ask("s2", body_bytes=4000, room=full) for _ in range(3)]
    assert {each.reason for each in refused} == {RefusalReason.QUEUE_FULL}
    assert refused[0].retry_after_s != refused[1].retry_after_s


# --- coming, going, and coming again ---------------------------------------------------------------


def test_a_client_that_leaves_frees_its_place_in_the_queue():
    play = capped(1)
    play.is_admitted("s1")
    play.is_admitted("s2")
    play.ask("s2")
    play.is_admitted("s3")
    play.leave("s2")
    assert len(play.pool.queue) == 1
    assert play.over("s1") == ["s3"]
    play.leave("s2")


def test_a_retry_finds_its_rank_again():
    play = capped(1, packing={"order": "arrival"})
    play.is_admitted("s1")
    play.is_admitted("early")
    play.now += 1
    play.is_admitted("late")
    play.now += 50
    play.leave("early")  # it was refused, and told to come again
    play.now += 10
    play.is_admitted("early", edge=Edge.RETRIES)
    assert play.over("s1") == ["early"]


def test_who_gave_up_and_comes_back_much_later_has_no_rank_from_then():
    play = capped(1, packing={"order": "arrival"})
    play.is_admitted("s1")
    play.is_admitted("early")
    play.now += 1
    play.is_admitted("late")
    play.leave("early")
    play.now += 3_600
    play.is_admitted("early")
    assert play.over("s1") == ["late"]


def test_turns_that_failed_are_no_turns():
    play = Play()
    play.is_admitted("s1")
    play.end("s1", TurnOutcome(was_answered=False))
    assert play.pool.places.members[SessionId("s1")].turn == 0
    play.turn("s1")
    assert play.pool.places.members[SessionId("s1")].turn == 1


def test_a_turn_whose_attempt_failed_keeps_its_place():
    play = capped(1)
    play.is_admitted("s1")
    again = next(iter(play.running.values()))
    assert play.policy.decide(again, room(), now=play.now) == Admit()
    assert play.pool.places.members[SessionId("s1")].live == 1
    play.ask("s2")
    held = next(iter(play.waiting.values()))
    assert play.policy.decide(held, room(), now=play.now) == Wait(reason=WaitReason.BEHIND_OTHERS)
    assert play.policy.decide(held, room(running=()), now=play.now) == NO_REPLICA


def test_shadow_mode_tells_and_enforces_nothing():
    play = capped(1, shadow=True)
    assert play.ask("s1") == Admit()
    assert play.ask("s2") == Admit(would_wait=WaitReason.WINDOW_FULL)
    assert play.ask("s2") == Admit()
    assert play.policy.next_deadline_s() is None


# --- what it learns --------------------------------------------------------------------------------


def test_who_holds_more_than_its_share_is_of_its_own_class_on_engines():
    """Behind others it would get the slack of steps, whoever needs them."""
    play = capped(4)
    for number in range(4):
        assert play.is_admitted(f"a{number}", tenant="a")
    assert not play.is_admitted("b1", tenant="b")
    play.pool.promises.level = 10.0
    found = (play.policy.class_of(SessionId(name), PoolId("pool")) for name in ("a1", "b1"))
    assert [each.value if each is not None else "" for each in found] == ["reactive", "reactive"]


def end_chance(play: Play, turn: int) -> float:
    return ends(play.workflow.graphs.known(OF_T).lifetimes.outlook(), turn)


def pauses(play: Play, *tools: str) -> Any:
    return play.workflow.graphs.known(OF_T).by_kind[bool(tools)].pauses


def test_ends_and_returns_are_learned():
    play = Play()
    for number in range(60):
        name = f"s{number}"
        play.turn(name, calls=True, then=1.0)
        play.turn(name, calls=False)
        play.finish(name)
    assert end_chance(play, 2) > 0.6 > 0.3 > end_chance(play, 1)
    play.finish("s-unknown")


@pytest.mark.parametrize("calls", [False, True])
def test_a_plain_answer_is_as_likely_as_not_the_last_while_nothing_is_known(calls):
    play = capped(1)
    play.turn("s1", calls=calls, then=3.0)
    assert play.is_admitted("s2") is not calls


def test_ends_are_learned_though_nobody_waits_and_taken_back():
    play = Play()
    play.turn("s1", calls=False, then=100.0)
    before = end_chance(play, 1)
    play.turn("s2", then=1.0)
    assert end_chance(play, 1) > before
    play.turn("s1")
    assert end_chance(play, 1) < before, "it was not gone"


def test_who_is_gone_takes_no_place_though_nobody_waits():
    play = Play()
    for number in range(300):
        play.turn(f"s{number}", calls=False, then=0.1)
    play.now += 5.0
    play.has(kv_used=0.1)
    assert play.pool.places.count < 20 and end_chance(play, 1) > 0.8
    assert play.is_admitted("s1"), "and enters again"


def test_what_follows_a_turn_that_failed_is_no_pause():
    play = Play()
    play.turn("s1", calls=True, then=5.0)
    failed = msgspec.structs.replace(answered(), was_answered=False, has_calls=False)
    play.is_admitted("s1")
    play.end("s1", failed)
    play.now += 0.5
    play.turn("s1", calls=True, then=5.0)  # it is sent again
    assert pauses(play, "bash").weight == 1.0 and not pauses(play).weight
    assert pauses(play, "bash").quantile(0.5) == pytest.approx(5.0, rel=0.25)


def test_a_wait_for_a_place_is_no_part_of_a_cycle():
    play = capped(1)
    play.is_admitted("s1")
    play.now += 5.0
    play.end("s1", calls=True)
    play.pool.release(play.pool.places.members[SessionId("s1")], now=play.now)
    play.is_admitted("s2")
    play.now += 4.0
    assert not play.is_admitted("s1")
    play.now += 390.0
    assert play.over("s2") == ["s1"]
    assert play.pool.limits.cycle_s.mean(0.0, 1e-9) == pytest.approx(9.0), "from one turn to the next"


def test_a_tool_that_lasts_longer_than_others_does_not_shorten_the_patience_with_them():
    play, was_given_up = capped(1), False
    for number in range(60):
        name = f"s{number}"
        for _ in range(4):
            play.turn(name, calls=True, then=5.0)
        play.turn(name, calls=True, then=100.0 if number >= 20 else 5.0)
        if play.is_admitted("x"):  # it was given up, but it comes back
            assert not play.is_admitted(name)
            play.later(50.0)
            was_given_up = True
            play.end("x", calls=False)
            assert play.finish("x") == [name]
        else:
            play.leave("x")
            assert play.is_admitted(name)
        play.end(name, calls=False)
        play.finish(name)
    limit_s = play.workflow.graphs.known(OF_T).expected_return(Step(("bash",))).likely_s or 0.0
    assert was_given_up and limit_s >= 90, "nobody was gone"
    assert limit_s <= 130, "to wait for a place is no silence"


def test_a_host_tier_counts_where_it_is_stated_or_set():
    """Where copies are kept of what is on the device: only what is larger than the device adds room."""
    for host, fits in ((500, 1000), (1000, 1000), (4000, 4000)):
        play = Play(window={"min_feedback_s": 10.0}).has(kv_tokens=1000, host=host)
        assert play.pool.window.budget == pytest.approx(fits)
    play = Play(host_kv_tokens=4000).has(kv_tokens=1000)
    assert play.pool.window.budget == pytest.approx(4000)
    assert answered().was_answered


def test_several_replicas_are_not_used_whole():
    """Sessions do not spread evenly: one of them is full before the mean is."""
    play = Play().has(kv_tokens=1000)
    play.policy.fleet_changed(POOL, [ReplicaId("a"), ReplicaId("b")], now=play.now)
    play.policy.engine_reported(POOL, ReplicaId("b"), EngineSignals(kv_tokens=1000), now=play.now + 2.0)
    assert play.pool.window.budget == pytest.approx(0.9 * 2000)


def test_of_a_burst_no_more_enter_than_will_fit():
    """Sessions that are small now and large later: what they will have grown to counts."""
    play = Play().has(kv_tokens=650_000)
    for number in range(30):
        name = f"before-{number}"
        for turn in range(24):
            assert play.turn(name, tokens=5_000 + 2_500 * turn, calls=turn < 23)
        play.finish(name)
    for number in range(60):
        play.ask(f"burst-{number}", body_bytes=20_000)
    play.later(5.0)
    assert play.waiting, "not all of them"
    places, budget = play.pool.places, play.pool.limits.window.budget
    places.recompute_demand()
    assert 0.5 * budget < places.residents.peak() <= 1.1 * budget


def test_the_smallest_whose_tools_run_give_way_before_the_cache_overflows():
    play = Play().has(kv_tokens=100_000)
    sizes = {"small": 0, "large": 4_000, "middle": 2_000}
    for tokens in range(8_000, 40_000, 2_000):
        for name in sizes:
            play.is_admitted(name)
        play.now += 2.0
        for name, more in sizes.items():
            play.end(name, tokens=tokens + more)
        play.later(0.05)  # tools are quick: the fleet does not rest, so nobody enters for that
    assert play.pool.places.residents.now() <= 100_000
    assert {name: play.pool.places.members[SessionId(name)].is_in for name in sizes} == {
        "small": False,
        "middle": True,
        "large": True,
    }


# --- what a decision costs -------------------------------------------------------------------------


class NotToBeScanned(dict[SessionId, Member]):
    def values(self):
        raise AssertionError("all that are remembered were looked at")

    __iter__ = items = values


def test_whoever_has_to_make_room_is_looked_for_among_those_who_are_in():
    play = capped(8)
    for number in range(9):
        play.is_admitted(f"t{number}", tenant="t" if number < 8 else "u")
    play.pool.places.members = NotToBeScanned(play.pool.places.members)
    play.pool.promises.level = 1.0
    play.later(2.0)
    play.pool.evictor.for_the_late(now=play.now)
    assert play.end("t7") == ["t8"]
    play.pool.limits.window.sessions = 2.0
    play.pool.update_window(now=play.now + 100.0)


def test_a_turn_that_frees_nothing_looks_through_no_queue(monkeypatch):
    play = capped(2)
    play.is_admitted("s1")
    play.is_admitted("s2")
    for number in range(150):
        play.is_admitted(f"t{number}", tenant=f"t{number}")
    play.drain_queue()
    play.end("s1", tokens=100)
    assert play.is_admitted("s1")
    looks, choose = [], play.pool.choose

    def counted(*, now: float) -> Any:
        looks.append(now)
        return choose(now=now)

    monkeypatch.setattr(play.pool, "choose", counted)
    for _ in range(50):
        play.now += 0.001
        play.end("s1", tokens=100)
        assert play.is_admitted("s1") and not play.drain_queue()
    assert not looks
    play.later(0.1)
    assert looks, "a tenth of a second later at most"
    play.end("s1")
    assert len(play.finish("s1")) == 1, "and at once where a place becomes free"


# --- side requests ---------------------------------------------------------------------------------


def test_a_side_request_does_not_end_a_tool_phase():
    play = capped(1)
    play.turn("s1", calls=True, tokens=5_000)
    since_s = play.now
    play.now += 1.0
    assert play.is_admitted("s1", edge=Edge.SERVES)
    play.now += 0.5
    play.end("s1", answered(tokens=200, calls=False))
    member = play.pool.places.members[SessionId("s1")]
    assert (is_in_tools(member), member.gap_since_s) == (True, since_s)
    assert (member.tokens, member.turn) == (5_000, 1), "what it holds is what it held"
    play.now += 60.0  # more than a plain answer is waited for
    assert not play.is_admitted("s2"), "its tools still run, so it keeps its place"
    play.now += 1.0
    assert play.is_admitted("s1")
    assert pauses(play, "bash").quantile(1.0) > 60.0, "the pause lasted from turn to turn"
    assert not pauses(play).weight


def test_a_turn_that_ends_beside_a_side_request_begins_the_silence():
    play = capped(2)
    play.is_admitted("s1")
    turn = next(iter(play.running))
    play.is_admitted("s1", edge=Edge.SERVES)
    play.now += 1.0
    play.end_one(turn, answered(tokens=5_000, calls=True))
    member = play.pool.places.members[SessionId("s1")]
    assert (is_in_tools(member), member.gap_since_s, member.live) == (True, play.now, 1)
    play.now += 9.0
    play.end("s1", answered(tokens=200, calls=False))
    assert (is_in_tools(member), member.gap_since_s, member.live) == (True, play.now - 9.0, 0)


def test_a_session_is_what_its_longest_conversation_is():
    play = capped(2)
    for number, (agent, tokens) in enumerate(((7, 300), (8, 9_000), (8, 9_500), (7, 400))):
        play.is_admitted(
            "s1", agent=agent, thread=f"{agent}", edge=Edge.CONTINUES if number > 1 else Edge.OPENS
        )
        play.end("s1", answered(tokens=tokens))
    member = play.pool.places.members[SessionId("s1")]
    assert member.agent.agent_type == 8 and member.turn == 2
    assert play.pool.places.with_tools == {member.agent: 1}
    assert play.pool.places.residents.agents == {member.agent: 1}


def test_a_sub_agent_that_ends_beside_a_side_request_leaves_its_parents_pause():
    play = capped(50)
    for number in range(36):  # such an agent comes back after ten seconds
        assert play.is_admitted(f"o{number // 3}", agent=8)
        play.end(f"o{number // 3}", answered(tokens=5_000))
        play.now += 10.0
    for number in range(12):
        play.finish(f"o{number}")
    play.is_admitted("s1", agent=8)
    play.end("s1", answered(tokens=5_000))
    play.is_admitted("s1", agent=9, thread="child", edge=Edge.SPAWNED)
    child = next(iter(play.running))
    play.is_admitted("s1", edge=Edge.SERVES)
    play.end_one(child, answered(tokens=900, calls=False))
    member = play.pool.places.members[SessionId("s1")]
    assert is_in_tools(member) and member.silence.pause.lengths is not None


def test_a_session_that_begins_with_a_title_is_silent_from_then_on():
    play = capped(2)
    play.is_admitted("s1", edge=Edge.SERVES)
    play.now += 5.0
    play.end("s1", answered(tokens=200, calls=False))
    member = play.pool.places.members[SessionId("s1")]
    assert (is_in_tools(member), member.gap_since_s) == (False, play.now)


def test_a_request_without_tools_that_brings_results_ends_their_phase():
    play = capped(2)
    play.turn("s1", calls=True, tokens=5_000)
    play.now += 1.0
    play.policy.tools_ran(SessionId("s1"), ("bash",), 1.0)
    assert play.is_admitted("s1", edge=Edge.SERVES)
    play.end("s1", answered(tokens=200, calls=False))
    assert not is_in_tools(play.pool.places.members[SessionId("s1")])


def test_who_gives_way_does_so_before_the_turn_after_the_next_would_overflow():
    play = Play().has(kv_tokens=100_000)
    names = [f"s{number}" for number in range(4)]
    for tokens in (14_000, 17_000, 20_000):
        for name in names:
            play.is_admitted(name)
        play.now += 2.0
        for name in names:
            play.end(name, tokens=tokens)
        play.later(0.05)
    for name in names:  # they will hold 92,000 with these turns, and 104,000 with the next
        assert play.is_admitted(name)
    play.later(2.0)
    play.pool.update_window(now=play.now)
    leaving = [name for name in names if play.pool.places.members[SessionId(name)].eviction_reason]
    assert leaving == ["s3"]


def test_nobody_enters_beyond_what_gets_the_most_done():
    play = Play().has(kv_tokens=100_000)
    play.is_admitted("s1", body_bytes=40_000)
    play.pool.limits.throughput.knee_tokens = 12_000.0
    assert play.ask("s2", body_bytes=40_000).reason is WaitReason.KV_FULL
    play.pool.limits.throughput.knee_tokens = float("inf")
    assert play.later(0.1) == ["s2"]


# --- what it says of its decisions -------------------------------------------------------------------


def test_what_keeps_a_session_out_is_said_in_the_bound_s_own_figures():
    play = capped(1)
    play.ask("s1")
    play.ask("s2")
    play.ask("s3", tenant="u")
    of = {str(each.session): each for each in play.said() if isinstance(each, SessionHeld)}
    assert (of["s2"].reason, of["s2"].with_it, of["s2"].limit) == (WaitReason.WINDOW_FULL, 2.0, 1.0)
    assert (of["s2"].ahead, of["s2"].is_deprioritized, of["s2"].gave_back) == (0, False, None)
    assert (of["s3"].ahead, of["s3"].is_deprioritized, of["s3"].tenant) == (1, True, "u")


def test_kv_is_said_as_tokens_that_those_in_are_expected_to_hold():
    play = Play().has(kv_tokens=5_000)
    play.ask("s1", body_bytes=12_000)
    play.ask("s2", body_bytes=12_000)
    (held,) = (each for each in play.said() if isinstance(each, SessionHeld))
    assert held.reason is WaitReason.KV_FULL
    assert held.with_it > held.limit == 5_000.0


def test_an_entry_is_said_once_with_what_is_in_by_then_and_how_long_it_waited():
    play = capped(1)
    play.ask("s1")
    play.ask("s2")
    play.now += 3.0
    play.over("s1")
    entered = [each for each in play.said() if isinstance(each, SessionAdmitted)]
    assert [(each.session, each.waited_ms, each.admitted) for each in entered] == [
        ("s1", 0.0, 1),
        ("s2", 3_000.0, 1),
    ]
    assert entered[0].kv_limit is None and not entered[1].is_over_limit


def test_who_gave_its_place_back_says_why():
    play = capped(2)
    play.ask("s1")
    play.ask("s2")
    play.pool.places.members[SessionId("s2")].eviction_reason = "kv_overflow"
    play.said()
    play.ask("s2")
    play.end("s2")
    (held,) = (each for each in play.said() if isinstance(each, SessionHeld))
    assert (held.session, held.gave_back) == ("s2", "kv_overflow")


def test_what_a_replica_lost_with_its_engine_is_no_overload():
    play = Play(gaps={"unknown_tool_s": 300.0}).has(kv_tokens=1_000_000)

    def rounds(count: int, *, cached: int) -> None:
        for _ in range(count):
            for number in range(12):
                assert play.turn(f"s{number}", tokens=40_000, cached=cached, lasts=0.5)
            play.now += 6.0

    rounds(10, cached=40_000)
    budget, gpu = play.pool.window.budget, play.pool.limits.gpu
    turns_before = gpu._seen.warm
    play.policy.fleet_changed(POOL, [], now=play.now)
    play.now += 20.0
    play.has(kv_tokens=1_000_000)
    rounds(1, cached=0)
    assert gpu._seen.warm <= turns_before, "they could not find anything there"
    rounds(4, cached=40_000)
    assert play.pool.window.budget == budget
    assert not [each for each in play.told() if each.reason == "state_lost"]
    rounds(6, cached=0)
    assert play.pool.window.budget < budget, "what is lost while it lives is"


def test_overdue_sessions_that_may_not_enter_hide_no_other():
    tenants = {TenantId("q"): Quota(max_sessions=1)}
    play = Play(SessionAdmission(config(policy="session-cap", session_cap=2), tenants))
    play.ask("q0", tenant="q")
    play.ask("t0", tenant="t", body_bytes=4000)
    for number in range(40):
        play.ask(f"q{number + 1}", tenant="q")
    play.ask("large", tenant="t", body_bytes=4_000_000)
    for number in range(600):
        play.ask(f"s{number}", tenant="t", body_bytes=400)
        play.later(1.0)
        for session in {str(each.session) for each in play.running.values()} - {"q0"}:
            play.over(session)
    assert "large" not in {str(each.session) for each in play.waiting.values()}


def test_tools_of_an_evicted_session_count_no_longer_than_its_silence():
    play = Play().has(kv_tokens=10_000_000)
    for number in range(4):
        play.ask(f"s{number}", body_bytes=80_000)
        play.now += 1.0
        play.end(f"s{number}", tokens=20_000)
    play.pool.evictor.give_way(Excess(4, "kv_overflow"), now=play.now)
    assert play.policy._cpu.active == 4 and play.pool.places.count == 0
    play.now += 1000.0
    play.has(kv_tokens=10_000_000)
    assert play.policy._cpu.active == 0


def test_a_replica_with_several_caches_is_not_used_whole():
    play = Play().has(kv_tokens=800_000, ranks=8)
    assert play.pool.window.budget == pytest.approx(0.9 * 800_000)


@pytest.mark.parametrize(("claims", "keeps"), [(None, True), (Claims(resumes=False), False)])
def test_a_trusted_client_that_expects_no_further_turn_gives_its_slot_back(claims, keeps):
    play = Play().has(kv_tokens=1_000_000)
    play.ask("s", claims=claims)
    play.end("s")
    play.now += 5.0
    play.has(kv_tokens=1_000_000)
    assert (play.pool.places.count == 1) is keeps


def test_a_session_that_gave_its_slot_back_enters_at_once_where_nobody_waits():
    play = Play().has(kv_tokens=1_000_000)
    play.ask("s")
    play.pool.evictor.give_way(Excess(1, "kv_overflow"), now=play.now)
    play.end("s")
    assert play.pool.places.count == 0
    assert isinstance(play.ask("s"), Admit)


def test_of_two_tenants_the_one_with_the_most_tokens_gives_way_before_an_overflow():
    play = Play().has(kv_tokens=100_000)
    for number in range(20):
        play.turn(f"before-{number}", tokens=4_000)
        play.turn(f"before-{number}", tokens=12_000)
        play.finish(f"before-{number}")
    for tenant, count, tokens in (("many", 6, 2_000), ("large", 2, 38_000)):
        for number in range(count):
            play.is_admitted(f"{tenant}-{number}", tenant=tenant, body_bytes=4_000)
            play.end(f"{tenant}-{number}", tokens=tokens)
    play.is_admitted("many-0", tenant="many")
    play.now += 1.0
    play.has(kv_tokens=100_000)
    assert in_by_tenant(play) == {"many": 6, "large": 1}
