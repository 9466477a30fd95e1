"""Every engine policy, and each paper's, against a case worked out by hand, asked as an engine would."""

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Prefill, RemotePrefill, StopPrefill
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import ToolCall
from lab.simulator.baselines.continuum import DynamicTtl, best_ttl_s
from lab.simulator.baselines.cpu_pressure import CpuPressure
from lab.simulator.baselines.infercept import InferCept
from lab.simulator.baselines.mars import Coordinator, MarsRouter
from lab.simulator.baselines.plas import Plas
from lab.simulator.baselines.saga import Worker
from lab.simulator.baselines.saga_router import SagaRouter
from lab.simulator.baselines.saga_share import Task, Urgency
from lab.simulator.baselines.sutradhara import Sutradhara
from lab.simulator.engine.roofline import prefill_s
from tests.lab.simulator.baselines.router_play import Play, asked, report
from tests.lab.simulator.baselines.turns import engine_turn
from tests.lab.simulator.worlds import LITTLE
from tests.lab.workload.trace.made import session as chat


def _end(policy, turn, *, began_s, end_s):
    turn.began_s = began_s
    return policy.retain_until(turn, now=end_s)


def test_plas_counts_in_queues_whose_quanta_double():
    policy = Plas(levels=4, first_s=1.0, beta=1e9)
    session = chat("a", *range(10, 100, 10))
    levels = []
    for at, service_s in enumerate((0.5, 0.5, 1.0, 2.0, 50.0, 1.0)):
        turn = engine_turn(session, at)
        levels.append(policy.priority(turn, now=0.0))
        _end(policy, turn, began_s=0.0, end_s=service_s)
    # Attained 0, 0.5, 1.0, 2.0, 4.0, 54: queues 0 (below 1), 0, 1 (below 2), 2 (below 4), then the last.
    assert levels == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(("beta", "level"), [(3.0, 0), (3.5, 2)])
def test_plas_promotes_who_waited_too_long_for_what_it_got(beta, level):
    policy = Plas(levels=4, first_s=1.0, beta=beta)
    session = chat("a", 10, 20, 30, 40, 50)
    _end(policy, engine_turn(session, 0), began_s=0.0, end_s=2.0)  # nobody asked for its priority before
    first = engine_turn(session, 0)
    policy.priority(first, now=0.0)
    _end(policy, first, began_s=6.0, end_s=8.0)  # waited 6 s, was served for 2
    assert policy.priority(engine_turn(session, 1), now=8.0) == level  # 6 ≥ 3 × 2, and 6 < 3.5 × 2
    again = engine_turn(session, 2, at_s=9.0)
    assert policy.priority(again, now=9.0) == 2  # and back where 2 s of service belong


def test_infercept_swaps_where_that_is_cheaper():
    policy = InferCept(LITTLE, estimate="elapsed", can_swap=True)
    turn = engine_turn(chat("m", 1000, 2000, output=24))
    policy.priority(turn, now=0.0)
    # Out and in: 2 × 1024 × 8192 bytes at 1 GB/s, for 1024 tokens. Computing them takes longer: 2 × 1e9 ×
    # 1024 FLOPs at 0.55 × 2 TFLOPS alone are 1.9 s.
    swap_s = 2 * 1024 * 8192 / 1e9
    assert swap_s < prefill_s(LITTLE, 1024) / 2
    assert _end(policy, turn, began_s=0.0, end_s=0.0) == pytest.approx(swap_s)


@pytest.mark.parametrize(("tool_s", "is_held"), [(0.5, True), (60.0, False)])
def test_infercept_that_knows_the_pause_holds_for_all_of_it_or_not_at_all(tool_s, is_held):
    policy = InferCept(LITTLE, estimate="known", can_swap=False)
    turn = engine_turn(chat("m", 1000, 2000, output=24, tool_s=tool_s))
    policy.priority(turn, now=0.0)
    until_s = _end(policy, turn, began_s=0.0, end_s=0.0)
    assert (until_s is not None and until_s > tool_s) == is_held


def test_the_best_ttl_gains_the_most():
    # Of four durations: 1 s gains ½ · w − 1, 2 s gains ¾ · w − 2, 9 s gains w − 9.
    durations = [1.0, 1.0, 2.0, 9.0]
    assert best_ttl_s(durations, 1.9) == 0.0  # even the first costs more than it brings
    assert best_ttl_s(durations, 3.0) == 1.0
    assert best_ttl_s(durations, 5.0) == 2.0  # 1.75 against 1.5
    assert best_ttl_s(durations, 40.0) == 9.0  # 31 against 28


