"""The tables of a report."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from lab.simulator.experiment.results import Cell
from lab.simulator.measures.figures import BY_NAME
from lab.simulator.report.text import load_of, name_of, number

_COLUMNS: Final = (
    ("completion_mean_s", "mean, s"),
    ("completion_p50_s", "p50"),
    ("completion_p90_s", "p90"),
    ("completion_p99_s", "p99"),
    ("ttft_p50_s", "ttft p50"),
    ("ttft_p90_s", "ttft p90"),
    ("final_ttft_p50_s", "final ttft p50"),
    ("goodput_1.5", "≤ 1.5 ×"),
    ("goodput_2", "≤ 2 ×"),
    ("goodput_4", "≤ 4 ×"),
    ("slo", "slo"),
    ("jain_sessions", "Jain"),
    ("hit_rate", "hits"),
    ("recomputed_tokens", "computed again"),
    ("preemptions", "preempted"),
    ("sessions_per_h", "an hour"),
    ("output_tokens_per_s", "tokens/s"),
    ("failed", "failed"),
)


def of_load(cells: Sequence[Cell]) -> str:
    """A row for each policy; what is best in its column stands out."""
    heads = "".join(f"<th>{escape(title)}</th>" for _, title in _COLUMNS)
    best = {metric: _best(cells, metric) for metric, _ in _COLUMNS}
    rows = []
    for cell in cells:
        figures = []
        for metric, _ in _COLUMNS:
            spread = cell.metrics[metric]
            if spread is None:
                figures.append("<td>–</td>")
                continue
            middle = number(metric, spread.median)
            mark = ' class="best"' if len(cells) > 1 and spread.median == best[metric] else ""
            ends = ""
            if spread.min != spread.max:
                ends = f"<small>{number(metric, spread.min)}–{number(metric, spread.max)}</small>"
            figures.append(f"<td{mark}>{middle}{ends}</td>")
        rows.append(f"<tr><td>{escape(name_of(cell))}</td>{''.join(figures)}</tr>")
    star = ""
    if any(cell.is_clairvoyant for cell in cells):
        star = '<p class="dim">* knows what no gateway can: a bound.</p>'
    head = f"<tr><th>policy</th>{heads}</tr>"
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>{star}'


def _best(cells: Sequence[Cell], metric: str) -> float | None:
    """Among those that are not clairvoyant."""
    is_higher = BY_NAME[metric].higher_is_better
    values = [
        value for cell in cells if not cell.is_clairvoyant and (value := cell.median(metric)) is not None
    ]
    if is_higher is None or not values:
        return None
    return max(values) if is_higher else min(values)


def sweeps(cells: Sequence[Cell]) -> Iterable[str]:
    """Of every policy with variants: all of them, at every load."""
    swept = [cell for cell in cells if cell.variants > 1]
    if not swept:
        return
    yield "<h2>Sweeps</h2>"
    for policy in dict.fromkeys(cell.policy for cell in swept):
        of_policy = [cell for cell in swept if cell.policy == policy]
        loads = list(dict.fromkeys(cell.per_h for cell in of_policy))
        heads = "".join(f"<th>{escape(load_of(c))}</th>" for c in _firsts(of_policy, loads))
        rows = []
        for variant in dict.fromkeys(cell.variant for cell in of_policy):
            figures = []
            for load in loads:
                cell = next(c for c in of_policy if c.variant == variant and c.per_h == load)
                mark = ' class="best"' if cell.is_best else ""
                figures.append(
                    f"<td{mark}>{number('completion_mean_s', cell.median('completion_mean_s'))}</td>"
                )
            rows.append(f"<tr><td>{escape(variant)}</td>{''.join(figures)}</tr>")
        yield f"<details><summary>{escape(policy)}: mean completion, s</summary>"
        yield f'<div class="wide"><table><tr><th>variant</th>{heads}</tr>'
        yield f"{''.join(rows)}</table></div></details>"


def _firsts(cells: Sequence[Cell], loads: Sequence[float | None]) -> list[Cell]:
    return [next(cell for cell in cells if cell.per_h == load) for load in loads]
