"""Explanations: what was known, what was decided, why, and what else there was."""

import random
from typing import Any

from gateway.core.events import ReplicaCameUp, ReplicaDrained, TimerFired
from gateway.dashboard.explain import Explainer
from gateway.dashboard.sentences import BEHIND
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId
from gateway.domain.request import Usage
from tests.core.playbook import (
    Playbook,
    arrived,
    at_once,
    cut,
    down,
    failed,
    finished,
    first_token,
    left,
    started,
    stated,
)


def explain(play: Playbook, turn: str):
    running = {state.facts.id: state.running for state in play.brain.fleet if state.is_up}
    explainer = Explainer(RequestId(turn), running)
    records = play.records[::-1]
    for start in range(0, len(records), 7):
        explainer.read(records[start : start + 7])
    return explainer.explanation()


def test_a_turn_that_went_at_once():
    play = Playbook(replicas="a b")
    play.arrives("r1", explicit=stated("one"), body_bytes=4000, stream=True)
    play.arrives("r2", explicit=stated("two"), body_bytes=4000, stream=True)
    told = explain(play, "r2")
    assert told.known.turn == "r2" and told.decided.outcome == "dispatched"
    assert (told.decided.replica, told.decided.attempts, told.decided.queue_ms) == ("b", 1, 0.0)
    waited, placed = told.why[:2]
    assert waited.startswith("It did not wait") and placed.startswith("It went to b: its session has no home")
    [other] = told.alternatives
    assert (other.replica, other.running) == ("a", 1) and "1 turns ran there, 0" in other.why_not
    assert other.first_token_ms is not None and other.completion_ms > other.first_token_ms
    assert [type(record) for record in told.records] == [rec.TurnArrived, rec.Routed, rec.GpuSubmit]
    assert told.became is None


def test_loads_are_those_of_then():
    rng = random.Random(3)
    play = Playbook(replicas="a b c")
    live: list[str] = []
    loads = {}
    for number in range(60):
        if live and rng.random() < 0.5:
            gone = live.pop(rng.randrange(len(live)))
            play >> started(gone) >> finished(gone)
            continue
        name = f"r{number}"
        loads[name] = {state.facts.id: state.running for state in play.brain.fleet}
        play.arrives(name, explicit=stated(name))
        live.append(name)
    for name, then in loads.items():
        told = explain(play, name)
        seen = {other.replica: other.running for other in told.alternatives}
        assert seen == {replica: count for replica, count in then.items() if replica != told.decided.replica}


def test_why_it_waited():
    play = Playbook(max_running_per_replica=1)
    play.arrives("r1", explicit=stated("one"))
    play >> arrived("r2", explicit=stated("two"))
    told = explain(play, "r2")
    assert told.decided.outcome == "waiting"
    assert told.why[0] == (
        "It waits: all replicas that could run it were at `max_running_per_replica` (`concurrency_full`) "
        "(nobody else queued)."
    )
    play.now += 2.5
    play >> started("r1") >> finished("r1")
    play.take()
    told = explain(play, "r2")
    assert told.why[0].startswith("It waited 2500 ms: all replicas") and told.decided.queue_ms == 2500.0


def test_behind_others_names_also_what_the_first_of_them_waits_for():
    play = Playbook(admission={"policy": "session-cap", "session_cap": 1})
    play.arrives("r0", explicit=stated("s0"))
    play >> arrived("r1", explicit=stated("s1")) >> arrived("r2", explicit=stated("s2"))
    waits = [(each.reason.value, each.first and each.first.value) for each in play.seen(rec.TurnWaited)]
    assert waits == [("window_full", None), ("behind_others", "window_full")]
    assert (
        explain(play, "r2")
        .why[0]
        .startswith(
            "It waits: other sessions waited already (`behind_others`); "
            "the first of them: as many sessions were admitted as the limit allows (`window_full`) ("
        )
    )


def test_the_window_is_that_of_the_decision():
    play = Playbook(admission={"policy": "session-cap", "session_cap": 1})
    told_of: dict[str, Any] = {
        "pool": PoolId("pool"), "kv_budget": None, "admitted": 1, "waiting": 0, "demand": 0.0,
        "gpu_pressure": 1.5, "cpu_pressure": 0.1,
    }  # fmt: skip
    play.records += [
        WindowUpdated(at_s=at, sessions=1.0, reason=why, **told_of)
        for at, why in ((1.0, "older"), (2.0, "state_lost"))
    ]
    play.arrives("r1", explicit=stated("one"))
    play >> arrived("r2", explicit=stated("two"))
    play.records.append(WindowUpdated(at_s=9.0, sessions=2.0, reason="later", **told_of))
    told = explain(play, "r2")
    assert told.window is not None and told.window.reason == "state_lost"
    assert (
        "as many sessions were admitted as the limit allows" in told.why[0]
        and "sessions returned, and their KV cache was gone (`state_lost`); GPU pressure 1.50" in told.why[0]
    )


