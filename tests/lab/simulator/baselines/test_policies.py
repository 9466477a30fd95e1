"""Every engine policy against a case that was worked out by hand, asked as an engine would ask it."""

import math

import msgspec
import pytest

from gateway.cost.roofline import prefill_s
from lab.simulator.baselines.belady import Belady
from lab.simulator.baselines.by_order import OldestFirst, SmallestFirst
from lab.simulator.baselines.continuum import (
    DynamicTtl,
    FixedTtl,
    Memoryfulness,
    ProgramOrder,
    best_ttl_s,
)
from lab.simulator.baselines.infercept import InferCept
from lab.simulator.baselines.kvflow import KvFlow
from lab.simulator.baselines.pauses import gap_s, steps_to_next
from lab.simulator.baselines.plas import Plas
from lab.simulator.engine.policy import Retained
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from tests.lab.simulator.baselines.turns import chat, engine_turn
from tests.lab.simulator.worlds import LITTLE


def _end(policy, turn, *, began_s, end_s):
    turn.began_s = began_s
    return policy.retain_until(turn, now=end_s)


def test_oldest_first_is_by_the_session_and_smallest_first_by_the_prompt():
    old, young = chat("old", 100, 900, arrival_s=1.0), chat("young", 50, arrival_s=2.5)
    late, early = engine_turn(old, 1, at_s=9.0), engine_turn(young, at_s=2.5)
    assert OldestFirst().priority(late, now=9.0) == 1000
    assert OldestFirst().priority(early, now=9.0) == 2500
    assert SmallestFirst().priority(late, now=9.0) == 900
    assert SmallestFirst().priority(early, now=9.0) == 50


def test_plas_puts_the_program_with_the_least_service_first():
    policy = Plas(levels=0, first_s=1.0, beta=4.0)
    served, fresh = chat("a", 10, 20, 30, 40), chat("b", 10)
    first = engine_turn(served, 0)
    assert policy.priority(first, now=0.0) == 0
    _end(policy, first, began_s=1.0, end_s=4.0)  # 3 s of service; the second of waiting is none
    second = engine_turn(served, 1, at_s=5.0)
    assert policy.priority(second, now=5.0) == 3000
    _end(policy, second, began_s=5.0, end_s=5.5)
    assert policy.priority(engine_turn(served, 2, at_s=6.0), now=6.0) == 3500
    assert policy.priority(engine_turn(fresh, at_s=6.0), now=6.0) == 0


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


def test_plas_forgets_a_program_that_is_over():
    policy = Plas(levels=0, first_s=1.0, beta=1.0)
    only = engine_turn(chat("a", 10))
    policy.priority(only, now=0.0)
    _end(policy, only, began_s=0.0, end_s=9.0)
    assert not policy._programs


def _family() -> Session:
    """The first turn starts a sub-agent of three turns, each with a tool of 2 s and a pause of 1 s before."""
    sub = tuple(
        Turn(input_tokens=10, output_tokens=1, tools=(Tool(name="t", duration_s=2.0),), pause_s=1.0)
        for _ in range(3)
    )
    main = (
        Turn(
            input_tokens=10,
            output_tokens=1,
            tools=(
                Tool(name="task", duration_s=0.5, starts_thread=1),
                Tool(name="short", duration_s=0.1),
                Tool(name="own", duration_s=0.0, starts_thread=2, is_detached=True),
            ),
        ),
        Turn(input_tokens=20, output_tokens=1, pause_s=4.0),
    )
    return Session(id="f", threads=(Thread(turns=main), Thread(turns=sub), Thread(turns=sub * 5)))


def test_pauses_and_steps_look_through_sub_agents_that_are_waited_for():
    family = _family()
    # The sub-agent: 1 s before it starts, 2 × (2 + 1) s between its turns; 0.5 s after it, 4 s of pause.
    assert gap_s(family, TurnRef(0, 0)) == pytest.approx(1 + 6 + 0.5 + 4)
    assert gap_s(family, TurnRef(0, 1)) is None
    assert gap_s(family, TurnRef(1, 0)) == 3.0
    assert steps_to_next(family, TurnRef(0, 0)) == 4  # three of the sub-agent, and its own
    assert steps_to_next(family, TurnRef(1, 0)) == 1
    assert steps_to_next(family, TurnRef(1, 2)) is None


