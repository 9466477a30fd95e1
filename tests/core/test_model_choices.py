"""Names of the operator's in the brain: a run stays on one model, and what it falls back to."""

import random
from collections import defaultdict
from math import sqrt
from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Publish
from gateway.core.sessions.publishing import Publishing
from gateway.domain import records as rec
from gateway.domain.decision import RefusalReason
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.model_choice import Fallback
from gateway.domain.request import Work
from gateway.domain.turn_trace import TurnTrace
from tests.core.playbook import (
    Playbook,
    arrived,
    at_once,
    down,
    failed,
    finished,
    first_token,
    left,
    nothing,
    refuse,
    session_finished,
    started,
    stated,
    up,
)
from tests.examples import examples

POOLS = ({"name": "big"}, {"name": "small"})
CANARY = {"name": "smart", "targets": [{"model": "B", "weight": 95}, {"model": "S", "weight": 5}]}
SAFE = {"name": "safe", "targets": [{"model": "B"}], "fallbacks": ["S"]}


def play_with(*models: dict[str, Any], replicas: str = "b s", **settings: Any) -> Playbook:
    play = Playbook(replicas="", pools=POOLS, models=list(models), **settings)
    for name in replicas.split():
        play >> up(name, pool="big" if name[0] == "b" else "small", models=(name[0].upper(),))
    return play


def sent(play: Playbook) -> tuple[str, str, str | None, Fallback | None]:
    """The next decision: who runs what, where, and why that."""
    told = play.take()
    assert isinstance(told, Dispatch), told
    return told.request, told.placement.replica, told.model, told.fallback


def asked(play: Playbook, request: str, model: str, session: str | None = None, **fields: Any) -> Any:
    if session is not None:
        fields["explicit"] = stated(session)
    _ = play >> arrived(request, model=model, **fields)
    return sent(play)


def test_without_a_table_nothing_is_said_of_models():
    play = play_with()
    assert asked(play, "r1", "B") == ("r1", "b", None, None)
    assert not play.seen(rec.ModelChosen)


def test_a_name_leads_to_a_model_and_its_pool():
    play = play_with(
        {"name": "smart", "targets": [{"model": "S"}]},
        {"name": "b", "targets": [{"model": "X", "pool": "big"}]},
    )
    assert asked(play, "r1", "smart") == ("r1", "s", "S", None)
    assert asked(play, "r2", "b") == ("r2", "b", "X", None)
    play >> arrived("r3", model="nobody") << refuse("r3", RefusalReason.UNKNOWN_MODEL)
    chosen = [(each.requested, each.model, each.fallback) for each in play.seen(rec.ModelChosen)]
    assert chosen == [("smart", "S", None), ("b", "X", None)]


def test_a_name_whose_model_nobody_serves_is_unknown():
    play = play_with({"name": "smart", "targets": [{"model": "gone"}]})
    play >> arrived("r1", model="smart") << refuse("r1", RefusalReason.UNKNOWN_MODEL)


def test_what_belongs_to_no_session_goes_to_the_heaviest():
    play = play_with(CANARY)
    for number in range(50):
        assert asked(play, f"r{number}", "smart", work=Work.POOL)[2] == "B"
        play >> started(f"r{number}") >> finished(f"r{number}")


def test_a_run_has_one_model_whatever_happens_to_it():
    """Many runs of several turns, with sub-agents that name themselves, side requests, turns that
    fail and are repeated, and replicas that come and go."""
    rng = random.Random(7)
    play = play_with(CANARY, replicas="b b2 s s2")
    models: dict[str, set[str]] = defaultdict(set)
    runs, turns = examples(2000), 0
    for run in range(runs):
        for turn in range(rng.randint(1, 4)):
            name = f"{run}.{turn}"
            who = stated(f"run-{run}")
            if turn and rng.random() < 0.4:
                who = stated(f"run-{run}-sub-{turn}", parent=f"run-{run}")
            play >> arrived(name, model="smart", explicit=who, tool_count=rng.choice([0, 3]))
            turns += 1
            told = play.take()
            while isinstance(told, Dispatch):
                assert told.model is not None and told.placement.replica[0] == told.model.lower()
                models[f"run-{run}"].add(told.model)
                if rng.random() < 0.9:
                    play >> at_once(name, *(["call"] if rng.random() < 0.5 else []))
                    break
                play >> failed(name)
                if not play.decisions:
                    play >> left(name)
                    break
                told = play.take()
        play >> session_finished(play.session.id)
        if rng.random() < 0.05:
            one = rng.choice(["b", "s"])
            play >> down(one)
            play >> up(one, pool="big" if one == "b" else "small", models=(one.upper(),))
    assert len(models) == runs and turns > 2 * runs
    assert len(play.seen(rec.SessionStarted)) == runs, "sub-agents belong to their parents' runs"
    assert all(len(each) == 1 for each in models.values())
    canaries = sum(each == {"S"} for each in models.values())
    assert abs(canaries - 0.05 * runs) < 4 * sqrt(runs * 0.05 * 0.95), canaries