def test_continuum_holds_for_what_reloading_takes_and_for_the_wait_without_kv():
    policy = DynamicTtl(2.0, reload_s=lambda tokens: tokens / 1_000, few=1)
    session = chat("a", 990, 1_990, 2_990, 3_990)
    first, second, third = (engine_turn(session, at) for at in range(3))
    assert policy.retain_until(first, now=0.0) == 2.0, "no duration is known"
    policy.priority(second, now=1.5)
    policy.retain_until(second, now=2.0)
    policy.priority(third, now=11.0)
    # Tools took 1.5 and 9 s. Reloading takes 3 s: 1.5 s gain 3 / 2 - 1.5, which is nothing.
    assert policy.retain_until(third, now=12.0) is None
    # It waits for 1 s without its KV: 1.5 s gain (3 + 1) / 2 - 1.5. Then 14 s, 7.5 on average, and 45 s, on
    # average 20: 9 s gain 3 + 20 - 9, and 1.5 s only (3 + 20) / 2 - 1.5.
    ends = [_end(policy, third, began_s=began_s, end_s=200.0) for began_s in (1.0, 14.0, 45.0)]
    assert ends == [201.5, 201.5, 209.0]


# --- MARS ------------------------------------------------------------------------------------------------


def four(kv_tokens: int = 100_000) -> Play:
    """Sessions are in, as many as the window holds at first."""
    play = Play(None, kind=MarsRouter, kv_tokens=kv_tokens)
    for name in "abcd":
        assert play.asks(f"{name}/0") == [f"{name}/0 on r0"]
    return play


def test_mars_lets_the_smallest_in_first_as_many_as_its_window_holds():
    play = four()
    assert play.asks("large/0", 900) == play.asks("small/0", 100) == []
    assert play.over("a") == ["small/0 on r0"]
    assert play.asks("b/1") == ["b/1 on r0"]  # whoever is in never waits


def test_mars_window_grows_with_calm_and_halves_under_persistent_pressure():
    play = four()
    for name in "efg":
        assert play.asks(f"{name}/0") == []
    assert [play.hears(report(0.5)) for _ in range(3)] == [[], [], ["e/0 on r0"]]
    assert [play.hears(report(0.95)) for _ in range(3)] == [[], [], []]  # five are in, two may be
    assert [play.over(name) for name in "abcd"] == [[], [], [], ["f/0 on r0"]]
    assert play.hears(report(0.5)) == []


def test_mars_lets_in_only_what_fits_under_its_soft_cap():
    play = Play(None, kind=MarsRouter, kv_tokens=10_000)
    play.asks("a/0")
    play.hears(report(0.8))  # 2,000 are free, and 0.2 / 0.25 of them may be taken
    assert play.asks("large/0", 1_700) == []
    assert play.asks("small/0", 1_500) == ["small/0 on r0"]


def test_mars_lets_nobody_in_beside_those_who_hold_nearly_all():
    play = Play(None, kind=MarsRouter, kv_tokens=1_000)
    assert play.asks("a/0", 500) == ["a/0 on r0"]
    play.ends("a/0", prompt=500, output=100)
    assert play.hears(report(0.0)) == play.hears(report(0.0)) == []
    assert play.asks("b/0", 301) == [], "901 of 1,000, though nothing is used while tools run"
    assert play.asks("c/0", 300) == ["c/0 on r0"]


def _runs(pressure: CpuPressure, tool: str, took_s: float, times: int) -> None:
    for _ in range(times):
        pressure.began(("s", "0"), tool, now=0.0)
        pressure.ended(("s", "0"), now=took_s)


def test_mars_takes_tools_for_slow_only_by_what_each_took_before():
    pressure = CpuPressure()
    for others in range(3):
        pressure.began((f"other-{others}", "0"), "other", now=0.0)
    _runs(pressure, "read", 0.1, 200)
    _runs(pressure, "build", 60.0, 200)  # 600 times as long, and always was
    assert not pressure.is_congested
    # Three times as long: half of the average is new after 14 calls, and ln 3 / 2 is less than ln 2; after 40
    # calls 0.87 of ln 3 is more.
    _runs(pressure, "read", 0.3, 14)
    assert not pressure.is_congested
    _runs(pressure, "read", 0.3, 26)
    assert pressure.is_congested
    for others in range(3):
        pressure.ended((f"other-{others}", "0"), now=1.0)
    assert not pressure.is_congested, "none is active"


