"""Export: spans arrive, and a collector that is slow, dead or rude holds up nobody."""

import asyncio
import contextlib
import logging
import time

import pytest

from gateway import __version__
from gateway.config.load import ConfigError
from gateway.config.otel import OtelConfig
from gateway.telemetry import export as module
from gateway.telemetry.export import TraceExport
from gateway.telemetry.trace_context import TraceContexts
from tests.core.playbook import Playbook, finished, first_token, session_finished, stated
from tests.telemetry.otlp_receiver import Receiver, attributes


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_SEND_PERIOD_S", 0.01)
    monkeypatch.setattr(module, "_BACKOFF_S", (0.01, 0.05))


class Exported:
    def __init__(self, endpoint: str, environ=None, **settings) -> None:
        config = OtelConfig(endpoint=endpoint, **{"max_spans_per_s": 1_000_000, **settings})
        self.export = TraceExport(
            config, TraceContexts(1.0, max_sessions=1000), environ or {}, max_sessions=1000, clock=time.time
        )
        self.play = Playbook()
        self.export.open()
        self.tasks = [asyncio.ensure_future(self.export.run())]

    def sessions(self, count: int, start: int = 0) -> None:
        play = self.play
        for number in range(start, start + count):
            name = f"r{number}"
            play.begins(name, explicit=stated(name), stream=True) >> first_token(name) >> finished(name)
            play >> session_finished(play.session.id)
            self.export.take(play.records.copy())
            play.records.clear()

    async def __aenter__(self) -> "Exported":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.export.close()


async def until(is_true) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.005)


async def test_spans_arrive(receiver):
    async with Exported(
        receiver.endpoint, {"TOKEN": "Bearer x\n"}, headers={"x-team": "a"}, authorization_env="TOKEN"
    ) as sent:
        sent.sessions(300)
        await until(lambda: sent.export.sent == 1500)
        assert len(receiver.spans) == 1500 and not sent.export.dropped and receiver.requests < 10
        assert receiver.headers[0]["Authorization"] == "Bearer x" and receiver.headers[0]["x-team"] == "a"
        assert sorted({span.name for span in receiver.spans}) == [
            "chat",
            "decode",
            "invoke_agent",
            "prefill",
            "session",
        ]


async def test_a_resource_is_described_as_everywhere(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    async with Exported(receiver.endpoint, service_name="front") as sent:
        sent.sessions(1)
        await until(lambda: receiver.resources)
        said = receiver.resources[0]
        assert said["service.name"] == "front" and said["service.version"] == __version__
        assert said["deployment.environment"] == "test"


async def test_what_is_open_at_the_end_is_sent(receiver):
    async with Exported(receiver.endpoint) as sent:
        sent.play.arrives("r1", explicit=stated("one"))
        sent.export.take(sent.play.records)
    [root] = [span for span in receiver.spans if not span.parent_span_id]
    [end] = [span for span in receiver.spans if span.name == "session"]
    assert attributes(end)["turnpike.session.end"] == "shutdown" and end.parent_span_id == root.span_id
    assert len(receiver.spans) == 4


async def test_a_collector_that_is_busy_is_asked_again(receiver):
    receiver.statuses = [503, 429, 200]
    async with Exported(receiver.endpoint) as sent:
        sent.sessions(2)
        await until(lambda: len(receiver.spans) == 10)
        assert not sent.export.dropped


async def test_what_it_refuses_is_dropped_and_counted(receiver, caplog):
    receiver.statuses = [400]
    async with Exported(receiver.endpoint) as sent:
        with caplog.at_level(logging.WARNING):
            sent.sessions(2)
            await until(lambda: sent.export.dropped == 10)
        assert caplog.messages == ['warning collector_down cause="it answered 400"']
        sent.sessions(1, start=9)
        await until(lambda: len(receiver.spans) == 5)


async def test_a_dead_collector_costs_spans_and_nothing_else(caplog):
    async with Exported("http://127.0.0.1:9/v1/traces", max_pending=100) as sent:
        sent.sessions(200)
        await until(lambda: sent.export.dropped >= 900)
        assert len(sent.export._pending) == 100
    assert sent.export.dropped == 1000
    assert len([each for each in caplog.messages if "collector_down" in each]) == 1


async def test_a_slow_collector_is_waited_for_by_nobody(receiver, monkeypatch):
    monkeypatch.setattr(module, "_AT_THE_END_S", 0.1)
    receiver.delay_s = 30.0
    async with Exported(receiver.endpoint, max_pending=50) as sent:
        sent.sessions(100)
        await until(lambda: sent.export.dropped >= 350 and receiver.requests)
        began = time.monotonic()
        for _ in range(100):
            await asyncio.sleep(0)
        assert receiver.requests == 1
    assert time.monotonic() - began < receiver.delay_s / 2


def test_a_variable_that_is_not_there_is_said_at_once():
    with pytest.raises(ConfigError, match=r"otel\.authorization_env: NOPE"):
        TraceExport(
            OtelConfig(endpoint="http://x", authorization_env="NOPE"),
            TraceContexts(1.0, max_sessions=9),
            {},
            max_sessions=9,
            clock=time.time,
        )
