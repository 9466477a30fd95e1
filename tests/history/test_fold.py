"""The stream, folded into turns, sessions and moments."""

from typing import get_args

import msgspec

from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId
from gateway.history import fold as module
from gateway.history.fold import MAX_LOADS, MAX_RECORDS, MAX_TOLD_BYTES, Fold
from gateway.history.packing import SHAPE, unpack
from tests.history.lives import A, B, arrival, begun, ended, refused, sent, whole

UP = {A: 0, B: 0}


def records_of(row):
    _, packed, session, _ = msgspec.msgpack.decode(row.told)
    return unpack(packed, SHAPE, turn=row.turn, session=session)


def test_a_turn_is_handed_out_once_with_all_that_was_said_at_its_end():
    fold, life = Fold(), begun("s", 1.0) + whole("r1", "s", 1.0)
    fold.take(life[:-1], UP)
    assert fold.finished().turns == [], "its tools may still be told of"
    fold.take(life[-1:], UP)
    [row] = fold.finished().turns
    assert records_of(row) == life
    assert (row.turn, row.session, row.tenant, row.model, row.replica) == ("r1", "s", "t", "m", "a")
    assert (row.arrived_s, row.ended_s, row.queue_ms, row.first_ms, row.run_ms) == (
        1.0,
        2.0,
        20.0,
        500.0,
        1000.0,
    )
    assert row.outcome == "finished" and not any(fold.finished())
    late = rec.ToolTimed(at_s=9.0, turn=RequestId("r1"), session=SessionId("s"), name="bash", duration_ms=3.0)
    fold.take([late], UP)
    [(turn, told)] = fold.finished().late
    assert turn == "r1" and unpack(
        msgspec.msgpack.decode(told)[1], SHAPE, turn=late.turn, session=late.session
    ) == [late]


def test_loads_are_those_when_it_was_sent():
    fold = Fold()
    fold.take([], {A: 2, B: 5})
    fold.take(
        [arrival("r1", "s", 1.0), *sent("r1", "s", 1.0), arrival("r2", "s2", 1.0), *sent("r2", "s2", 1.1)], UP
    )
    fold.take([*ended("r1", "s", 2.0), *ended("r2", "s2", 2.0)], UP)
    fold.finished()
    loads = [msgspec.msgpack.decode(row.told)[3] for row in fold.finished().turns]
    assert loads == [{"a": 2, "b": 5}, {"a": 3, "b": 5}]


def test_of_a_large_fleet_the_least_loaded_and_its_own():
    fold, fleet = Fold(), {ReplicaId(f"r{n}"): n for n in range(300)}
    fold.take([], fleet)
    busiest = ReplicaId("r299")
    fold.take(
        [
            arrival("t", "s", 1.0),
            *sent("t", "s", 1.0, replica=busiest),
            *ended("t", "s", 2.0, replica=busiest),
        ],
        fleet,
    )
    fold.finished()
    [row] = fold.finished().turns
    loads = msgspec.msgpack.decode(row.told)[3]
    assert len(loads) == MAX_LOADS and loads["r299"] == 299 and loads["r0"] == 0


def test_a_failed_attempt_is_no_end():
    fold = Fold()
    fold.take([arrival("r", "s", 1.0), *sent("r", "s", 1.0), *ended("r", "s", 2.0, outcome="failed")], UP)
    fold.take([*sent("r", "s", 2.1, replica=B), *ended("r", "s", 3.0, replica=B)], UP)
    fold.finished()
    [row] = fold.finished().turns
    assert row.outcome == "finished" and row.replica == "b" and row.ended_s == 3.0


def test_sessions_are_told_as_what_is_new_of_them():
    fold = Fold()
    fold.take(begun("s", 1.0, parent="p") + whole("r1", "s", 1.0) + refused("r2", "s", 3.0), UP)
    [row] = fold.finished().sessions
    assert (row.parent, row.schema, row.turns, row.troubles, row.started_s) == ("p", "codex", 2, 1, 1.0)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (100, 60, 7)
    fold.take([rec.SessionEnded(at_s=9.0, session=SessionId("s"), turns=2, reason="idle")], UP)
    [row] = fold.finished().sessions
    assert (row.turns, row.ended_s, row.end_reason) == (0, 9.0, "idle")
    fold.take(whole("r3", "s", 10.0), UP)
    assert fold.finished(with_sessions=False).sessions == []
    assert len(fold.finished().sessions) == 1