def test_mars_averages_active_tools_once_a_second_however_many_replicas_report():
    play = Play(None, kind=MarsRouter, replicas=2)
    play.asks("a/0")
    play.ends("a/0", tool_calls=(ToolCall("1", "read"),))
    for at in range(200):
        play.hears(msgspec.structs.replace(report(0.5), replica=ReplicaId(f"r{at % 2}")))
    assert play.router._cpu._usually_active == pytest.approx(1 - 0.995**100)


def slow_tools() -> Play:
    """Four are in. Ten calls took 10 ms and one 20,000 s: 0.05 × ln 2,000,000 = 0.73 is more than ln 2."""
    play, calls = four(), (ToolCall("1", "read"),)
    for turn, took_s in enumerate((*[0.01] * 10, 20_000.0)):
        play.ends(f"a/{turn}", tool_calls=calls)
        play.asks(f"a/{turn + 1}", now=took_s)
    play.ends("a/11", tool_calls=calls)
    return play


def test_mars_halves_its_window_while_tools_are_slow():
    play = slow_tools()
    assert play.asks("e/0") == []
    assert [play.hears(report(0.5)) for _ in range(3)] == [[], [], []]  # calm but for the tools
    assert [play.over(name) for name in "bcd"] == [[], [], ["e/0 on r0"]]  # two may be in


def test_mars_lets_the_longest_in_first_while_tools_are_slow():
    play = slow_tools()
    assert play.asks("small/0", 100) == play.asks("large/0", 900) == []
    assert play.over("b") == ["large/0 on r0"]


@pytest.mark.parametrize(("tool_s", "is_held"), [(3.0, True), (60.0, False)])
def test_mars_holds_no_longer_than_it_saves_where_others_wait(tool_s, is_held):
    policy, session = Coordinator(LITTLE), chat("a", 1_000, 2_000, 3_000)
    policy.retain_until(engine_turn(session), now=0.0)
    policy.priority(again := engine_turn(session, 1), now=tool_s)
    # To compute 2,010 tokens takes 2 × 1e9 × 2,010 FLOPs at 0.55 × 2 TFLOPS alone: 3.7 s, and less than 6.
    assert policy.retain_until(again, now=100.0) == 100 + 2 * tool_s
    policy.priority(waits := engine_turn(chat("b")), now=101.0)
    assert (policy.retain_until(again, now=101.0) == 101 + 2 * tool_s) == is_held
    waits.began_s = 102.0
    assert policy.retain_until(again, now=102.0) == 102 + 2 * tool_s


def test_mars_promotes_whoever_waits_by_a_level_in_ten_seconds():
    policy = Coordinator(LITTLE)
    large, small, late = (  # on levels 1, 0, 0
        policy.priority(engine_turn(chat(str(now), tokens)), now=now)
        for tokens, now in ((9_000, 0.0), (900, 9.9), (900, 10.1))
    )
    assert small < large < late


def test_mars_gives_up_the_lowest_level_first_and_of_it_the_largest():
    policy = Coordinator(LITTLE)
    small, large, huge = (
        engine_turn(chat(name, tokens, 60_000)) for name, tokens in (("s", 900), ("l", 9_000), ("h", 40_000))
    )
    for turn in (small, large, huge):
        policy.priority(turn, now=0.0)
    assert [policy.level(turn) for turn in (small, large, huge)] == [0, 1, 3]
    ranks = [policy.eviction_rank(turn, now=0.0) for turn in (huge, large, small)]
    assert ranks == sorted(ranks)
    # The small one was served for 34,000 tokens, and is on the last level then, behind the huge one.
    policy.retain_until(engine_turn(chat("s", 34_000, 60_000)), now=1.0)
    assert policy.level(small) == 3
    assert policy.eviction_rank(huge, now=1.0) < policy.eviction_rank(small, now=1.0)
    over = engine_turn(chat("o", 10))
    assert policy.eviction_rank(over, now=1.0) < policy.eviction_rank(huge, now=1.0)


# --- SAGA ------------------------------------------------------------------------------------------------


def saga(replicas: int = 2, *, moves: bool = False) -> Play:
    def kind(sizes: dict[str, int]) -> SagaRouter:
        return SagaRouter(sizes, LITTLE, alpha=1.5, moves=moves)

    return Play(None, kind=kind, replicas=replicas, kv_tokens=1_000)


