"""One picture a workload: mean completion and goodput over load, with 95 % of the mean as a band."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.results.figures import Cell, cells, of_logs, strongest
from benchmarks.results.scenario import OURS, Scenario
from benchmarks.results.store import Run
from benchmarks.verdict import Interval
from lab.simulator.report.svg import Frame, text

_STYLE: Final = """
text { font: 11px system-ui, sans-serif; fill: #57606a; } .title { font-weight: 600; fill: #24292f; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: #d8dee4; } .axis { stroke: #57606a; fill: none; }
.line { fill: none; stroke: var(--c); stroke-width: 2; } .mark { fill: var(--c); }
.band { fill: var(--c); opacity: .15; }
.c0 { --c: #0969da; } .c1 { --c: #cf222e; } .c2 { --c: #8250df; } .c3 { --c: #bf8700; } .c4 { --c: #1a7f37; }
"""
_TITLES: Final = {"completion_mean_s": "mean completion, s", "goodput_2": "share within 2 × isolated time"}
_LEGEND: Final = 18


def drawing(scenario: Scenario, runs: Sequence[Run]) -> str:
    """A whole SVG document."""
    by_load = {load: cells(scenario, runs, load) for load in scenario.loads}
    shown = list(_shown(by_load))
    frames = [_frame(by_load, shown, metric) for metric in _TITLES]
    width, height = 2 * Frame.WIDTH, Frame.HEIGHT + 24 + _LEGEND * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(12, 16, scenario.title, "title"),
    ]
    for column, frame in enumerate(frames):
        inner = frame.svg(scenario.title).replace("<svg ", f'<svg x="{column * Frame.WIDTH}" y="20" ', 1)
        parts.append(inner.replace("<svg ", f'<svg width="{Frame.WIDTH}" height="{Frame.HEIGHT}" ', 1))
    for row, (colour, name) in enumerate(shown):
        y = Frame.HEIGHT + 34 + row * _LEGEND
        parts.append(f'<line class="line c{colour}" x1="52" x2="78" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(text(86, y, name, "label"))
    return "".join([*parts, "</svg>\n"])


def _shown(by_load: dict[float, list[Cell]]) -> Iterator[tuple[int, str]]:
    """Turnpike, and the baseline that is strongest at most loads, each without and with offload."""
    there = {cell.policy for at in by_load.values() for cell in at}
    for number, has_offload in enumerate((False, True)):
        ours = f"{OURS}+offload" if has_offload else OURS
        rivals = [
            rival.policy
            for at in by_load.values()
            if (rival := strongest(at, "completion_mean_s", has_offload=has_offload)) is not None
        ]
        if ours in there and rivals:
            yield 2 * number, ours
            yield 2 * number + 1, max(sorted(set(rivals)), key=rivals.count)
    if "affinity" in there:
        yield 4, "affinity"


def _frame(by_load: dict[float, list[Cell]], shown: Sequence[tuple[int, str]], metric: str) -> Frame:
    curves = {
        policy: [
            (load, interval)
            for load, at in by_load.items()
            for cell in at
            if cell.policy == policy and (interval := _interval(cell, metric)) is not None
        ]
        for _, policy in shown
    }
    values = [bound for curve in curves.values() for _, each in curve for bound in (each.low, each.high)]
    is_share = metric != "completion_mean_s"
    frame = Frame(
        x=(min(by_load), max(by_load)),
        y=(0.0, 1.0 if is_share else max(values)),
        x_title="load, × knee",
        y_title=_TITLES[metric],
        x_ticks=sorted(by_load),
    )
    for colour, policy in shown:
        curve = curves[policy]
        frame.band([(x, each.low) for x, each in curve], [(x, each.high) for x, each in curve], colour)
        frame.line([(x, each.mean) for x, each in curve], colour, policy, marks=True)
    return frame


def _interval(cell: Cell, metric: str) -> Interval | None:
    values = [value for run in cell.runs.values() if (value := run.metrics[metric]) is not None]
    found = of_logs([math.log(max(value, 1e-9)) for value in values])
    # One run has no bounds, and a band needs some.
    return Interval(found.mean, found.mean, found.mean) if found and len(values) == 1 else found
