"""The event log's lines: nothing secret, and no hole."""

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from gateway.config import Config
from gateway.config.load import load_config
from gateway.core import events as ev
from gateway.domain.ids import SessionId
from gateway.telemetry import event_log
from gateway.telemetry.event_log import encode_beginning
from gateway.telemetry.recorder import Recorder
from lab.simulator.replay import decode_beginning, decode_entry

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
    with pytest.raises(ValueError, match="version 3"):
        decode_beginning(line.replace(b'"turnpike_events":2', b'"turnpike_events":3'))


def test_a_recording_overwrites_what_was_there_and_ends_when_it_is_large_enough(tmp_path, caplog):
    path = tmp_path / "events"
    path.write_text("old\n")
    recorder = Recorder(settings(recording={"path": str(path), "max_bytes": 16384}))
    event = ev.TimerFired()
    with caplog.at_level(logging.WARNING):
        for at in range(200):
            assert recorder.told(event) == event
            recorder.answered([], now=float(at))
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
            recorder.told(ev.TimerFired())
            recorder.answered([], now=0.0)
    recorder.close()
    assert caplog.messages == ['warning recording_ended cause="not all of it could be written"']


def test_what_cannot_be_written_ends_the_recording_and_nothing_else(tmp_path, caplog):
    path = tmp_path / "events"
    recorder = Recorder(settings(recording={"path": str(path)}))
    event = ev.SessionFinished(SessionId("\ud800"))
    with caplog.at_level(logging.WARNING):
        assert recorder.told(event) is event
        recorder.answered([], now=0.0)
    recorder.close()
    assert len(path.read_bytes().splitlines()) == 1
    assert caplog.messages[0].startswith('warning recording_ended cause="an event cannot be written')
