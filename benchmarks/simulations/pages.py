"""docs/design/results.md: what was compared, how it went, where Turnpike loses."""

from collections.abc import Iterable, Sequence

from benchmarks.simulations import papers
from benchmarks.simulations.comparison import RELATIVE, STRONG, Comparison, Scope
from benchmarks.simulations.knee import BEHIND, SATURATED
from gateway.simulator.experiment.results import Cell
from gateway.simulator.report.text import number, spread_of

_COLUMNS = (
    ("completion_p90_s", "p90"),
    ("ttft_p90_s", "ttft p90"),
    ("final_ttft_p50_s", "final ttft p50"),
    ("goodput_2", "≤ 2 ×"),
    ("goodput_2_per_h", "≤ 2 ×, an hour"),
    ("slo", "slo"),
    ("jain_sessions", "Jain"),
    ("hit_rate", "hits"),
    ("recomputed_tokens", "computed again"),
    ("sessions_per_h", "an hour"),
)
_NOTICEABLE = 0.03
_HEAD = """\
# Results

Written by `{command}`. Everything here was simulated: the real scheduler of vLLM 0.32 on a virtual
clock, stepped by the cost model, on {fleet}. {seeds} seed(s).
Times are in seconds: the median over the seeds, in brackets from least to most.

The *knee* of a workload is measured: the load up to which stock vLLM with affinity takes at most {behind}
times as long as it would with a KV cache that never fills, and that at most {saturated} times as long as
sessions take alone. Loads are relative to it. Of policies with knobs the best in hindsight is shown. `*`
stands beside what knows more than a gateway can. **Bold** are Turnpike and the two strong baselines: stock
vLLM behind session affinity, without and with its native CPU offload.

## In short
"""


def whole(
    comparisons: Sequence[Comparison], scope: Scope, *, fleet: str, command: str, reference: Sequence[str]
) -> str:
    parts: list[str] = [
        _HEAD.format(
            command=command,
            seeds=scope.seeds,
            fleet=fleet,
            behind=f"{BEHIND:g}",
            saturated=f"{SATURATED:g}",
        ),
        *_short(comparisons),
        "",
    ]
    for comparison in comparisons:
        parts += _workload(comparison)
    parts += ["## The papers' headlines beside ours", "", *papers.table(comparisons), ""]
    if reference:
        parts += ["## Beside an independent simulation", "", *reference, ""]
    return "\n".join(parts)


def _short(comparisons: Sequence[Comparison]) -> Iterable[str]:
    """Turnpike against the strong baseline with the same memory."""
    yield "| workload | load | Turnpike | Turnpike with offload | best static window |"
    yield "|---|---|--:|--:|--:|"
    for comparison in comparisons:
        for name, relative in RELATIVE:
            cells = {cell.policy: cell for cell in comparison.at(relative)}
            windows = [
                cell
                for policy, cell in cells.items()
                if policy.startswith(("session-cap", "footprint")) and "offload" not in policy
            ]
            window = min(windows, key=lambda cell: cell.median("completion_mean_s") or 0.0)
            yield (
                f"| {comparison.workload.name} | {name} the knee | "
                f"{_share(cells['turnpike'], cells['affinity'])} | "
                f"{_share(cells['turnpike+offload'], cells['affinity+offload'])} | "
                f"{_share(window, cells['affinity'])} |"
            )
    yield ""
    yield (
        "Mean completion over that of the strong baseline with the same memory: below 1 is a gain, above 1 a "
        "loss. The window is without offload."
    )


def _share(ours: Cell, theirs: Cell) -> str:
    top, bottom = ours.median("completion_mean_s"), theirs.median("completion_mean_s")
    if not top or not bottom:
        return "–"
    share = top / bottom
    text = f"{share:.2f}"
    return f"**{text}**" if abs(share - 1) > _NOTICEABLE else text


def _workload(comparison: Comparison) -> Iterable[str]:
    workload = comparison.workload
    yield f"## {workload.name}"
    yield ""
    for source in workload.header.sources:
        yield f"- {source.what}: {source.origin}{'; ' + source.how if source.how else ''}"
    tried = ", ".join(
        f"{load:.0f}/h: {slow.stock:.2f} ({slow.unlimited:.2f})"
        for load, slow in sorted(comparison.tried.items())
    )
    yield ""
    yield (
        f"Measured knee: **{comparison.knee_per_h:.0f} sessions/h**. Runs of {comparison.sessions} sessions. "
        f"Completion over isolated time by load, in brackets with unlimited KV: {tried}."
    )
    if workload.left_out:
        yield f"{workload.left_out} sessions are too long for a replica and were left out."
    for name, relative in RELATIVE:
        cells = comparison.at(relative)
        yield ""
        yield f"### {name.capitalize()} the knee: {cells[0].per_h:g} sessions/h"
        yield ""
        yield "| policy | mean | " + " | ".join(head for _, head in _COLUMNS) + " |"
        yield "|---|--:|" + "--:|" * len(_COLUMNS)
        for cell in cells:
            figures = [number(metric, cell.median(metric)) for metric, _ in _COLUMNS]
            star = " *" if cell.is_clairvoyant else ""
            strong = "**" if cell.policy in STRONG or cell.policy.startswith("turnpike") else ""
            mean = spread_of(cell, "completion_mean_s")
            yield f"| {strong}{cell.variant}{strong}{star} | {mean} | {' | '.join(figures)} |"
    yield ""
