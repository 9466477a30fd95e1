"""MARS, SAGA and Sutradhara as their papers have them, each against a case that was worked out by hand."""

import msgspec
import pytest

from gateway.core import events as ev
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId
from gateway.domain.request import ToolCall
from lab.simulator.baselines.mars import Coordinator, MarsRouter
from lab.simulator.baselines.router import Member, ReplicaBook
from lab.simulator.baselines.saga import Routing, Tenants, Worker
from lab.simulator.baselines.sutradhara import Sutradhara
from lab.simulator.engine.policy import Retained
from lab.workload.trace.format import Session
from tests.lab.simulator.baselines.router_play import Play
from tests.lab.simulator.baselines.turns import chat, engine_turn
from tests.lab.simulator.worlds import LITTLE


def report(used: float, preemptions: int = 0) -> ev.EngineReported:
    return ev.EngineReported(ReplicaId("r0"), EngineSignals(kv_used=used, preemptions=preemptions))


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


def test_mars_puts_the_longest_first_when_tools_slow_down():
    play = four()
    call = ToolCall(id="c", name="bash")
    for turn, tool_s in enumerate((1.0, 31.0)):  # the average goes from 1 s to 2.5 s, that of old to 1.15 s
        play.ends(f"a/{turn}", tool_calls=(call,), now=40.0 * turn)
        play.asks(f"a/{turn + 1}", now=40.0 * turn + tool_s)
    play.ends("b/0", tool_calls=(call,), now=80.0)
    play.asks("small/0", 100, now=81.0)
    play.asks("large/0", 900, now=81.0)
    assert play.over("c", now=82.0) == ["large/0 on r0"]


def test_mars_levels_are_by_footprint_then_by_service_and_waiting_promotes():
    policy = Coordinator(LITTLE)
    small, large = engine_turn(chat("small", 1_000)), engine_turn(chat("large", 20_000))
    assert (policy.level(small), policy.level(large)) == (0, 2)
    assert policy.priority(small, now=100.0) < policy.priority(large, now=100.0)
    assert policy.priority(engine_turn(large.session), now=70.0) < policy.priority(small, now=100.0)
    served = chat("served", 1_000, 9_000, 9_100)
    policy.retain_until(engine_turn(served, 0, began_s=0.0), now=1.0)
    policy.retain_until(engine_turn(served, 1, began_s=2.0), now=3.0)
    assert policy.level(engine_turn(served, 2)) == 1  # 10,020 tokens by now


def test_mars_releases_the_lowest_level_first_and_there_the_largest():
    policy = Coordinator(LITTLE)
    held = [
        Retained(turn=engine_turn(chat(name, tokens)), since_s=0.0, until_s=9.0, blocks=blocks)
        for name, tokens, blocks in (("high", 100, 50), ("low", 20_000, 5), ("lower", 20_001, 6))
    ]
    order = [each.turn.session.id for each in policy.release_order(held, now=1.0)]
    assert order == ["lower", "low", "high"]


# --- SAGA ------------------------------------------------------------------------------------------------


def test_saga_stays_below_its_threshold_and_moves_to_the_least_loaded_above():
    books = [ReplicaBook(replica=ReplicaId(name), kv_tokens=1_000) for name in "ab"]
    member = Member(name="s", arrived_s=0.0, threads={"": 700})
    member.book, books[0].members["s"] = books[0], member
    assert Routing().choose(member, books) is books[0]
    member.threads[""] = 801
    assert Routing().choose(member, books) is books[1]
    assert (books[0].members, list(books[1].members)) == ({}, ["s"])


def of_tenant(session: Session, tenant: str) -> Session:
    return msgspec.structs.replace(session, tenant=tenant)


def test_saga_shares_grow_with_every_open_task_and_diverge_at_the_deadline():
    tenants = Tenants(alpha=1.5)
    for name, tenant in (("a", "one"), ("b", "two"), ("c", "two")):
        tenants.turn_arrived(engine_turn(of_tenant(chat(name, 100), tenant)), now=0.0)
    # 30 s of work are expected of each, by 90 s.
    assert tenants.share("one", now=0.0) == pytest.approx(30 / 90)
    assert tenants.share("two", now=0.0) == pytest.approx(60 / 90)
    assert tenants.share("one", now=89.9) > 100
    worker = Worker(tenants)
    first = worker.priority(engine_turn(of_tenant(chat("d", 100), "two")), now=1.0)
    assert first < worker.priority(engine_turn(of_tenant(chat("e", 100), "one")), now=1.0)


def test_saga_evicts_first_what_is_large_idle_and_unlikely_to_come_back():
    worker = Worker(Tenants(alpha=1.5))
    loops = chat("loops", *range(100, 2_100, 100))
    for at in range(20):
        worker.priority(engine_turn(loops, at), now=float(at))
        worker.retain_until(engine_turn(loops, at), now=at + 0.5)
    pauses, over = engine_turn(chat("pauses", 500, 600)), engine_turn(chat("over", 500))
    for turn in (pauses, over):
        worker.priority(turn, now=30.0)
        worker.retain_until(turn, now=31.0)
    assert worker.eviction_rank(over, now=31.5) < worker.eviction_rank(pauses, now=31.5)
    larger = engine_turn(chat("larger", 1_500, 1_600), at_s=30.0)
    worker.retain_until(larger, now=31.0)
    assert worker.eviction_rank(larger, now=31.5) < worker.eviction_rank(pauses, now=31.5)


def test_saga_holds_for_what_its_tools_usually_take_and_less_under_pressure():
    worker = Worker(Tenants(alpha=1.5))
    turn = engine_turn(chat("s", 100, 200))
    assert worker.retain_until(turn, now=0.0) == 6.0  # nothing is known
    worker.kv_used = lambda: 0.9
    assert worker.retain_until(turn, now=0.0) == 3.0  # m = 1
    worker.kv_used = lambda: 0.8
    assert worker.retain_until(turn, now=0.0) == pytest.approx(4.5)
    assert worker.retain_until(engine_turn(chat("s", 100)), now=0.0) is None


# --- Sutradhara ------------------------------------------------------------------------------------------


def test_sutradhara_runs_the_oldest_task_and_evicts_answers_before_tool_outputs():
    policy = Sutradhara()
    old, young = chat("old", 100, 200, arrival_s=1.0), chat("young", 100, arrival_s=2.0)
    assert policy.priority(engine_turn(old, 1, at_s=9.0), now=9.0) == 1_000
    waits, says = engine_turn(old, 0, at_s=1.0), engine_turn(young, at_s=5.0)
    assert policy.eviction_rank(says, now=9.0) < policy.eviction_rank(waits, now=9.0)
    later = engine_turn(chat("later", 100, 200), 0, at_s=8.0)
    assert policy.eviction_rank(waits, now=9.0) < policy.eviction_rank(later, now=9.0)