def test_a_run_that_has_not_begun_falls_back_where_nobody_is_there():
    play = play_with(SAFE)
    play >> down("b")
    assert asked(play, "r1", "safe", "one") == ("r1", "s", "S", Fallback.OUTAGE)
    play >> started("r1") >> finished("r1") >> up("b", pool="big", models=("B",))
    assert asked(play, "r2", "safe", "one") == ("r2", "s", "S", Fallback.EARLIER), "it stays there"
    assert asked(play, "r3", "safe", "two") == ("r3", "b", "B", None)
    chosen = [(each.turn, each.model, each.fallback) for each in play.seen(rec.ModelChosen)]
    assert chosen == [("r1", "S", Fallback.OUTAGE), ("r2", "S", Fallback.EARLIER), ("r3", "B", None)]


def test_without_fallbacks_nobody_falls_back():
    play = play_with(CANARY, core={"no_replica_wait_s": 0})
    play >> down("b") >> down("s")
    play >> arrived("r1", model="smart") << refuse("r1", RefusalReason.NO_REPLICA)


def test_an_attempt_that_fails_goes_to_the_fallback_when_nobody_else_is_there():
    play = play_with(SAFE, replicas="b b2 s")
    assert asked(play, "r1", "safe")[1] == "b"
    play >> failed("r1")
    assert sent(play) == ("r1", "b2", "B", None), "first another replica of its own model"
    play >> failed("r1")
    assert sent(play) == ("r1", "s", "S", Fallback.OUTAGE)
    play >> failed("r1") << refuse("r1", RefusalReason.UPSTREAM_UNREACHABLE)


def test_a_run_that_has_begun_waits_and_is_refused():
    play = play_with(SAFE, core={"no_replica_wait_s": 5})
    assert asked(play, "r1", "safe", "one")[2] == "B"
    play >> at_once("r1") >> down("b")
    play >> arrived("r2", model="safe", explicit=stated("one")) << nothing
    play.later(5) << refuse("r2", RefusalReason.NO_REPLICA)


def test_a_run_that_has_begun_goes_on_elsewhere_if_the_operator_says_so():
    play = play_with({**SAFE, "fallback_mid_run": True}, core={"no_replica_wait_s": 5})
    assert asked(play, "r1", "safe", "one")[2] == "B"
    play >> at_once("r1") >> down("b")
    play >> arrived("r2", model="safe", explicit=stated("one")) << nothing
    play.later(5)
    assert sent(play) == ("r2", "s", "S", Fallback.OUTAGE)
    play >> at_once("r2") >> up("b", pool="big", models=("B",))
    assert asked(play, "r3", "safe", "one") == ("r3", "s", "S", Fallback.EARLIER)


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_turn_that_runs_or_ran_holds_its_run(is_begun):
    play = play_with(SAFE, core={"no_replica_wait_s": 5})
    assert asked(play, "r1", "safe", "one")[2] == "B"
    if is_begun:
        play >> started("r1") >> first_token("r1")
    play >> down("b")
    play >> arrived("r2", model="safe", explicit=stated("one")) << nothing
    if not is_begun:
        play >> failed("r1")
        assert sent(play) == ("r1", "s", "S", Fallback.OUTAGE)
        assert sent(play) == ("r2", "s", "S", Fallback.EARLIER), "it waited beside it"


def test_stored_state_stays_where_it_is():
    play = play_with({**SAFE, "fallback_mid_run": True}, core={"no_replica_wait_s": 0}, replicas="b b2 s")
    assert asked(play, "r1", "safe")[:3] == ("r1", "b", "B")
    play >> at_once("r1", state_ids=("resp_1",)) >> down("b")
    play >> arrived("r2", model="safe", state_ids=("resp_1",)) << refuse("r2", RefusalReason.NO_REPLICA)
    assert play.session.runs_on["safe"].target.model == "B"


