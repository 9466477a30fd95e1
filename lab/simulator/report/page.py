"""The report as one HTML page that needs nothing from elsewhere: no script, no font, no picture."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

import msgspec

from lab.simulator.experiment.results import Cell
from lab.simulator.fleet import FleetSpec
from lab.simulator.measures.figures import METRICS
from lab.simulator.report import plots
from lab.simulator.report.svg import COLOURS
from lab.simulator.report.tables import of_load, sweeps
from lab.simulator.report.text import load_of
from lab.workload.trace.format import Header

_OVER_LOAD: Final = (
    ("completion_mean_s", "mean completion, s"),
    ("completion_p90_s", "p90 of completion, s"),
    ("goodput_2", "sessions within 2 × isolated"),
    ("ttft_p90_s", "p90 of time to first token, s"),
    ("sessions_per_h", "sessions done an hour"),
    ("hit_rate", "hit rate"),
    ("recomputed_tokens", "tokens computed again"),
    ("kv_used_mean", "KV blocks held"),
)
_SEGMENTS: Final = (
    ("wait", "in the gateway"),
    ("queue", "in the engine's queue"),
    ("prefill", "prefill"),
    ("decode", "decode"),
    ("tool", "tools and pauses"),
)


class Page(msgspec.Struct, kw_only=True):
    title: str
    workload: Header
    fleet: FleetSpec
    arrivals: str
    sessions: int
    """Of each run."""
    seeds: int
    cells: list[Cell]


def page(said: Page) -> str:
    best = [cell for cell in said.cells if cell.is_best]
    policies = list(dict.fromkeys(cell.policy for cell in best))
    loads = list(dict.fromkeys(cell.per_h for cell in best))
    body = [*_head(said), _legend(policies), *_curves(best, policies)]
    for load in loads:
        body += _load([cell for cell in best if cell.per_h == load], policies)
    body += sweeps(said.cells)
    body += _meanings()
    style = resources.files("lab.simulator.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(said.title)}: simulation</title><style>\n{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _head(said: Page) -> Iterable[str]:
    yield f"<h1>{escape(said.title)}, simulated</h1>"
    yield (
        f'<p class="dim">{said.sessions} sessions a run, {said.seeds} seed(s), '
        f"{escape(said.arrivals)} arrivals. Medians over the seeds; bands and small figures show least and "
        "most.</p>"
    )
    groups = [
        f"{group.count} × <code>{escape(group.profile)}</code>"
        + (f", {group.kv_blocks:,} KV blocks" if group.kv_blocks else "")
        + (f", {group.offload_gb:g} GB of host memory for KV" if group.offload_gb else "")
        for group in said.fleet.replicas
    ]
    hosts = [f"{host.count} × {host.cores:g} cores" for host in said.fleet.tool_hosts]
    sources = [
        f"{escape(source.what)}: {escape(source.origin)}"
        + (f' <span class="dim">({escape(source.how)})</span>' if source.how else "")
        for source in said.workload.sources
    ]
    yield "<details><summary>what was simulated</summary><dl>"
    yield f"<dt>replicas</dt><dd>{'<br>'.join(groups)}</dd>"
    yield f"<dt>tool hosts</dt><dd>{'<br>'.join(hosts) or 'as many cores as anybody wants'}</dd>"
    yield f"<dt>noise</dt><dd>σ = {said.fleet.noise:g} on each engine step</dd>"
    yield f"<dt>workload</dt><dd>{'<br>'.join(sources) or '–'}</dd></dl></details>"


def _legend(policies: Sequence[str]) -> str:
    items = []
    for colour, policy in enumerate(policies):
        dash = f" d{min(2, colour // COLOURS)}" if colour >= COLOURS else ""
        line = f'<line class="line c{colour % COLOURS}{dash}" x1="0" x2="26" y1="5" y2="5"/>'
        swatch = f'<svg viewBox="0 0 26 10">{line}</svg>'
        items.append(f"<span>{swatch}{escape(policy)}</span>")
    return f'<div class="legend">{"".join(items)}</div>'


def _curves(best: Sequence[Cell], policies: Sequence[str]) -> Iterable[str]:
    drawn = [
        _figure(title, drawing)
        for metric, title in _OVER_LOAD
        if (drawing := plots.over_load(best, policies, metric, title))
    ]
    if drawn:
        yield f'<h2>Over the load</h2><div class="plots">{"".join(drawn)}</div>'


def _load(cells: Sequence[Cell], policies: Sequence[str]) -> Iterable[str]:
    yield f"<h2>At {escape(load_of(cells[0]))}</h2>"
    yield of_load(cells)
    distributions = (
        ("completion_cdf", "completion, s"),
        ("slowdown_cdf", "completion / isolated"),
        ("ttft_cdf", "time to first token, s"),
    )
    drawn = [
        _figure(title, drawing)
        for which, title in distributions
        if (drawing := plots.distribution(cells, policies, which, title))
    ]
    series = (
        ("sessions inside", False),
        ("waiting sessions", False),
        ("turns in engine queues", False),
        ("KV used", True),
        ("hit rate", True),
    )
    drawn += [
        _figure(f"{which}, over time (first seed)", drawing)
        for which, is_share in series
        if (drawing := plots.over_time(cells, policies, which, is_share=is_share))
    ]
    yield f'<div class="plots">{"".join(drawn)}</div>'
    yield from _waterfalls(cells)


def _waterfalls(cells: Sequence[Cell]) -> Iterable[str]:
    shown = {cell.policy: cell.runs[0].shown for cell in cells if cell.runs[0].shown}
    if not shown:
        return
    yield "<h3>Sessions in full (first seed; the line marks when each would have ended alone)</h3>"
    keys = (f'<span><i class="b-{kind}"></i>{meaning}</span>' for kind, meaning in _SEGMENTS)
    yield f'<div class="legend" style="position:static">{"".join(keys)}</div>'
    for number_, (policy, sessions) in enumerate(shown.items()):
        span_s = max(each.end_s - each.arrival_s for each in sessions)
        is_open = " open" if number_ == 0 else ""
        drawing = plots.waterfall(sessions, span_s)
        yield f"<details{is_open}><summary>{escape(policy)}</summary>"
        yield f'<div class="wide">{drawing}</div></details>'


def _meanings() -> Iterable[str]:
    yield "<h2>What the figures mean</h2><details><summary>metrics</summary><dl>"
    for metric in METRICS:
        yield f"<dt>{escape(metric.name)}</dt><dd>{escape(metric.meaning)}</dd>"
    yield "</dl></details>"


def _figure(title: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}</figure>"
