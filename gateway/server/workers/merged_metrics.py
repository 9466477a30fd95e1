"""The metrics of several workers as one text for Prometheus (pure).

Counters and histograms are added up; those of workers that are gone stay in, or a total would fall. Gauges
are added up where each worker has a part of the whole. Where all look at the same thing, or have something
each, a sum would be wrong: the worker's number is a label then.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_OF_EACH: Final = frozenset(
    (
        "process_max_fds",
        "process_start_time_seconds",
        "turnpike_replica_up",
        "turnpike_engine_waiting",
        "turnpike_engine_kv_tokens",
        "turnpike_tool_spans_left",
    )
)
"""Metrics with a label `worker`, beside all ratios. Of a span that one worker can use, the others say that
they saw no such call."""
_RATIO: Final = "_ratio"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""By name and labels."""


class Totals:
    """What only grows, of workers that are gone. Invariant: as large as one worker's metrics."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._samples: dict[str, Samples] = {}

    def add(self, text: bytes) -> None:
        """The last metrics of a worker that has ended."""
        for family in _read(text):
            if family.type in ("counter", "histogram") and not _is_of_each(family):
                self._families.setdefault(family.name, family)
                _add(self._samples.setdefault(family.name, {}), family)

    def families(self) -> Iterator[tuple[Metric, Samples]]:
        for name, family in self._families.items():
            yield family, dict(self._samples[name])


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def merge(
    texts: Iterable[tuple[int, bytes]], gone: Totals, *, wanted: int, running: int, restarts: int
) -> bytes:
    """`texts`: metrics by the number of the worker that has them. `wanted`, `running`: how many workers;
    `restarts`: of those that died."""
    families: dict[str, Metric] = {}
    samples: dict[str, Samples] = {}
    for family, so_far in gone.families():
        families[family.name], samples[family.name] = family, so_far
    for number, text in texts:
        for family in _read(text):
            families.setdefault(family.name, family)
            _add(samples.setdefault(family.name, {}), family, number if _is_of_each(family) else None)
    return generate_latest(
        _Families(
            [
                *(_made(family, samples[name]) for name, family in families.items()),
                GaugeMetricFamily("turnpike_workers_wanted", "Worker processes that there should be", wanted),
                GaugeMetricFamily("turnpike_workers", "Worker processes that serve", running),
                _counter(
                    "turnpike_worker_restarts", "Worker processes that died and were replaced", restarts
                ),
            ]
        )
    )


def _read(text: bytes) -> Iterable[Metric]:
    return text_string_to_metric_families(text.decode())


def _is_of_each(family: Metric) -> bool:
    return family.name in _OF_EACH or family.name.endswith(_RATIO)


def _add(so_far: Samples, family: Metric, number: int | None = None) -> None:
    for sample in family.samples:
        labels = sample.labels if number is None else {**sample.labels, "worker": str(number)}
        key = (sample.name, tuple(labels.items()))
        is_constant = sample.name.endswith("_info")  # 1, for what its labels say
        so_far[key] = sample.value if is_constant else so_far.get(key, 0.0) + sample.value


def _made(family: Metric, samples: Samples) -> Metric:
    made = Metric(family.name, family.documentation, family.type)
    for (name, labels), value in samples.items():
        made.add_sample(name, dict(labels), value)
    return made


def _counter(name: str, what: str, value: float) -> Metric:
    counter = Metric(name, what, "counter")
    counter.add_sample(f"{name}_total", {}, value)
    return counter
