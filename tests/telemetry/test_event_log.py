"""The event log, the log and frames: nothing secret, no hole that is not told, few lines for refusals."""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from gateway.config import Config
from gateway.config.load import load_config
from gateway.core import events as ev
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from gateway.telemetry import event_log, log_lines
from gateway.telemetry import frames as module
from gateway.telemetry.event_log import encode_beginning
from gateway.telemetry.frames import Filter, Frames, Reader
from gateway.telemetry.log_lines import REFUSALS_EVERY_S, ChangeLog, JsonFormatter, RefusalLog, log_event
from gateway.telemetry.recorder import Recorder
from gateway.telemetry.ring import Ring
from lab.simulator.replay import decode_beginning, decode_entry
from tests.telemetry.lines import as_lines
from tests.telemetry.sse import read_events

KEY = "sha256:" + "5e" * 32


def settings(**more):
    pools = [{"replicas": [{"url": "http://user:hunter2@gpu-7:8000", "api_key_env": "SECRET_KEY"}]}]
    tenants = [{"name": "a", "key_hashes": [KEY]}, {"name": "b", "key_hashes": ["sha256:" + "6f" * 32]}]
    return load_config(None, {}, {"pools": pools, "tenants": tenants, "core": {"max_wait_s": 9}, **more})


def test_the_first_line_makes_the_same_brain_and_tells_no_secret():
    line = encode_beginning(settings(), version="1")
    for secret in (b"gpu-7", b"hunter2", b"SECRET_KEY", b"5e5e", b"6f6f"):
        assert secret not in line
    beginning = decode_beginning(line)
    assert beginning.settings.core.max_wait_s == 9
    assert [tenant.name for tenant in beginning.settings.tenants] == ["a", "b"]
    assert beginning.settings.pools[0].names() == ["default-0"]


def texts(shape: inspect.Type, path: str, mark: bool | None = None) -> Iterator[tuple[str, bool | None]]:
    """Every text in the settings, and whether it may be recorded; None if it has no mark."""
    match shape:
        case inspect.Metadata():
            yield from texts(shape.type, path, (shape.extra or {}).get("recorded", mark))
        case inspect.StructType():
            for field in shape.fields:
                yield from texts(field.type, f"{path}.{field.name}")
        case inspect.UnionType():
            for each in shape.types:
                yield from texts(each, path)
        case inspect.CollectionType():
            yield from texts(shape.item_type, path)
        case inspect.DictType():
            yield from texts(shape.key_type, f"{path}-key")
            yield from texts(shape.value_type, path)
        case inspect.StrType():
            yield path, mark
        case inspect.AnyType() | inspect.RawType() | inspect.BytesType() | inspect.CustomType():
            yield path, None
        case _:
            pass


def filled(shape: inspect.Type, path: str, *, avoid: tuple[str, ...]) -> Any:
    """Settings with a canary in every text; `avoid`: fields that exclude others."""
    match shape:
        case inspect.Metadata():
            return filled(shape.type, path, avoid=avoid)
        case inspect.StructType():
            return shape.cls(
                **{
                    field.name: filled(field.type, f"{path}.{field.name}", avoid=avoid)
                    for field in shape.fields
                    if field.name not in avoid and any(texts(field.type, ""))
                }
            )
        case inspect.UnionType():
            return filled(next(each for each in shape.types if any(texts(each, ""))), path, avoid=avoid)
        case inspect.CollectionType():
            return (filled(shape.item_type, path, avoid=avoid),)
        case inspect.DictType():
            return {f"<{path}-key>": f"<{path}>"}
        case _:
            return "0" * 16 if path == ".bounds.agents" else f"<{path}>:1"  # a port, where one is looked for


def test_every_text_in_the_settings_is_said_to_be_private_or_not():
    unmarked = [path for path, mark in texts(inspect.type_info(Config), "") if mark is None]
    assert unmarked == [], "mark them with PRIVATE or RECORDED, of gateway/config/privacy.py"


@pytest.mark.parametrize("avoid", [("api_key_env", "secret_env"), ("api_key_file", "secret_file")])
def test_no_private_text_is_recorded_and_every_other_one_is(avoid):
    shape = inspect.type_info(Config)
    line = encode_beginning(filled(shape, "", avoid=avoid), version="1").decode()
    marks = {path: mark for path, mark in texts(shape, "") if not path.endswith(avoid)}
    assert {path for path in marks if f"<{path}>" in line} == {path for path, mark in marks.items() if mark}
    assert ".hints.cache_salt_secret" in marks


def test_what_has_no_mark_is_private():
    class New(msgspec.Struct):
        secret: str = ""
        many: tuple[str, ...] = ()
        number: int = 0

    shown = event_log._shown(New(secret="x", many=("y",), number=7), iter(()))
    assert shown == New(number=7)