def test_what_keeps_a_session_out_is_told_in_figures_and_what_lets_it_in():
    play = Playbook(admission={"policy": "session-cap", "session_cap": 1})
    play.arrives("r-one", explicit=stated("one"))
    play >> arrived("r-two", explicit=stated("two")) >> arrived("r-three", explicit=stated("three"))
    (first,) = (line for line in explain(play, "r-two").why if "over a limit" in line)
    assert "2 admitted sessions with it, and the limit is 1" in first
    (second,) = (line for line in explain(play, "r-three").why if "over a limit" in line)
    assert "2 admitted sessions with whoever is next" in second
    assert "When it came 1 waited already" in second
    assert not any("over a limit" in line for line in explain(play, "r-one").why)


def test_a_refusal_and_an_attempt_that_failed():
    play = Playbook(max_running_per_replica=1, max_waiting=0)
    play.arrives("r1", explicit=stated("one"))
    play.arrives("r2", explicit=stated("two"))
    told = explain(play, "r2")
    assert (told.decided.outcome, told.decided.refusal) == ("refused", "queue_full")
    why = "It was refused after 0 ms: the waiting room was full (`queue_full`). Its answer: All"
    assert told.why[-1].startswith(why) and told.alternatives == []

    play = Playbook(replicas="a b")
    play.arrives("r1", explicit=stated("one"))
    play >> failed("r1")
    play.take()
    play >> started("r1") >> first_token("r1") >> finished("r1", usage=Usage(prompt_tokens=9))
    told = explain(play, "r1")
    assert told.decided.attempts == 2 and told.decided.reason == "retried_elsewhere"
    assert told.why[1].startswith("a was tried, and failed") and told.why[2].startswith("It went to b")
    assert told.became.usage.prompt_tokens == 9


def test_who_could_not_be_used_is_named_and_no_limit_is_shown():
    play = Playbook(replicas="a b")
    play >> down("a") >> down("b")
    play >> arrived("r1", explicit=stated("one"))
    play.now += 3600.0
    play >> TimerFired()
    (limited, unusable, *_) = explain(play, "r1").why
    assert unusable == "Not usable then: b: down, does not answer; a: down, does not answer."
    assert "Limit" not in limited and "no_replica" in limited
    play = Playbook(replicas="a b c")
    play >> ReplicaDrained(ReplicaId("b"), is_draining=True)
    play.arrives("r2", explicit=stated("two"))
    (other,) = explain(play, "r2").alternatives
    assert other.replica == "c", "who could not be used is no alternative"
    play = Playbook(replicas="a b c")
    for name in "cccaaa":  # c is ejected; a fails, and stays
        play.brain.fleet.health.ended(RequestId(name), ReplicaId(name), failed=True, now=play.now)
    play.arrives("r3", explicit=stated("three"))
    play.arrives("r4", explicit=stated("four"))
    told = explain(play, "r4")
    assert {told.decided.replica, *(each.replica for each in told.alternatives)} == {"a", "b"}


def test_an_answer_that_broke_off_names_its_replica():
    play = Playbook()
    play.begins("r1", explicit=stated("one")) >> first_token("r1") >> cut("r1")
    assert explain(play, "r1").why[1].startswith("a broke its answer off after")


def test_what_is_put_behind_others_is_told():
    play = Playbook(admission={"policy": "sessions"})
    with_plugin = Abilities(turnpike_hints=True)
    play >> ReplicaCameUp(ReplicaFacts(id=ReplicaId("a"), pool=PoolId("pool"), abilities=with_plugin))
    for name, is_background in (("person", False), ("batch", True)):
        play.arrives(name, explicit=stated(name), is_background=is_background)
    assert [name for name in ("person", "batch") if BEHIND in explain(play, name).why] == ["batch"]


def test_what_is_not_in_the_stream_is_not_known():
    assert explain(Playbook(), "r1") is None


def test_who_left_while_it_waited():
    play = Playbook(max_running_per_replica=1)
    play.arrives("r1", explicit=stated("one"))
    play >> arrived("r2", explicit=stated("two"))
    play.now += 3.0
    play >> left("r2")
    told = explain(play, "r2")
    assert (told.decided.outcome, told.decided.queue_ms) == ("left", 3000.0)
    waited, left_ = told.why[:2]
    assert waited.startswith("It waited 3000 ms") and left_ == "Its client went away while it waited."


def test_a_turn_beyond_a_bound_says_which():
    play = Playbook(bounds=[{"name": "short", "turns": 1, "action": "warn"}])
    for request in ("r1", "r2"):
        play.arrives(request, explicit=stated("x"))
        play >> at_once(request)
    assert (
        "It was beyond the bound short: 2 turns, of 1; its client got a warning." in explain(play, "r2").why
    )