def test_kvflow_evicts_what_is_over_then_what_is_far_then_what_is_old():
    family, other = _family(), chat("o", 10, 20)
    over = engine_turn(family, 1)
    waits_for_three = engine_turn(family, 0, at_s=50.0)
    old, recent = engine_turn(other, 0, at_s=1.0), engine_turn(other, 0, at_s=2.0)
    rank = {id(t): KvFlow().eviction_rank(t, now=60.0) for t in (recent, old, waits_for_three, over)}
    order = sorted((over, waits_for_three, old, recent), key=lambda turn: rank[id(turn)])
    assert order == [over, waits_for_three, old, recent]
    assert rank[id(over)] == -math.inf


def test_belady_evicts_what_is_needed_last():
    policy = Belady()
    soon, late, over = chat("s", 10, 20, tool_s=2.0), chat("l", 10, 20, tool_s=30.0), chat("x", 10)
    turns = {name: engine_turn(session) for name, session in (("s", soon), ("l", late), ("x", over))}
    for turn in turns.values():
        policy.priority(turn, now=0.0)
        _end(policy, turn, began_s=0.0, end_s=10.0)
    ranks = {name: policy.eviction_rank(turn, now=11.0) for name, turn in turns.items()}
    assert ranks == {"s": -12.0, "l": -40.0, "x": -math.inf}
    policy.priority(engine_turn(late, 1), now=20.0)  # it is back, and waits: needed now
    assert policy.eviction_rank(turns["l"], now=21.0) == pytest.approx(-21.0)
    policy.priority(engine_turn(soon, 1), now=20.5)  # and another one behind it
    waiting = [policy.eviction_rank(turns[name], now=21.0) for name in ("s", "l")]
    assert waiting[0] < waiting[1]  # who is served last is evicted first


def _retained(turn, *, since_s=0.0, until_s=99.0, blocks=1):
    return Retained(turn=turn, since_s=since_s, until_s=until_s, blocks=blocks)


def test_infercept_preserves_until_that_has_wasted_as_much_as_computing_again():
    policy = InferCept(LITTLE, estimate="elapsed", can_swap=False)
    mine, other = engine_turn(chat("m", 1000, 2000, output=24)), engine_turn(chat("o", 500, 600), began_s=0.0)
    policy.priority(mine, now=0.0)
    policy.priority(other, now=0.0)
    until_s = _end(policy, mine, began_s=0.0, end_s=10.0)
    # Computing 1024 tokens again takes T; meanwhile half of them are there on average, and 500 of others
    # wait: T · (512 + 500) token-seconds. Preserving costs 1024 token-seconds a second.
    assert until_s == pytest.approx(10.0 + prefill_s(LITTLE, 1024) * (512 + 500) / 1024)
    assert (
        policy.release_order([_retained(mine, since_s=5.0), _retained(other, since_s=2.0)], now=9.0)[
            0
        ].since_s
        == 2.0
    )


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


def test_infercept_learns_the_mean_and_never_holds_the_last_turn():
    policy = InferCept(LITTLE, estimate="mean", can_swap=False)
    session = chat("m", 1000, 1100, 1200, output=24)
    for at, came_back_s in ((0, 0.0), (1, 100.0)):  # the tool took 99 s
        turn = engine_turn(session, at)
        policy.priority(turn, now=came_back_s)
        held = _end(policy, turn, began_s=came_back_s, end_s=came_back_s + 1.0)
        assert (held is not None) == (at == 0)  # nothing known at first; then far too long
    last = engine_turn(session, 2)
    policy.priority(last, now=200.0)
    assert _end(policy, last, began_s=200.0, end_s=201.0) is None
    assert not policy._inside


def test_a_fixed_ttl_holds_after_every_turn_but_the_last_and_not_for_slow_tools():
    policy = FixedTtl(2.0, skips_slow=True)
    session = chat("m", 10, 20, 30, 40)
    assert policy.retain_until(engine_turn(session, 0), now=5.0) == 7.0
    policy.priority(engine_turn(session, 1), now=10.0)  # it took 5 s
    assert policy.retain_until(engine_turn(session, 1), now=11.0) is None  # slower than the TTL, on average
    assert policy.retain_until(engine_turn(session, 3), now=20.0) is None  # the last
    patient = FixedTtl(2.0, skips_slow=False)
    patient.retain_until(engine_turn(session, 0), now=5.0)
    patient.priority(engine_turn(session, 1), now=10.0)
    assert patient.retain_until(engine_turn(session, 1), now=11.0) == 13.0


