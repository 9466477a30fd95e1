"""The stream's file: whole lines, bounded, and harmless when the disk is not."""

import json
import os
import threading
import time

import pytest

from gateway.config.telemetry import StreamFileConfig
from gateway.domain import records as rec
from gateway.telemetry.jsonl import StreamFile
from tests.telemetry.lines import as_lines


def line(number: int) -> tuple[bytes, int]:
    return as_lines([rec.ToolNum(at_s=float(number), active=number)])


def numbers(path) -> list[int]:
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line)["active"] for line in text.splitlines()]


def test_every_record_is_a_line(tmp_path):
    path = tmp_path / "stream.jsonl"
    stream = StreamFile(StreamFileConfig(path=str(path)))
    for number in range(5000):
        stream.extend(*line(number))
    stream.close()
    assert numbers(path) == list(range(5000)) and stream.dropped == 0
    assert json.loads(path.read_text().splitlines()[7]) == {"type": "tool_num", "at_s": 7.0, "active": 7}


def test_it_is_continued(tmp_path):
    path = tmp_path / "stream.jsonl"
    for number in range(3):
        stream = StreamFile(StreamFileConfig(path=str(path)))
        stream.extend(*line(number))
        stream.close()
    assert numbers(path) == [0, 1, 2]


def test_a_full_disk_costs_the_records_and_nothing_else(caplog):
    stream = StreamFile(StreamFileConfig(path="/dev/full"))
    for number in range(100):
        stream.extend(*line(number))
    stream.close()
    assert stream.dropped == 100 and stream.is_failing and not stream._thread.is_alive()
    assert len([r for r in caplog.records if "stream_unwritten" in r.message]) == 1


def test_half_a_write_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "stream.jsonl"
    stream = StreamFile(StreamFileConfig(path=str(path)))
    stream.extend(*line(1))
    while not path.stat().st_size:
        pass

    class FillsUp:
        """A disk with room for five more bytes, once."""

        def __init__(self, file) -> None:
            self.file, self.has_failed, self.has_room = file, threading.Event(), 5

        def write(self, data) -> int:
            if self.has_failed.is_set():
                return self.file.write(data)
            if not self.has_room:
                self.has_failed.set()
                raise OSError(28, "No space left on device")
            self.has_room = 0
            return self.file.write(bytes(data)[:5])

        def __getattr__(self, name):
            return getattr(self.file, name)

    disk = FillsUp(stream._file)
    monkeypatch.setattr(stream, "_file", disk)
    stream.extend(*line(2))
    assert disk.has_failed.wait(5)
    stream.extend(*line(3))
    stream.close()
    assert numbers(path) == [1, 3] and stream.dropped == 1


def test_a_pipe_will_do(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    lines: list[str] = []

    def read() -> None:
        with path.open() as pipe:
            lines.extend(pipe)

    reader = threading.Thread(target=read)
    reader.start()
    stream = StreamFile(StreamFileConfig(path=str(path)))
    stream.extend(*line(1))
    stream.close()
    reader.join(5)
    assert len(lines) == 1 and stream.dropped == 0


def test_a_pipe_without_a_reader_holds_nobody_up_and_is_filled_once_there_is_one(tmp_path, caplog):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    stream = StreamFile(StreamFileConfig(path=str(path), max_pending=3))
    for number in range(5):
        stream.extend(*line(number))
    time.sleep(0.3)
    assert stream.dropped == 2
    with path.open() as pipe:
        stream.extend(*line(9))
        assert pipe.readline() == line(0)[0].decode() and pipe.readline() and pipe.readline()
    stream.close()
    (told,) = [each.message for each in caplog.records if "stream_unwritten" in each.message]
    assert "nobody reads this pipe" in told


def test_a_pipe_that_nobody_ever_reads_ends_in_time(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    stream = StreamFile(StreamFileConfig(path=str(tmp_path / "pipe")))
    stream.extend(*line(1))
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 3.0 and not stream._thread.is_alive()


def test_each_outage_is_news_and_a_disk_that_flaps_is_not(tmp_path, monkeypatch, caplog):
    stream = StreamFile(StreamFileConfig(path=str(tmp_path / "s")))
    good, now = stream._file, [0.0]
    monkeypatch.setattr("gateway.telemetry.jsonl._clock", lambda: now[0])
    with open("/dev/full", "ab", buffering=0) as full:
        life = (0, full), (0.1, good), (0.2, full), (10, full), (59, full), (70, full), (71, good), (75, full)
        for at_s, file in life:
            now[0], stream._file, wrote = float(at_s), file, stream._written
            stream.extend(*line(1))
            while stream._written == wrote:
                time.sleep(0.01)
        stream._file = good
    stream.close()
    assert len([each for each in caplog.records if "stream_unwritten" in each.message]) == 3


def test_too_much_at_once_is_dropped_and_counted(tmp_path, monkeypatch):
    stream = StreamFile(StreamFileConfig(path=str(tmp_path / "s"), max_pending=10))
    go_on = threading.Event()
    write = stream._write

    def slow(lines: bytes) -> None:
        go_on.wait(5)
        write(lines)

    monkeypatch.setattr(stream, "_write", slow)
    for number in range(1000):
        stream.extend(*line(number))
    go_on.set()
    stream.close()
    kept = numbers(tmp_path / "s")
    assert len(kept) + stream.dropped == 1000 and stream.dropped > 900


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        StreamFile(StreamFileConfig(path=str(tmp_path / "none" / "s")))


@pytest.mark.parametrize(("settings", "older"), [({}, [".1"]), ({"keep_files": 3}, [".3", ".2", ".1"])])
def test_it_is_rotated_and_as_many_older_files_are_kept_as_asked_for(tmp_path, settings, older):
    path = tmp_path / "stream.jsonl"
    config = StreamFileConfig(path=str(path), max_bytes=4096, **settings)
    for number in range(600):  # a batch each, so that the size is looked at
        stream = StreamFile(config)
        stream.extend(*line(number))
        stream.close()
    files = sorted(tmp_path.iterdir(), reverse=True)
    assert [file.name for file in files] == [f"stream.jsonl{end}" for end in (*older, "")]
    assert path.stat().st_size <= files[0].stat().st_size < 4096 + 100
    kept = [number for file in files for number in numbers(file)]
    assert kept == list(range(600 - len(kept), 600)) and len(kept) < 600
