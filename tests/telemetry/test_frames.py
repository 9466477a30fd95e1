"""Frames: every record once and in order, or a gap that says which are missing."""

import json
import random

import pytest

from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.telemetry import frames as module
from gateway.telemetry.frames import Filter, Frames, Reader
from gateway.telemetry.ring import Ring
from tests.telemetry.lines import as_lines
from tests.telemetry.sse import read_events

ALL = Filter()


def told(ring: Ring, count: int) -> None:
    ring.extend(*as_lines([rec.ToolNum(at_s=1.0, active=ring.last + each) for each in range(1, count + 1)]))


def numbers(data: bytes) -> list[tuple[str, int]]:
    return [(event.type, int(event.id)) for event in read_events(data)]


def test_an_event_is_a_numbered_line_of_the_file():
    ring = Ring(10, 1 << 30)
    frames = Frames(ring)
    reader = frames.open(None, ALL)
    told(ring, 1)
    frames.begin_tick(1)
    [event] = read_events(frames.read(reader))
    assert (event.id, event.type) == ("1", "tool_num")
    assert json.loads(event.data) == {"type": "tool_num", "at_s": 1.0, "active": 1}
    assert frames.read(reader) == b""


def test_who_comes_back_goes_on_where_it_was_and_learns_what_is_lost():
    ring = Ring(5, 1 << 30)
    frames = Frames(ring)
    told(ring, 8)  # 4 to 8 are kept
    frames.begin_tick(1)
    assert numbers(frames.read(frames.open(6, ALL))) == [("tool_num", 7), ("tool_num", 8)]
    assert [n for _, n in numbers(frames.read(frames.open(0, ALL)))] == [4, 5, 6, 7, 8], (
        "no gap for everything"
    )
    [gap, *rest] = read_events(frames.read(frames.open(1, ALL)))
    assert (gap.type, gap.id, json.loads(gap.data)) == ("gap", "3", {"from": 2, "to": 3})
    assert [event.id for event in rest] == ["4", "5", "6", "7", "8"]
    [gap] = read_events(frames.read(frames.open(99, ALL)))
    assert (gap.type, gap.id, json.loads(gap.data)) == ("gap", "8", {"from": 1, "to": 8}), "of another life"


def test_who_is_too_slow_goes_on_at_the_end():
    ring = Ring(5, 1 << 30)
    frames = Frames(ring)
    reader = frames.open(None, ALL)
    told(ring, 50)
    frames.begin_tick(1)
    [gap] = read_events(frames.read(reader))
    assert (gap.type, json.loads(gap.data)) == ("gap", {"from": 1, "to": 50}) and frames.gaps == 1
    told(ring, 1)
    assert numbers(frames.read(reader)) == [("tool_num", 51)]


def test_filters_leave_out_and_still_say_where_to_go_on():
    ring = Ring(10, 1 << 30)
    frames = Frames(ring)
    ring.extend(*as_lines([
        rec.ToolStart(at_s=1.0, session=SessionId("s-1"), turn=RequestId("r-1"), names=("bash",)),
        rec.ToolStart(at_s=1.0, session=SessionId("s-2"), turn=RequestId("r-2"), names=("bash",)),
        rec.ReplicaChanged(at_s=1.0, replica=ReplicaId("a"), state="up", why="x"),
    ]))  # fmt: skip
    frames.begin_tick(1)
    assert numbers(frames.read(frames.open(0, Filter(session=SessionId("s-2"))))) == [("tool_start", 2)]
    assert numbers(frames.read(frames.open(0, Filter(types=frozenset(("replica",)))))) == [("replica", 3)]
    nothing = frames.read(frames.open(0, Filter(types=frozenset(("gpu_end",)))))
    assert nothing == b"id: 3\n\n", "no event, but where to go on"


def test_a_tick_encodes_so_many_and_readers_share_them(monkeypatch):
    monkeypatch.setattr(module, "ENCODED_A_TICK", 10)
    monkeypatch.setattr(module, "SENT_A_TICK", 100)
    monkeypatch.setattr(module, "LEAST_A_TICK", 2)
    ring = Ring(1000, 1 << 30)
    frames = Frames(ring)
    readers = [frames.open(None, ALL) for _ in range(3)]
    told(ring, 25)
    frames.begin_tick(3)
    first = [frames.read(reader) for reader in readers]
    assert len(set(map(id, first))) == 1 and len(numbers(first[0])) == 10
    assert frames.read(readers[0]) == b"", "nothing is left of this tick"
    frames.begin_tick(3)
    frames.read(readers[0])
    frames.begin_tick(50)
    assert numbers(frames.read(readers[0])) == [("tool_num", 21), ("tool_num", 22)], "a fiftieth of 100"


@pytest.mark.parametrize("seed", range(20))
def test_nobody_misses_anything_unnoticed(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(module, "ENCODED_A_TICK", rng.choice((5, 50)))
    monkeypatch.setattr(module, "SENT_A_TICK", 60)
    monkeypatch.setattr(module, "LEAST_A_TICK", 3)
    ring = Ring(rng.choice((8, 200)), 1 << 30)
    frames = Frames(ring)
    readers: list[tuple[Reader, list[int]]] = [(frames.open(None, ALL), []) for _ in range(4)]
    for _ in range(60):
        told(ring, rng.randrange(12))
        frames.begin_tick(len(readers))
        for reader, seen in readers:
            if rng.random() < 0.7:
                for event in read_events(frames.read(reader)):
                    span = json.loads(event.data) if event.type == "gap" else None
                    seen.extend(range(span["from"], span["to"] + 1) if span else [int(event.id)])
    for reader, seen in readers:
        assert seen == list(range(1, reader.position + 1))
    assert len(frames._made) <= 64