def test_saga_stays_below_its_threshold_of_what_runs_and_moves_above():
    play = saga()
    assert play.asks("a/0", 500) == ["a/0 on r0"]
    assert play.asks("b/0", 100) == ["b/0 on r1"]
    assert play.asks("c/0", 300) == ["c/0 on r1"]
    play.ends("c/0", prompt=300)
    assert play.asks("d/0", 690) == ["d/0 on r1"]
    assert play.asks("c/1", 320) == [], "0.79 of r1 runs: c stays, and waits for room"
    assert play.ends("d/0", prompt=690) == ["c/1 on r1"]
    play.ends("c/1", prompt=320)
    assert play.asks("e/0", 700) == ["e/0 on r1"]
    assert play.asks("c/2", 340) == ["c/2 on r0"], "0.8 of r1 runs, and 0.5 of r0"


def test_saga_leaves_where_its_state_was_overwritten():
    play = saga()
    play.asks("a/0", 100)
    play.ends("a/0", prompt=100, output=0)
    assert play.asks("b/0", 50) == ["b/0 on r1"]
    for written in (1_000, 1_001):
        play.asks(f"c/{written}", 900)
        play.ends(f"c/{written}", prompt=900, output=written - 900)
        assert play.asks(f"d/{written}", 60) == [f"d/{written} on r0"]
        assert play.asks(f"a/{written}", 100) == [f"a/{written} on r{int(written == 1_001)}"]
        play.ends(f"d/{written}", prompt=0, output=0)
        play.ends(f"a/{written}", prompt=0, output=0)


def overloaded(*, moves: bool = False, runs: int = 505) -> Play:
    """r0 runs so many tokens; r1 790, and c waits for it with 220, where it was before."""
    play = saga(moves=moves)
    assert play.asks("a/0", runs) == ["a/0 on r0"]
    assert play.asks("c/0", 200) == ["c/0 on r1"]
    play.ends("c/0", prompt=200)
    assert play.asks("b/0", 790) == ["b/0 on r1"]
    assert play.asks("c/1", 220) == []
    return play


def test_saga_steals_above_twice_the_load():
    assert overloaded(runs=505).hears(ev.TimerFired(), now=0.1) == [], "r1 has 1.01: twice that of r0"
    assert overloaded(runs=504).hears(ev.TimerFired(), now=0.1) == ["c/1 on r0"]


def test_saga_steals_for_whoever_has_nothing_to_do():
    play = overloaded()
    assert play.ends("a/0", now=0.15) == []
    assert play.hears(ev.TimerFired(), now=0.25) == ["c/1 on r0"]
    play.ends("c/1", prompt=220)
    assert play.asks("d/0", 790) == ["d/0 on r0"]
    play.ends("b/0")
    assert play.asks("c/2", 220) == []
    assert play.hears(ev.TimerFired(), now=0.5) == [], "nobody is stolen twice"


def test_saga_hands_over_what_a_stolen_session_has():
    play = overloaded(moves=True)
    play.ends("a/0", now=0.15)
    (leg,) = play.router.handle(ev.TimerFired(), now=0.25)
    assert isinstance(leg, RemotePrefill) and (leg.request, leg.replica) == ("c/1", "r1")
    assert play.hears(ev.PrefillLegEnded(RequestId("c/1"), None), now=0.5) == ["c/1 on r0"]


def test_saga_evicts_by_idle_time_by_reuse_and_by_size():
    worker, session = Worker(), chat("a", 390, 800)
    worker.retain_until(engine_turn(session), now=0.0)
    worker.priority(engine_turn(session, 1), now=10.0)  # the tool said 400 tokens; an EMA of 0.1 has 40
    for turn in (paused := engine_turn(chat("b", 150, 300)), engine_turn(chat("c", 310, 500))):
        worker.retain_until(turn, now=20.0)
    # Idle for 5 of at most 10 s; 2 of 5 pauses went on, with 160 of 200 tokens; 160 of at most 320 tokens.
    evicted = 0.3 * 5 / 10 + 0.5 * (1 - 2 / 5 * 160 / 200) + 0.2 * 160 / 320
    assert worker.eviction_rank(paused, now=25.0) == pytest.approx(-evicted)


