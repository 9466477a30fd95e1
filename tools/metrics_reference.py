"""Writes docs/reference/metrics.md from the metrics' declarations: `python -m tools.metrics_reference`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.budgets.budgets import PriceConfig
from gateway.config.telemetry import ObjectiveConfig
from gateway.core.snapshot import Gauges
from gateway.server.telemetry import COUNTED_ELSEWHERE, FAULTS
from gateway.telemetry.mcp_counts import McpCounts
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.objective import Objective
from gateway.telemetry.usage import Usages

_ROOT: Final = Path(__file__).parent.parent
TARGET: Final = _ROOT / "docs/reference/metrics.md"
_PLUGIN: Final = _ROOT / "engine_ext/turnpike_vllm/api/gauges.py"
_UNITS: Final = {
    "seconds": "seconds",
    "ratio": "ratio",
    "tokens": "tokens",
    "slowdown": "ratio",
    "confidence": "0 to 1",
    "cost": "currency",
}

_HEAD: Final = """\
# Metrics

<!-- Written by `python -m tools.metrics_reference`; change the declarations, not this file. -->

`GET /metrics` on the control port has all of these, in Prometheus' text format. A histogram has the series
`…_bucket`, `…_sum` and `…_count`. Labels have few values. A session is never a label. Values of labels:
[reasons](reasons.md), [outcomes](observability.md#failures). Prometheus' client library adds `process_…` and
`python_…`.

"""
_OF_PLUGIN: Final = """
## Of the engine plugin

In vLLM's own `/metrics`, where the engine carries `turnpike-vllm`.

"""


class Row(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


def gateway_rows() -> list[Row]:
    """Everything that a gateway exports, by name."""
    metrics = Metrics(
        lambda: Gauges(at_s=0.0, session_count=0, running=0, waiting=0, active_tools=0),
        {"faults": (FAULTS, int), **{name: (what, int) for name, what, _, _ in COUNTED_ELSEWHERE}},
        outcome=(outcome := Objective(ObjectiveConfig(), max_sessions=1)),
        usages=Usages([PriceConfig(model="*", input=1.0, output=1.0)]),
    )
    metrics.is_store_up = lambda: True
    metrics.mcp = McpCounts()
    rows = [
        Row(_full(each.name, each.type), each.type, tuple(_labels(each)), each.documentation)
        for each in metrics.collect()
    ]
    rows += [Row(each.name, "histogram", tuple(each.labels), each.help_text) for each in outcome.histograms()]
    return sorted(rows)


def plugin_rows() -> Iterator[Row]:
    """The calls `make(name, text, *labels)` in the plugin's module, which needs vLLM to be imported."""
    for node in ast.walk(ast.parse(_PLUGIN.read_text())):
        match node:
            case ast.Call(func=ast.Name("make"), args=arguments):
                name, about, *labels = (ast.literal_eval(each) for each in arguments)
                yield Row(f"turnpike_engine_{name}", "gauge", tuple(labels), about.rstrip("."))
            case _:
                pass


def page() -> str:
    return _HEAD + _table(gateway_rows()) + _OF_PLUGIN + _table(plugin_rows())


def _table(rows: Any) -> str:
    lines = [
        f"| `{row.name}` | {row.kind} | {', '.join(f'`{each}`' for each in row.labels) or '–'} "
        f"| {_unit(row.name)} | {row.about}. |\n"
        for row in rows
    ]
    return "| name | type | labels | unit | |\n|---|---|---|---|---|\n" + "".join(lines)


def _full(name: str, kind: str) -> str:
    return name + {"counter": "_total", "info": "_info"}.get(kind, "")


def _labels(family: Any) -> tuple[str, ...]:
    return ("version",) if family.type == "info" else family._labelnames  # noqa: SLF001


def _unit(name: str) -> str:
    last = name.removesuffix("_total").rpartition("_")[2]
    return _UNITS.get(last, "–")


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"wrote {TARGET.name}")
