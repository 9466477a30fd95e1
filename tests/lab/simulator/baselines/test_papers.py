"""MARS, SAGA and Sutradhara as their papers have them, each against a case that was worked out by hand."""

from gateway.core import events as ev
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.mars import MarsRouter
from lab.simulator.baselines.router import Member, ReplicaBook
from lab.simulator.baselines.saga import Routing
from lab.simulator.baselines.sutradhara import Sutradhara
from tests.lab.simulator.baselines.router_play import Play
from tests.lab.simulator.baselines.turns import engine_turn
from tests.lab.workload.trace.made import session as chat


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


# --- SAGA ------------------------------------------------------------------------------------------------


def test_saga_stays_below_its_threshold_and_moves_to_the_least_loaded_above():
    books = [ReplicaBook(replica=ReplicaId(name), kv_tokens=1_000) for name in "ab"]
    member = Member(name="s", arrived_s=0.0, threads={"": 700})
    member.book, books[0].members["s"] = books[0], member
    assert Routing().choose(member, books) is books[0]
    member.threads[""] = 801
    assert Routing().choose(member, books) is books[1]
    assert (books[0].members, list(books[1].members)) == ({}, ["s"])


# --- Sutradhara ------------------------------------------------------------------------------------------


def test_sutradhara_runs_the_oldest_task_and_evicts_answers_before_tool_outputs():
    policy = Sutradhara()
    old, young = chat("old", 100, 200, arrival_s=1.0), chat("young", 100, arrival_s=2.0)
    assert policy.priority(engine_turn(old, 1, at_s=9.0), now=9.0) == 1_000
    waits, says = engine_turn(old, 0, at_s=1.0), engine_turn(young, at_s=5.0)
    assert policy.eviction_rank(says, now=9.0) < policy.eviction_rank(waits, now=9.0)
    later = engine_turn(chat("later", 100, 200), 0, at_s=8.0)
    assert policy.eviction_rank(waits, now=9.0) < policy.eviction_rank(later, now=9.0)