def test_saga_urgency_is_what_is_left_by_the_time_until_the_deadline():
    urgency = Urgency(alpha=1.5)
    urgency.tasks["x"] = Task("tx", kind=1, arrived_s=0.0)
    urgency.tasks["y"] = Task("ty", kind=1, arrived_s=20.0)
    assert urgency.shares(now=20.0) == {"tx": 1.0, "ty": 1.0}, "nobody knows how long tasks are"
    urgency.tasks["over"] = Task("tx", kind=1, arrived_s=0.0, turns=5, work_s=10.0, tools_s=10.0)
    urgency.over("over")
    # Deadlines are 30 s after arrival; 10 s of work are left.
    assert urgency.shares(now=20.0) == pytest.approx({"tx": 10 / 10, "ty": 10 / 30})
    urgency.tasks["y"].turns, urgency.tasks["y"].work_s = 4, 12.0  # more than usual: one more call, of 3 s
    assert urgency.shares(now=40.0) == pytest.approx({"tx": 10 / 0.1, "ty": 3 / 10})


def test_saga_runs_the_oldest_task_of_a_tenant_first():
    play = saga(replicas=1)
    for at, name in enumerate(("old/0", "young/0")):
        play.asks(name, 100, now=float(at))
        play.ends(name, prompt=100, now=at + 0.5)
    assert play.asks("busy/0", 900, now=3.0) == ["busy/0 on r0"]
    assert play.asks("young/1", 600, now=4.0) == play.asks("old/1", 600, now=5.0) == []
    assert play.ends("busy/0", now=6.0) == ["old/1 on r0"]


def test_saga_shares_a_worker_by_urgency():
    play = saga(replicas=1)
    router = play.router
    assert isinstance(router, SagaRouter)
    router.urgency.tasks["over"] = Task("t", kind=0, arrived_s=0.0, turns=1, work_s=10.0, tools_s=10.0)
    router.urgency.over("over")
    assert play.asks("a/0", 900, tenant="early", now=1.0) == ["a/0 on r0"]
    assert play.asks("c/0", 900, tenant="late", now=14.0) == []
    assert play.asks("b/0", 900, tenant="early", now=15.0) == []
    assert play.hears(ev.TimerFired(), now=20.1) == []
    # early has 10 s left of each of two tasks, until 31 and 45 s; late of one, until 44 s.
    assert play.ends("a/0", now=20.2) == ["b/0 on r0"]


def test_saga_loads_what_was_overwritten_before_its_tools_end():
    play, calls = saga(replicas=1), (ToolCall("1", "read"),)
    for turn in range(9):
        play.asks(f"a/{turn}", 100, now=20.0 * turn)
        play.ends(f"a/{turn}", prompt=100, now=20.0 * turn + 5, tool_calls=calls)  # tools take 15 s
    router = play.router
    assert isinstance(router, SagaRouter)
    due_s, usual_s = router.next_deadline_s(), router._tools["read"].quantile(0.5)
    assert due_s is not None and usual_s is not None
    assert usual_s == pytest.approx(15, rel=0.2)
    assert due_s == pytest.approx(165 + usual_s - prefill_s(LITTLE, 110), abs=1e-9)
    play.asks("b/0", 900, now=166.0)
    play.ends("b/0", prompt=900, output=200, now=167.0)
    (prefill,) = play.router.handle(ev.TimerFired(), now=due_s)
    assert isinstance(prefill, Prefill) and (prefill.turn, prefill.replica) == ("a/8", "r0")
    stop, arrived = play.router.handle(asked("a/9"), now=180.0)
    assert stop == StopPrefill(turn=RequestId("a/8")) and isinstance(arrived, Dispatch)


# --- Sutradhara ------------------------------------------------------------------------------------------


def test_sutradhara_runs_the_oldest_task_and_evicts_answers_before_tool_outputs():
    policy = Sutradhara()
    old, young = chat("old", 100, 200, arrival_s=1.0), chat("young", 100, arrival_s=2.0)
    assert policy.priority(engine_turn(old, 1, at_s=9.0), now=9.0) == 1_000
    waits, says = engine_turn(old, 0, at_s=1.0), engine_turn(young, at_s=5.0)
    assert policy.eviction_rank(says, now=9.0) < policy.eviction_rank(waits, now=9.0)
    later = engine_turn(chat("later", 100, 200), 0, at_s=8.0)
    assert policy.eviction_rank(waits, now=9.0) < policy.eviction_rank(later, now=9.0)
