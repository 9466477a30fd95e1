"""What an answer may cost, however much there is in it."""

import gzip
import time
from collections.abc import Callable

import pytest

from gateway.domain.request import Protocol, Work
from gateway.responses import inflating_observer as module
from gateway.responses import observer as observers
from gateway.responses.inflating_observer import InflatingObserver
from gateway.responses.observer import ResponseObserver, observe
from gateway.wire.inflate import Inflater, zstd

SLOW = 6
"""So many times as long it may take while other tests run."""
TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%d "},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":100000}}\n\ndata: [DONE]\n\n'
HONEST = b"".join([TOKEN % at for at in range(100_000)]) + USAGE


class Recorder(ResponseObserver):
    def __init__(self) -> None:
        super().__init__()
        self.came = b""

    def feed(self, chunk: bytes) -> bool:
        self.came += chunk
        return True


def test_beyond_a_limit_or_a_fault_nothing_more_is_inflated(monkeypatch):
    monkeypatch.setattr(module, "Inflater", lambda coding: Inflater(coding, 10))
    packed = gzip.compress(bytes(range(97, 123)))
    for at in range(len(packed)):
        recorder = Recorder()
        observer = InflatingObserver(recorder, "gzip")
        observer.feed(packed[:at])
        observer.feed(packed[at:])
        observer.feed(packed)
        assert recorder.came == b"abcdefghij" and not observer.has_backlog


def test_what_waits_is_read_in_its_order_and_bounded(monkeypatch):
    plain = bytes(range(256)) * 4000
    packed = gzip.compress(plain)
    recorder = Recorder()
    observer = InflatingObserver(recorder, "gzip")
    for at in range(0, len(packed), 100):
        observer.feed(packed[at : at + 100])
    while observer.has_backlog:
        before = len(recorder.came)
        observer.feed(b"")
        assert len(recorder.came) - before <= 2 * module._AT_ONCE
    assert recorder.came == plain
    monkeypatch.setattr(module, "_MAX_BEHIND_BYTES", 50)
    observer = InflatingObserver(Recorder(), "gzip")
    for at in range(0, len(packed), 100):
        observer.feed(packed[at : at + 100])
    assert not observer.has_backlog and not observer.answer(200, is_over=True).failure


def slowest_s(observer: ResponseObserver, data: bytes, read_bytes: int) -> float:
    took = [0.0]
    for at in range(0, len(data), read_bytes):
        started = time.thread_time()
        observer.feed(data[at : at + read_bytes])
        took.append(time.thread_time() - started)
    while observer.has_backlog:
        started = time.thread_time()
        observer.feed(b"")
        took.append(time.thread_time() - started)
    return max(took)


@pytest.mark.parametrize("read_bytes", [5_000, 256_000, 1_000_000])
@pytest.mark.parametrize("coding", [None, "gzip", "zstd"])
@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
def test_a_long_answer_is_read_whole(read_bytes, coding, kind):
    packed: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
    data = packed[coding](HONEST) if coding else HONEST
    observer = observe(Protocol.CHAT, Work.GENERATE, kind, coding)
    assert slowest_s(observer, data, read_bytes) < 0.05 * SLOW
    answer = observer.answer(200, is_over=True)
    assert answer.has_terminal and answer.usage.output_tokens == 100_000 and not answer.failure


CALL = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":'
    b'[{"index":%d,"id":"c%d","function":{"name":"f","arguments":"{"}}]}}]}\n\n'
)
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
JUNK = {
    "comments": b":\n\n" * 2_000_000,
    "nothing": b"\n\n" * 2_000_000,
    "empty events": b"data: {}\n\n" * 3_000_000,
    "halves": b'data: {"choices":[{"text":"\\ud83d"}]}\n\n' * 100_000,
    "calls": b"".join([CALL % (at, at) for at in range(40_000)]),
    "ends": b"".join([CALL % (at, at) for at in range(1000)]) + FINISH * 50_000,
    "no JSON": b"data: {\n\n" * 500_000,
    "errors": b"data: error\n\n" * 500_000,
    "carriage returns": b"\r\r" * 2_000_000,
    "text": b"x" * 30_000_000,
}


@pytest.mark.parametrize("coding", [None, "gzip"])
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_no_answer_takes_long_at_once(junk, coding):
    data = gzip.compress(junk, 1) if coding else junk[: 6 * 2**20]
    observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", coding)
    started = time.thread_time()
    assert slowest_s(observer, data, 256_000) < 0.05 * SLOW
    assert time.thread_time() - started < 2 * SLOW
    observer.answer(200, is_over=True)


def test_what_is_beyond_the_bounds_is_no_failure(monkeypatch):
    monkeypatch.setattr(observers, "MAX_EVENTS", 10)
    observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", None)
    for _ in range(12):
        observer.feed(b": ping\n\n" * 2)
    assert not observer.answer(200, is_over=True).failure
