"""The comparison as one HTML page that needs nothing from elsewhere, readable in light and in dark."""

from collections.abc import Iterator
from html import escape
from importlib import resources

from demo.comparison import Comparison, Measure, by_conversation, done_over_time
from demo.side_by_side import OURS, STOCK, introduction
from demo.sides import Side
from lab.simulator.report.svg import Frame, Scale, rect, short, text

_WIDTH, _LEFT, _RIGHT, _ROW, _GAP = 940, 96, 12, 12, 4
_PHASES = (
    ("wait", "waits at the gateway"),
    ("prefill", "waits for the first token in the engine: its queue, prefill"),
    ("decode", "is answered"),
    ("tool", "runs a tool, pauses"),
)
_STYLE = """
td.better { color: var(--c2); font-weight: 600; } td.worse { color: var(--wait); font-weight: 600; }
td.same { color: var(--dim); } .legend.still { position: static; } .plots { max-width: 560px; }
"""


def as_html(compared: Comparison, *, dashboard: str | None = None) -> str:
    """`dashboard`: its address, as long as the demo runs."""
    shared = resources.files("lab.simulator.report").joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(_body(compared, dashboard))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Turnpike: what changes</title><style>\n{shared}{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _body(compared: Comparison, dashboard: str | None) -> Iterator[str]:
    yield "<h1>What changes</h1>"
    yield from (f'<p class="dim">{escape(line)}</p>' for line in introduction(compared))
    if dashboard is not None:
        link = f'<a href="{escape(dashboard)}">{escape(dashboard)}</a>'
        yield f"<p>The dashboard, as long as the demo runs: {link}</p>"
    yield "<h2>In figures</h2>"
    head = f"<tr><th></th><th>{STOCK}</th><th>{OURS}</th><th>ratio</th><th></th></tr>"
    rows = "".join(_row(each) for each in compared.measures)
    yield f'<div class="wide"><table>{head}{rows}</table></div>'
    yield "<h2>Where it does not help</h2>"
    yield _list(compared.losses or ["Nothing here was worse."])
    yield _list(compared.caveats)
    yield "<h2>What waited, and why</h2>"
    yield _list(compared.waits)
    yield "<h2>Every replayed conversation</h2>"
    keys = "".join(f'<span><i class="b-{kind}"></i>{meaning}</span>' for kind, meaning in _PHASES)
    yield f'<div class="legend still">{keys}</div>'
    span_s = max(compared.stock.took_s, compared.ours.took_s)
    for name, side in ((STOCK, compared.stock), (OURS, compared.ours)):
        yield f"<h3>{name}</h3>" + f'<div class="wide">{_waterfall(side, span_s, name)}</div>'
    yield "<h2>Conversations done</h2>"
    yield _done(compared, span_s)


def _row(each: Measure) -> str:
    ratio = "" if each.ratio is None or not each.is_judged else f"{each.ratio:.2f}"
    figures = "".join(f"<td>{value}</td>" for value in (each.text(each.stock), each.text(each.ours), ratio))
    return f'<tr><td>{escape(each.name)}</td>{figures}<td class="{each.verdict}">{each.verdict}</td></tr>'


def _list(lines: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _waterfall(side: Side, span_s: float, name: str) -> str:
    """A row for each conversation; both sides' have the same axis of time."""
    axis = Scale(0.0, span_s, _LEFT, _WIDTH - _RIGHT)
    found = by_conversation(side)
    height = len(found) * (_ROW + _GAP) + 34
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 32}"/>')
        parts.append(text(x, height - 18, short(tick), "tick middle"))
    parts.append(text(_WIDTH - _RIGHT, height - 3, "seconds since the crowd came", "label end"))
    for number, (session, turns) in enumerate(found.items()):
        y = 2.0 + number * (_ROW + _GAP)
        parts.append(text(_LEFT - 8, y + _ROW - 2, session, "tick end"))
        first, last = axis.at(turns[0].arrival_s), axis.at(turns[-1].end_s)
        parts.append(rect(first, y + 4, last - first, _ROW - 8, "s-tool", "tools, pauses"))
        for turn in turns:
            sent_s = turn.arrival_s + turn.waited_s
            for kind, start_s, end_s in (
                ("wait", turn.arrival_s, sent_s),
                ("prefill", sent_s, turn.first_token_s),
                ("decode", turn.first_token_s, turn.end_s),
            ):
                if end_s > start_s:
                    said = (
                        f"turn {turn.turn + 1}: {kind} {end_s - start_s:.2f} s, "
                        f"{turn.cached_tokens:,} tokens of its prompt were cached"
                    )
                    start = axis.at(start_s)
                    parts.append(rect(start, y, axis.at(end_s) - start, _ROW, f"s-{kind}", said))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="conversations, {name}">'
        f"{''.join(parts)}</svg>"
    )


def _done(compared: Comparison, span_s: float) -> str:
    count = len(compared.ours.played.seen.seconds)
    frame = Frame(x=(0.0, span_s), y=(0.0, float(count)), x_title="seconds since the crowd came")
    at_s = [span_s * step / 200 for step in range(201)]
    legend = []
    for colour, (name, side) in enumerate(((OURS, compared.ours), (STOCK, compared.stock))):
        frame.line([*zip(at_s, map(float, done_over_time(side, at_s)), strict=True)], colour, name)
        line = f'<svg viewBox="0 0 26 10"><line class="line c{colour}" x1="0" x2="26" y1="5" y2="5"/></svg>'
        legend.append(f"<span>{line}{name}</span>")
    return (
        f'<div class="legend still">{"".join(legend)}</div>'
        f'<div class="plots"><figure>{frame.svg("conversations done")}</figure></div>'
    )
