"""A session as a trace for Perfetto: what its importer asks of the format, and that nothing is missing."""

import json

import msgspec

from gateway.dashboard.trace import trace_of
from gateway.domain import records as rec
from gateway.domain.decision import WaitReason
from gateway.domain.ids import RequestId, SessionId
from tests.history.lives import arrival, begun, refused, sent, whole


def page(session, *turns):
    told = [{"turn": turn, "records": json.loads(msgspec.json.encode(records))} for turn, records in turns]
    return {"session": {"session": session}, "kin": [], "turns": told, "is_cut": False}


def tools_ended(turn, at_s):
    return rec.ToolEnd(
        at_s=at_s, session=SessionId("s"), turn=RequestId(turn), names=("bash",), duration_ms=1.0
    )


def waits(turn, at_s):
    return rec.TurnWaited(
        at_s=at_s, turn=RequestId(turn), session=SessionId("s"), reason=WaitReason.KV_FULL, waiting=1
    )


def traced():
    first = [*begun("s", 10.0), *whole("r1", "s", 10.0)]
    [came, *rest] = whole("r2", "s", 15.0, parent="r1")
    second = [came, tools_ended("r2", 15.0), waits("r2", 15.0), *rest]
    pages = [
        page("s", ("r1", first), ("r2", second), ("r3", refused("r3", "s", 15.5))),
        page("child", ("r4", [*whole("r4", "child", 12.0)])),
    ]
    return json.loads(json.dumps(trace_of(pages)))["traceEvents"]


def slices(events, **of):
    return [
        each
        for each in events
        if each["ph"] == "X" and all(each[name] == value for name, value in of.items())
    ]


def test_turns_and_their_phases_are_slices_that_nest():
    events = traced()
    turns = {each["name"]: each for each in slices(events) if each["name"].startswith("r")}
    assert set(turns) == {"r1", "r2", "r3", "r4"}
    assert turns["r1"]["ts"] == 10e6 and turns["r1"]["dur"] == 1e6
    for turn in turns.values():
        inside = [
            each for each in slices(events, pid=turn["pid"], tid=turn["tid"])
            if turn["ts"] <= each["ts"] < turn["ts"] + turn["dur"] and each is not turn
        ]  # fmt: skip
        assert inside and all(each["ts"] + each["dur"] <= turn["ts"] + turn["dur"] + 1 for each in inside)
    names = [each["name"] for each in slices(events, pid=1) if 15e6 <= each["ts"] < 15.4e6]
    assert names[:3] == ["r2", "queue", "prefill"]
    [queue] = [each for each in slices(events, name="queue") if each["ts"] == 15e6]
    assert queue["args"]["waits"] == ["the admitted sessions are expected to need all of the KV cache"]
    assert turns["r2"]["args"]["usage"]["cached_tokens"] == 60 and turns["r2"]["args"]["replica"] == "a"


def test_a_turn_that_is_not_streamed_generates():
    [came, *rest] = whole("r1", "s", 10.0)
    pages = [page("s", ("r1", [msgspec.structs.replace(came, is_streamed=False), *rest]))]
    names = [each["name"] for each in slices(trace_of(pages)["traceEvents"])]
    assert names == ["r1", "queue", "generating (not streamed)"]


def test_slices_of_one_track_do_not_overlap():
    by_track: dict[tuple[int, int], list] = {}
    for each in slices(traced()):
        if each["name"].startswith("r"):
            by_track.setdefault((each["pid"], each["tid"]), []).append((each["ts"], each["ts"] + each["dur"]))
    assert len(by_track) == 3, "r3 came while r2 ran"
    for spans in by_track.values():
        assert all(
            end <= begin for (_, end), (begin, _) in zip(sorted(spans), sorted(spans)[1:], strict=False)
        )


def test_tools_stand_between_turns():
    tools = [each for each in traced() if each.get("cat") == "tool" and each["pid"] == 1]
    assert [(each["ph"], each["ts"]) for each in tools] == [("b", 11e6), ("e", 15e6), ("i", 16e6)]
    assert tools[0]["id"] == tools[1]["id"] and tools[0]["name"] == tools[1]["name"] == "bash"


def test_every_track_has_a_name_and_refusals_are_told():
    events = traced()
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    assert {(each["pid"], each["tid"]) for each in events if each["ph"] != "M"} <= named
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert names == ["session s", "session child"]
    assert any(each["name"] == "refused: the waiting room was full" for each in events if each["ph"] == "i")


def test_a_turn_that_runs_still_and_one_whose_arrival_is_lost():
    events = trace_of(
        [page("s", ("r1", [arrival("r1", "s", 1.0), *sent("r1", "s", 2.0)]), ("r2", sent("r2", "s", 3.0)))]
    )
    assert [each["name"] for each in events["traceEvents"] if each["ph"] == "X"] == ["r1", "queue", "r2"]
