"""The table that `turnpike simulate` prints: a block for each load, a row for each policy."""

from collections.abc import Sequence
from typing import Final

from lab.simulator.experiment.results import Cell
from lab.simulator.measures.figures import BY_NAME

COLUMNS: Final = (
    ("completion_mean_s", "mean s"),
    ("completion_p50_s", "p50"),
    ("completion_p90_s", "p90"),
    ("completion_p99_s", "p99"),
    ("ttft_p50_s", "ttft p50"),
    ("ttft_p90_s", "ttft p90"),
    ("goodput_2", "good ×2"),
    ("slo", "slo"),
    ("jain_sessions", "jain"),
    ("hit_rate", "hits"),
    ("sessions_per_h", "per h"),
    ("preemptions", "preempt"),
    ("failed", "failed"),
)


def number(metric: str, value: float | None) -> str:
    if value is None:
        return "–"
    if BY_NAME[metric].is_share or metric.startswith("jain"):
        return f"{value:.2f}"
    if abs(value) >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}"


def spread_of(cell: Cell, metric: str) -> str:
    """The median, and from where to where it goes over the seeds."""
    spread = cell.metrics[metric]
    if spread is None:
        return "–"
    middle = number(metric, spread.median)
    if spread.min == spread.max:
        return middle
    return f"{middle} ({number(metric, spread.min)}–{number(metric, spread.max)})"


def name_of(cell: Cell) -> str:
    name = cell.variant if cell.variants == 1 else f"{cell.variant} (best of {cell.variants})"
    return f"{name} *" if cell.is_clairvoyant else name


def load_of(cell: Cell) -> str:
    return "the file's own pace" if cell.per_h is None else f"{cell.per_h:g} sessions/h"


def table(cells: Sequence[Cell]) -> str:
    """Of sweeps, the best only. A star marks what is clairvoyant."""
    shown = [cell for cell in cells if cell.is_best]
    first, *_ = COLUMNS
    lines: list[str] = []
    for load in dict.fromkeys(cell.per_h for cell in shown):
        rows = [cell for cell in shown if cell.per_h == load]
        cells_of = [
            [name_of(cell), spread_of(cell, first[0])]
            + [number(metric, cell.median(metric)) for metric, _ in COLUMNS[1:]]
            for cell in rows
        ]
        heads = ["policy", *(head for _, head in COLUMNS)]
        widths = [max(len(row[at]) for row in [heads, *cells_of]) for at in range(len(heads))]
        lines += [load_of(rows[0]), _line(heads, widths), *(_line(row, widths) for row in cells_of), ""]
    if any(cell.is_clairvoyant for cell in shown):
        lines.append("* knows what no gateway can: a bound.")
    return "\n".join(lines).rstrip()


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    figures = [f"{each:>{width}}" for each, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([f"{row[0]:<{widths[0]}}", *figures])