def test_who_builds_on_stored_state_asks_for_what_its_replica_has():
    """Also where the session is forgotten and draws anew, or went on elsewhere."""
    play = play_with({"name": "half", "targets": [{"model": "B"}, {"model": "S"}]})
    for number in range(20):
        _, replica, model, _ = asked(play, f"r{number}", "half")
        play >> at_once(f"r{number}", state_ids=(f"resp_{number}",)) >> session_finished(play.session.id)
        assert asked(play, f"r{number}-b", "half", state_ids=(f"resp_{number}",))[1:3] == (replica, model)
        play >> at_once(f"r{number}-b") >> session_finished(play.session.id)


def test_an_old_response_is_built_on_where_it_is_though_the_run_went_elsewhere():
    play = play_with({**SAFE, "fallback_mid_run": True}, core={"no_replica_wait_s": 0})
    for request, replica in (("r1", "b"), ("r2", "s")):
        assert asked(play, request, "safe", "one")[1] == replica
        play >> at_once(request, state_ids=(f"resp_{request}",)) >> down("b")
    play >> up("b", pool="big", models=("B",))
    for old, place in (("r1", ("b", "B")), ("r2", ("s", "S"))):
        assert asked(play, f"{old}-b", "safe", "one", state_ids=(f"resp_{old}",))[1:3] == place
        play >> at_once(f"{old}-b")


def test_who_waited_for_long_falls_back_to_where_there_is_room():
    play = play_with({**SAFE, "fallback_after_s": 2}, max_running_per_replica=1)
    play.arrives("r1", model="B")
    play >> arrived("r2", model="safe") << nothing
    play.later(1.5) << nothing
    play.later(0.5)
    assert sent(play) == ("r2", "s", "S", Fallback.OVERLOAD)
    play >> arrived("r3", model="safe") << nothing
    play.later(2) << nothing
    assert play.brain.next_deadline_s() is not None
    play >> left("r1")
    assert sent(play) == ("r3", "b", "B", None), "there was no room elsewhere, so it kept its place"
    play >> arrived("r4", model="safe") << nothing
    play.later(2) << nothing
    play.later(48) << refuse("r4", RefusalReason.QUEUE_TIMEOUT)


def test_who_would_be_refused_falls_back_at_last():
    play = play_with(SAFE, max_running_per_replica=1)
    play.arrives("r1", model="B")
    play >> arrived("r2", model="safe") << nothing
    play.later(49) << nothing
    play.later(1)
    assert sent(play) == ("r2", "s", "S", Fallback.OVERLOAD)


def test_a_run_that_has_begun_is_patient():
    play = play_with({**SAFE, "fallback_after_s": 2}, max_running_per_replica=1)
    assert asked(play, "r1", "safe", "one")[2] == "B"
    play >> arrived("r2", model="safe", explicit=stated("one")) << nothing
    play.later(2) << nothing
    play >> at_once("r1")
    assert sent(play) == ("r2", "b", "B", None)


def test_a_full_waiting_room_is_overload_and_a_quota_is_not():
    play = play_with(SAFE, max_running_per_replica=1, max_waiting=0)
    play.arrives("r1", model="B")
    assert asked(play, "r2", "safe") == ("r2", "s", "S", Fallback.OVERLOAD)
    play >> arrived("r3", model="safe") << refuse("r3", RefusalReason.QUEUE_FULL)


def test_a_fallback_may_be_another_name_and_what_is_out_is_passed_over():
    tiny = {"name": "tiny", "targets": [{"model": "S"}]}
    play = play_with({**SAFE, "fallbacks": ["B", "nobody", "tiny"]}, tiny)
    assert asked(play >> down("b"), "r1", "safe") == ("r1", "s", "S", Fallback.OUTAGE)


