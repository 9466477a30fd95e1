"""Metrics at a collector: what OpenTelemetry's own SDK would have sent, and a collector that is rude."""

import asyncio
import contextlib
import logging
import time
from typing import Any

import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from gateway import __version__
from gateway.config.load import ConfigError
from gateway.config.otel import OtelConfig
from gateway.domain import records as rec
from gateway.telemetry import metric_export as module
from gateway.telemetry.genai_metrics import DURATION, FIRST_TOKEN, INSTRUMENTS, TOKEN, USAGE
from gateway.telemetry.metric_export import MetricExport, encode_histogram
from gateway.telemetry.spreads import Spread
from tests.telemetry.otlp_receiver import Receiver, attributes, metrics_of
from tests.telemetry.turns import turn

VALUES = (0.0, 0.001, 0.01, 0.0100001, 0.5, 1.0, 2.5, 81.92, 100.0, 4.0, 1e9)


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


def sdk_says(instrument: Any, of: dict[str, Any]) -> Any:
    view = View(
        instrument_name=instrument.name, aggregation=ExplicitBucketHistogramAggregation(instrument.bounds)
    )
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    histogram = provider.get_meter("x").create_histogram(
        instrument.name, instrument.unit, instrument.description
    )
    for value in VALUES:
        histogram.record(value, of)
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = metrics_of(encode_metrics(data))
    return metric


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda each: each.name)
def test_it_is_what_the_sdk_would_have_sent(instrument):
    of = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "größer"}
    expected = sdk_says(instrument, of)
    spread = Spread(instrument.bounds)
    spread.add_all(VALUES)
    read = Metric.FromString(encode_histogram(instrument, [(tuple(of.items()), spread)], (5, 7)))
    assert (read.name, read.unit, read.description) == (expected.name, expected.unit, expected.description)
    assert read.histogram.aggregation_temporality == expected.histogram.aggregation_temporality
    [point], [wanted] = read.histogram.data_points, expected.histogram.data_points
    assert attributes(point) == attributes(wanted) == of
    assert (point.start_time_unix_nano, point.time_unix_nano) == (5, 7)
    for field in ("count", "sum", "bucket_counts", "explicit_bounds"):
        assert getattr(point, field) == getattr(wanted, field), field


class Exported:
    def __init__(self, endpoint: str, environ: Any = None, *, period_s: float = 1.0, **settings: Any) -> None:
        config = OtelConfig(metrics_endpoint=endpoint, metrics_period_s=period_s, **settings)
        self.export = MetricExport(config, environ or {}, clock=time.time)
        self.export.open()
        self.task = asyncio.ensure_future(self.export.run())

    async def __aenter__(self) -> "Exported":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.export.close()


async def until(is_true) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.005)


def counts(receiver: Receiver, name: str) -> list[int]:
    """As the newest of each says."""
    return [
        sum(point.count for point in metric.histogram.data_points)
        for metric in receiver.metrics
        if metric.name == name
    ]


async def test_they_arrive_and_grow(receiver):
    async with Exported(
        receiver.metrics_endpoint, {"TOKEN": "Bearer x"}, period_s=0.05, authorization_env="TOKEN"
    ) as sent:
        sent.export.take(turn("r1", "s", 0.0))
        await until(lambda: len(counts(receiver, USAGE.name)) >= 2)
        sent.export.take(turn("r2", "s", 0.0))
        await until(lambda: counts(receiver, USAGE.name)[-1] == 4)
    assert {each.name for each in receiver.metrics} == {each.name for each in INSTRUMENTS}
    for instrument in (DURATION, FIRST_TOKEN, TOKEN):
        assert counts(receiver, instrument.name)[0] == 1 and counts(receiver, instrument.name)[-1] == 2
    for metric in receiver.metrics:
        assert metric.histogram.aggregation_temporality == (
            AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
    assert receiver.headers[0]["Authorization"] == "Bearer x"
    resource = receiver.resources[0]
    assert resource["service.version"] == __version__
    assert resource["service.instance.id"]


async def test_the_last_ones_are_sent_at_the_end(receiver):
    async with Exported(receiver.metrics_endpoint, period_s=3600) as sent:
        sent.export.take(turn("r1", "s", 0.0))
    assert counts(receiver, DURATION.name) == [1]


async def test_nothing_is_sent_while_nothing_happened(receiver):
    async with Exported(receiver.metrics_endpoint, period_s=0.01):
        await asyncio.sleep(0.1)
    assert not receiver.requests


async def test_a_collector_that_is_busy_misses_nothing(receiver, caplog):
    receiver.statuses = [503, 429]
    with caplog.at_level(logging.WARNING):
        async with Exported(receiver.metrics_endpoint, period_s=0.02) as sent:
            sent.export.take(turn("r1", "s", 0.0))
            await until(lambda: counts(receiver, DURATION.name))
    assert counts(receiver, DURATION.name)[0] == 1
    assert caplog.messages == ["metrics cannot be sent to the collector for now: it answered 503"]


async def test_a_collector_that_hangs_is_waited_for_by_nobody(receiver, monkeypatch):
    monkeypatch.setattr(module, "_AT_THE_END_S", 0.1)
    receiver.delay_s = 30.0
    began = time.monotonic()
    async with Exported(receiver.metrics_endpoint, period_s=0.01) as sent:
        sent.export.take(turn("r1", "s", 0.0))
        await until(lambda: receiver.requests)
        sent.export.take(turn("r2", "s", 0.0))
        assert receiver.requests == 1
    assert time.monotonic() - began < 15


async def test_many_series_go_in_pieces(receiver):
    async with Exported(receiver.metrics_endpoint, period_s=3600) as sent:
        for number in range(300):
            records = turn(f"r{number}", "s", 0.0)
            end = msgspec.structs.replace(records[-1], response_model=f"m{number}")
            assert isinstance(end, rec.GpuEnd)
            sent.export.take([*records[:-1], end])
    points = [len(each.histogram.data_points) for each in receiver.metrics if each.name == DURATION.name]
    assert sum(points) == 300 and max(points) <= 128


def test_a_variable_that_is_not_there_is_said_at_once():
    config = OtelConfig(metrics_endpoint="http://x", authorization_env="NOPE")
    with pytest.raises(ConfigError, match=r"otel\.authorization_env: NOPE"):
        MetricExport(config, {}, clock=time.time)