def test_programs_run_in_order_of_arrival_but_for_those_that_are_held():
    policy = ProgramOrder(2.0, skips_slow=False)
    old, young = chat("o", 10, 20, 30, arrival_s=1.0), chat("y", 10, 20, arrival_s=2.0)
    policy.retain_until(engine_turn(old, 0), now=10.0)
    policy.retain_until(engine_turn(young, 0), now=11.0)
    waits = policy.priority(engine_turn(old, 1), now=12.5)  # held until 12
    held = policy.priority(engine_turn(young, 1), now=12.5)  # held until 13
    assert waits == 1000
    assert held == 2000 - 10**12
    latest_first = policy.release_order([_retained(engine_turn(old)), _retained(engine_turn(young))], now=1.0)
    assert [each.turn.session.id for each in latest_first] == ["y", "o"]


def test_the_best_ttl_gains_the_most():
    # Of four durations: 1 s gains ½ · w − 1, 2 s gains ¾ · w − 2, 9 s gains w − 9.
    durations = [1.0, 1.0, 2.0, 9.0]
    assert best_ttl_s(durations, 1.9) == 0.0  # even the first costs more than it brings
    assert best_ttl_s(durations, 3.0) == 1.0
    assert best_ttl_s(durations, 5.0) == 2.0  # 1.75 against 1.5
    assert best_ttl_s(durations, 40.0) == 9.0  # 31 against 28


def test_memoryfulness_is_one_for_equal_programs_and_less_for_unequal_ones():
    alike = Memoryfulness()
    assert alike.eta == 1.0
    for _ in range(3):
        alike.program_over(4)
    assert alike.eta == pytest.approx(1.0)
    mixed = Memoryfulness()
    mixed.program_over(1)
    mixed.program_over(3)
    # (k, N − k): (1,0) (1,2) (2,1) (3,0). Means 7/4 and 3/4; n² cov = 4·4 − 7·3 = −5; variances 4·15 − 49 =
    # 11 and 4·5 − 9 = 11. η = 5/11.
    assert mixed.eta == pytest.approx(5 / 11)


def test_a_dynamic_ttl_counts_waiting_and_computing_again():
    policy = DynamicTtl(2.0, reload_s=lambda tokens: tokens / 100, few=2)
    session = chat("m", 90, 190, 290, 390, 490)
    now = 0.0
    for at, pause_s in enumerate((1.0, 4.0, 30.0)):
        turn = engine_turn(session, at, at_s=now)
        policy.priority(turn, now=now)
        assert _end(policy, turn, began_s=now, end_s=now) == now + 2.0  # too little is known: the fixed one
        now += pause_s
        policy.priority(engine_turn(session, at + 1, at_s=now), now=now)
        policy._ended.clear()
    turn = engine_turn(session, 3, at_s=now)
    # 400 tokens are worth 4 s: 1 s gains ⅓ · 4 − 1, 4 s gains ⅔ · 4 − 4 < 0. Nobody waited yet.
    assert _end(policy, turn, began_s=now, end_s=now) == now + 1.0
    for turns in (1, 3):
        policy._memoryfulness.program_over(turns)  # η = 5/11, as above
    policy._wait_s = 36.0 * 11 / 5
    # T_wait · η + reload = 36 + 4: 4 s gains ⅔ · 40 − 4 = 22.7, 30 s 10. (With η = 1 it would be 30 s.)
    assert _end(policy, turn, began_s=now, end_s=now) == now + 4.0


def test_a_dynamic_ttl_learns_how_long_those_wait_who_lost_their_kv():
    policy = DynamicTtl(2.0, reload_s=lambda tokens: 1.0, few=100)
    session = chat("m", 100, 200, 300)
    lost = engine_turn(session, 1, at_s=0.0)
    _end(policy, lost, began_s=50.0, end_s=60.0)
    assert policy._wait_s == pytest.approx(0.5)  # 1 % of the way from 0 to 50
    kept = msgspec.structs.replace(lost, cached_tokens=110)
    _end(policy, kept, began_s=90.0, end_s=99.0)
    assert policy._wait_s == pytest.approx(0.5)