def test_another_gateway_goes_on_with_the_same_model():
    """By its trace, also where it fell back."""
    first = play_with({**SAFE, **CANARY, "fallbacks": ["S"]})
    first.brain.sessions.publishing = Publishing(first.brain.sessions.sessions)
    first >> down("b")
    traces = []
    for number in range(40):
        request = f"r{number}"
        assert asked(first, request, "smart", f"run-{number}")[2] == "S"
        commands = first.brain.handle(at_once(request), now=first.now)
        traces += [each.trace for each in commands if isinstance(each, Publish) and each.trace is not None]
    assert len(traces) == 40
    second = play_with({**SAFE, **CANARY, "fallbacks": ["S"]})
    for number, trace in enumerate(traces):
        wire = msgspec.msgpack.encode(trace)
        second >> ev.SessionAdopted(msgspec.msgpack.decode(wire, type=TurnTrace))
        assert asked(second, f"r{number}-b", "smart", f"run-{number}")[2] == "S"


def test_a_model_that_is_in_the_table_no_more_is_drawn_anew():
    play = play_with(SAFE)
    play.arrives("r1", model="safe", explicit=stated("one"))
    play >> at_once("r1")
    session = play.session
    session.runs_on["safe"].target = msgspec.structs.replace(session.runs_on["safe"].target, model="old")
    assert asked(play, "r2", "safe", "one")[2] == "B"


# --- adapters that come and go --------------------------------------------------------------------


def listing(name: str, *models: str) -> ev.ReplicaCameUp:
    return up(name, pool="pool", models=("base", *models))


def on(play: Playbook) -> str:
    return sent(play)[1]


def test_an_adapter_that_comes_to_a_free_replica_lets_in_who_waits_for_it():
    play = Playbook(replicas="", max_running_per_replica=1)
    play >> listing("a", "lora") >> listing("b") >> listing("c")
    play >> arrived("r1", model="lora")
    assert on(play) == "a"
    play >> arrived("r2", model="lora") << nothing
    play >> listing("b", "lora")
    assert on(play) == "b"


def test_who_waits_for_a_model_of_all_waits_for_those_that_keep_it():
    play = Playbook(replicas="", max_running_per_replica=1)
    play >> listing("a", "lora") >> listing("b", "lora")
    for request in ("r1", "r2"):
        play.arrives(request, model="base")
    play >> arrived("r3", model="lora") << nothing
    play >> listing("a") >> left("r1") << nothing
    play >> left("r2")
    assert on(play) == "b"
    play >> listing("b") >> arrived("r4", model="lora")
    assert on(play) == "a", "nobody lists it, and backends judge names themselves"


def test_random_adapters_are_never_asked_for_where_they_are_not():
    rng = random.Random(3)
    play = Playbook(replicas="", max_running_per_replica=2)
    listed: dict[str, set[str]] = {"a": {"x"}, "b": {"y"}, "c": set()}
    for name, models in listed.items():
        play >> listing(name, *sorted(models))
    running: list[str] = []
    asked: dict[str, str] = {}

    def look() -> None:
        while play.decisions:
            told = play.take()
            if not isinstance(told, Dispatch):
                continue
            running.append(told.request)
            model, place = asked[told.request], told.placement.replica
            is_listed = any(model in each for each in listed.values())
            assert model in listed[place] or not is_listed, (model, place)

    for number in range(examples(1000)):
        if rng.random() < 0.1:
            one, model = rng.choice(sorted(listed)), rng.choice("xy")
            listed[one] ^= {model}
            play >> listing(one, *sorted(listed[one]))
        elif rng.random() < 0.55 or not running:
            asked[f"r{number}"] = rng.choice("xy")
            play >> arrived(f"r{number}", model=asked[f"r{number}"])
        else:
            play >> at_once(running.pop(rng.randrange(len(running))))
        look()
    assert len(asked) > examples(400)


def test_an_adapter_goes_where_it_has_a_place():
    play = Playbook(replicas="", have_homes=True)
    facts = [
        ReplicaFacts(id=ReplicaId(name), pool=PoolId("pool"), models=("x", "y"), adapters=("x", "y"))
        for name in "ab"
    ]
    for each in facts:
        play >> ev.ReplicaCameUp(each) >> ev.EngineReported(each.id, EngineSignals(most_adapters=1))
    places = []
    for number, model in enumerate("xyxyxyxy"):
        play >> arrived(f"r{number}", model=model, body_bytes=4000)
        places.append(on(play))
    assert places == [places[0], places[1]] * 4 and places[0] != places[1]
    for number in range(8):
        play >> at_once(f"r{number}")
    assert not play.brain.fleet.adapters.running