def test_another_version_is_refused():
    line = encode_beginning(settings(), version="1")
    older = line.replace(b'"turnpike_events":4', b'"turnpike_events":3').replace(
        b'"settings":{', b'"settings":{"gone":1,'
    )
    with pytest.raises(ValueError, match="version 3, not 4"):
        decode_beginning(older)


def test_a_recording_overwrites_what_was_there_and_ends_when_it_is_large_enough(tmp_path, caplog):
    path = tmp_path / "events"
    path.write_text("old\n")
    recorder = Recorder(settings(recording={"path": str(path), "max_bytes": 16384}))
    event = ev.TimerFired()
    with caplog.at_level(logging.WARNING):
        for at in range(200):
            assert recorder.record_event(event) == event
            recorder.answered([], now=float(at))
    recorder._file._thread.join(5.0)
    assert recorder._file._file.closed, "so that its space is free once it is deleted"
    recorder.close()
    first, *lines = path.read_bytes().splitlines()
    decode_beginning(first)
    assert [decode_entry(line).at_s for line in lines] == [float(at) for at in range(len(lines))]
    assert 10 < len(lines) < 600 and path.stat().st_size <= 16384
    assert caplog.messages == ['warning recording_ended cause="it is as large as it may be"']


def test_a_recording_with_a_hole_ends(tmp_path, caplog, monkeypatch):
    path = tmp_path / "events"
    recorder = Recorder(settings(recording={"path": str(path), "max_pending": 1}))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recorder.record_event(ev.TimerFired())
            recorder.answered([], now=0.0)
    recorder.close()
    assert caplog.messages == ['warning recording_ended cause="not all of it could be written"']


def test_what_cannot_be_written_ends_the_recording_and_nothing_else(tmp_path, caplog):
    path = tmp_path / "events"
    recorder = Recorder(settings(recording={"path": str(path)}))
    event = ev.SessionFinished(SessionId("\ud800"))
    with caplog.at_level(logging.WARNING):
        assert recorder.record_event(event) is event
        recorder.answered([], now=0.0)
    recorder.close()
    assert len(path.read_bytes().splitlines()) == 1
    assert caplog.messages[0].startswith('warning recording_ended cause="an event cannot be written')


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "gateway")
    return caplog


def changed(state: str, why: str) -> rec.ReplicaChanged:
    return rec.ReplicaChanged(at_s=1.0, replica=ReplicaId("r0"), state=state, why=why)


async def test_each_change_of_a_replica_is_a_line(lines):
    ChangeLog().log_replicas([changed("up", "is healthy"), changed("ejected", 'says "no"')])
    assert lines.messages == [
        'info replica_up replica=r0 cause="is healthy"',
        'warning replica_ejected replica=r0 cause="says \\"no\\""',
    ]
    up, ejected = [json.loads(JsonFormatter(3).format(record)) for record in lines.records]
    assert {key: up[key] for key in ("level", "event", "replica", "cause", "worker")} == {
        "level": "info", "event": "replica_up", "replica": "r0", "cause": "is healthy", "worker": 3,
    }  # fmt: skip
    assert ejected["level"] == "warning" and "message" not in ejected


async def test_what_changes_to_and_fro_is_told_now_and_then_and_its_newest_state_in_the_end(
    lines, monkeypatch
):
    monkeypatch.setattr(log_lines, "CHANGES_EVERY_S", 0.1)
    log = ChangeLog()
    for number in range(1001):
        log.log("store", logging.WARNING, f"store_{'up' if number % 2 else 'down'}", store="r")
    log.log("another", logging.INFO, "replica_up")
    assert [line.split()[1] for line in lines.messages] == [*["store_down", "store_up"] * 2, "replica_up"]
    await asyncio.sleep(0.35)
    assert lines.messages[5:] == ["warning store_down store=r count=997"] and not log._lately
    log.log("store", logging.INFO, "store_up", store="r")
    assert lines.messages[6:] == ["info store_up store=r"]


def test_refusals_are_counted_and_told_now_and_then(lines):
    counts = Counter({"queue_full": 1})
    log = RefusalLog(counts)
    log.log_new(now=0.0)
    for second in range(1, 10):
        counts["queue_full"] += 1000
        log.log_new(now=float(second))
    log.log_new(now=REFUSALS_EVERY_S)
    log.log_new(now=100.0)
    assert lines.messages == [
        "warning refused reason=queue_full count=1",
        "warning refused reason=queue_full count=9000",
    ]


def test_what_is_no_change_of_state_is_a_line_too(lines):
    log_event(logging.INFO, "drain", "draining; signal again", drain_s=3.0)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("gateway.x").exception("it failed:\n%s", "twice")
    drain, failed = [json.loads(JsonFormatter(None).format(record)) for record in lines.records]
    assert (drain["message"], drain["drain_s"]) == ("draining; signal again", 3.0)
    assert (failed["event"], failed["message"]) == ("log", "it failed:\ntwice")
    assert "ValueError: no" in failed["trace"]


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