def test_what_moved_the_window_is_a_moment():
    moved = WindowUpdated(
        at_s=5.0, pool=PoolId("p"), sessions=4.0, kv_budget=None, admitted=1, waiting=0, demand=0.0,
        gpu_pressure=0.1, cpu_pressure=0.2, reason="healthy",
    )  # fmt: skip
    fold = Fold()
    fold.take([moved, rec.ToolNum(at_s=5.0, active=1)], UP)
    [(at_s, told)] = fold.finished().moments
    assert at_s == 5.0 and unpack([msgspec.msgpack.decode(told)[1]], SHAPE, turn=None, session=None) == [
        moved
    ]


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN", 10)
    fold = Fold()
    for number in range(50):
        fold.take([*begun(f"lonely{number}", 1.0), arrival(f"r{number}", f"s{number}", 1.0)], UP)
        fold.finished()
    assert len(fold._turns) <= 12 and len(fold._newest) <= 12 and len(fold._started) <= 10
    huge = "x" * 1_000_000
    fold.take(whole("big", "s", 1.0, model=huge), UP)
    rows = fold.finished(everything=True).turns
    [row] = [row for row in rows if row.turn == "big"]
    assert len(row.told) <= MAX_TOLD_BYTES and row.model is not None and len(row.model) == 256
    assert {type(each) for each in records_of(row)} >= {rec.Routed, rec.GpuSubmit, rec.GpuEnd}


def test_at_the_end_everything_is_handed_out():
    fold = Fold()
    fold.take([arrival("open", "s", 1.0), *whole("over", "s2", 1.0)], UP)
    rows = fold.finished(everything=True).turns
    assert {row.turn: row.outcome for row in rows} == {"open": None, "over": "finished"}
    assert fold.open_turn(RequestId("open")) is None


def test_what_ended_meanwhile_runs_no_more():
    fold = Fold()
    fold.take([], {A: 1, B: 0})
    fold.take(whole("r1", "s", 1.0)[:-1] + whole("r2", "s", 3.0), UP)
    fold.finished()
    assert [msgspec.msgpack.decode(row.told)[3]["a"] for row in fold.finished().turns] == [1, 1]


def test_every_record_of_a_turn_is_kept():
    of_turns = {kind for kind in get_args(rec.Record) if "turn" in kind.__struct_fields__}
    assert of_turns == module._OF_TURNS
    rest = set(get_args(rec.Record)) - of_turns - module._OF_SESSIONS - module._MOMENTS
    # How many tools run is told by their starts and ends; what operators did stands in their own log.
    assert rest == {rec.ToolNum, rec.ControlActed}


def test_who_leaves_or_is_refused_waited_until_then():
    fold = Fold()
    left = rec.TurnLeft(at_s=1.5, turn=RequestId("r1"), session=SessionId("s"), waited_ms=500.0)
    tried = [*sent("r2", "s2", 1.0), ended("r2", "s2", 1.1, outcome="failed")[1]]
    fold.take(
        [arrival("r1", "s", 1.0), left, arrival("r2", "s2", 1.0), *tried, refused("r2", "s2", 1.1)[1]], UP
    )
    fold.finished()
    rows = [(row.turn, row.outcome, row.queue_ms, row.replica) for row in fold.finished().turns]
    assert rows == [("r1", "left", 500.0, None), ("r2", "refused", 100.0, "a")]


def test_of_a_turn_so_many_records_are_kept():
    fold = Fold()
    told = rec.ToolTimed(at_s=1.5, turn=RequestId("r1"), session=SessionId("s"), name="b", duration_ms=3.0)
    fold.take([arrival("r1", "s", 1.0), *[told] * MAX_RECORDS, *ended("r1", "s", 2.0)], UP)
    fold.finished()
    [row] = fold.finished().turns
    assert len(records_of(row)) == MAX_RECORDS and row.outcome == "finished"
