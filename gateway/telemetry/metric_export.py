"""OpenTelemetry's metrics on their way to a collector, by OTLP/HTTP.

By hand, as spans are (`otlp.py`): the SDK's reader and exporter run on a thread of their own, which holds the
interpreter for as long as it encodes. Here it is done on the loop, some points at a time.

Source: opentelemetry-proto 1.x (`metrics/v1/metrics.proto`). Histograms are cumulative, so that nothing is
lost when a collector does not take one of them.

Invariants: nobody waits for a collector; at most `_POINTS_AT_ONCE` points are encoded at a time, and sent.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from gateway import __version__
from gateway.config.otel import OtelConfig
from gateway.domain.records import Record
from gateway.telemetry.collector import Collector, Verdict, resource_of
from gateway.telemetry.genai_metrics import INSTRUMENTS, GenAiMetrics, Instrument
from gateway.telemetry.otlp import Attributes, attributes_field, block, of_resource, text
from gateway.telemetry.spreads import Spread

_POINTS_AT_ONCE: Final = 128
"""Some 10 µs each."""
_AT_THE_END_S: Final = 3.0
_CUMULATIVE: Final = b"\x10\x02"
_TIMES: Final = struct.Struct("<BQBQBQBd")


class MetricExport:
    def __init__(self, config: OtelConfig, environ: Mapping[str, str], *, clock: Callable[[], float]) -> None:
        """`clock`: Unix time. Raises ConfigError for a variable that is not there."""
        assert config.metrics_endpoint is not None
        self._collector = Collector(config, config.metrics_endpoint, environ, what="metrics")
        self._period_s = config.metrics_period_s
        self._clock = clock
        self._began_s = clock()
        self._resource = resource_of(config)
        self._metrics = GenAiMetrics()
        self.take: Final[Callable[[list[Record]], None]] = self._metrics.take
        """For the driver."""

    def open(self) -> None:
        """To be called before `run`."""
        self._collector.open()

    async def run(self) -> None:
        """Endless, for the caller to run as a task."""
        while True:
            await asyncio.sleep(self._period_s)
            await self._send()

    async def close(self) -> None:
        """Sends how things are at the end, if that is quick. The loops must have ended."""
        if not self._collector.is_open:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_THE_END_S):
                await self._send()
        await self._collector.close()

    async def _send(self) -> None:
        now_s = self._clock()
        for instrument in INSTRUMENTS:
            points = iter(list(self._metrics.series(instrument)))
            while some := list(islice(points, _POINTS_AT_ONCE)):
                body = self._encode(instrument, some, now_s)
                if await self._collector.post(body) is Verdict.LATER:
                    return  # the next ones say it all

    def _encode(self, instrument: Instrument, points: list[tuple[Attributes, Spread]], now_s: float) -> bytes:
        times = int(self._began_s * 1e9), int(now_s * 1e9)
        metric = encode_histogram(instrument, points, times)
        return of_resource([block(2, metric)], self._resource, version=__version__)


def encode_histogram(
    instrument: Instrument, points: list[tuple[Attributes, Spread]], times: tuple[int, int]
) -> bytes:
    """A `Metric`. `times`: since when and until when, in nanoseconds."""
    bounds = block(7, struct.pack(f"<{len(instrument.bounds)}d", *instrument.bounds))
    said = b"".join([block(1, point) for point in _points(points, times, bounds)])
    return (
        text(1, instrument.name)
        + text(2, instrument.description)
        + text(3, instrument.unit)
        + block(9, said + _CUMULATIVE)
    )


def _points(
    points: list[tuple[Attributes, Spread]], times: tuple[int, int], bounds: bytes
) -> Iterator[bytes]:
    began, now = times
    for attributes, spread in points:
        counts = spread.counts
        yield (
            _TIMES.pack(0x11, began, 0x19, now, 0x21, sum(counts), 0x29, spread.total)
            + block(6, struct.pack(f"<{len(counts)}Q", *counts))
            + bounds
            + attributes_field(9, attributes)
        )
