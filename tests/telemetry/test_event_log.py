"""The event log's lines: nothing secret, and no hole."""

import logging

import pytest

from gateway.config.load import load_config
from gateway.core import events as ev
from gateway.domain.ids import SessionId
from gateway.telemetry.event_log import decode_beginning, decode_entry, encode_beginning
from gateway.telemetry.recorder import Recorder

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


def test_another_version_is_refused():
    line = encode_beginning(settings(), version="1")
    with pytest.raises(ValueError, match="version 2"):
        decode_beginning(line.replace(b'"turnpike_events":1', b'"turnpike_events":2'))


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
    assert caplog.messages == ["the recording has ended: it is as large as it may be"]


def test_a_recording_with_a_hole_ends(tmp_path, caplog, monkeypatch):
    path = tmp_path / "events"
    recorder = Recorder(settings(recording={"path": str(path), "max_pending": 1}))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recorder.told(ev.TimerFired())
            recorder.answered([], now=0.0)
    recorder.close()
    assert caplog.messages == ["the recording has ended: not all of it could be written"]


def test_what_cannot_be_written_ends_the_recording_and_nothing_else(tmp_path, caplog):
    path = tmp_path / "events"
    recorder = Recorder(settings(recording={"path": str(path)}))
    event = ev.SessionFinished(SessionId("\ud800"))
    with caplog.at_level(logging.WARNING):
        assert recorder.told(event) is event
        recorder.answered([], now=0.0)
    recorder.close()
    assert len(path.read_bytes().splitlines()) == 1
    assert caplog.messages[0].startswith("the recording has ended: an event cannot be written")
