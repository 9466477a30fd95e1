"""The plots of a report: curves over load, distributions, what happened over time, sessions in full."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lab.simulator.experiment.results import Cell
from lab.simulator.measures.figures import BY_NAME
from lab.simulator.measures.waterfall import Shown
from lab.simulator.report.svg import Frame, Points, Scale, rect, short, text

_H: Final = 3600.0
_ROW: Final = 16
_GAP: Final = 5


def over_load(cells: Sequence[Cell], policies: Sequence[str], metric: str, title: str) -> str | None:
    """A line for each policy: medians over the seeds, in a band from least to most. None for one load."""
    known = [cell for cell in cells if cell.per_h is not None and cell.metrics[metric] is not None]
    loads = sorted({cell.per_h for cell in known if cell.per_h is not None})
    if len(loads) < 2:
        return None
    values = [
        value for cell in known if (spread := cell.metrics[metric]) for value in (spread.min, spread.max)
    ]
    is_share = BY_NAME[metric].is_share
    is_log = not is_share and min(values) > 0 and max(values) > 8 * min(values)
    frame = Frame(
        x=(loads[0], loads[-1]),
        y=_range(values, is_share=is_share, is_log=is_log),
        x_title="sessions an hour",
        log_y=is_log,
        x_ticks=loads if len(loads) <= 8 else None,
    )
    for colour, policy in enumerate(policies):
        spreads = sorted(
            (cell.per_h, spread)
            for cell in known
            if cell.policy == policy and cell.per_h is not None and (spread := cell.metrics[metric])
        )
        frame.band([(x, s.min) for x, s in spreads], [(x, s.max) for x, s in spreads], colour)
        frame.line([(x, s.median) for x, s in spreads], colour, policy, marks=True)
    return frame.svg(title)


def distribution(cells: Sequence[Cell], policies: Sequence[str], which: str, title: str) -> str | None:
    """Of one load. Each line's quantiles are means over the seeds."""
    curves = {cell.policy: _mean_curve([getattr(run, which) for run in cell.runs]) for cell in cells}
    values = [x for curve in curves.values() for x, _ in curve if x > 0]
    if not values:
        return None
    is_log = max(values) > 8 * min(values)
    frame = Frame(
        x=_range(values, is_share=False, is_log=is_log),
        y=(0.0, 1.0),
        x_title=title,
        y_title="share of sessions" if which != "ttft_cdf" else "share of turns",
        log_x=is_log,
    )
    for colour, policy in enumerate(policies):
        if policy in curves:
            frame.line(curves[policy], colour, policy)
    return frame.svg(title)


def over_time(cells: Sequence[Cell], policies: Sequence[str], which: str, *, is_share: bool) -> str | None:
    """Of one load and its first seed."""
    series = {cell.policy: [(at_s / _H, y) for at_s, y in cell.runs[0].over_time[which]] for cell in cells}
    values = [y for points in series.values() for _, y in points]
    if not values:
        return None
    end_h = max(x for points in series.values() for x, _ in points)
    frame = Frame(
        x=(0.0, end_h),
        y=(0.0, 1.0) if is_share else (0.0, max(values) * 1.05 or 1.0),
        x_title="hours",
    )
    for colour, policy in enumerate(policies):
        frame.line(series.get(policy, []), colour, policy)
    return frame.svg(which)


def waterfall(shown: Sequence[Shown], span_s: float) -> str:
    """A row for each conversation of each session, from the session's arrival on."""
    width, left, right = 940, 150, 12
    rows = [(each, thread) for each in shown for thread in sorted({turn.thread for turn in each.turns})]
    height = len(rows) * (_ROW + _GAP) + 30

    def x(at_s: float) -> float:
        return left + (width - left - right) * min(1.0, at_s / span_s)

    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{height - 28}"/>'
        + text(x(tick), height - 14, short(tick), "tick middle")
        for tick in Scale(0.0, span_s, 0, 1).ticks()
    ]
    for number, (each, thread) in enumerate(rows):
        y = number * (_ROW + _GAP) + 2
        name = _clip(each.id if thread == 0 else f"↳ sub-agent {thread}")
        parts.append(text(left - 8, y + _ROW - 4, name, "tick end"))
        parts += _row(each, thread, y, x)
    parts.append(text(width - right, height - 2, "seconds since the session's arrival", "label end"))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="sessions in full">'
        + "".join(parts)
        + "</svg>"
    )


def _row(each: Shown, thread: int, y: float, x: Callable[[float], float]) -> Iterator[str]:
    begin_s = each.arrival_s
    turns = sorted((turn for turn in each.turns if turn.thread == thread), key=lambda turn: turn.turn)
    first = begin_s if thread == 0 else turns[0].arrival_s
    last_s = max(turn.end_s for turn in turns)
    if thread == 0:
        alone = x(each.isolated_s)
        yield f'<line class="alone" x1="{alone:.1f}" x2="{alone:.1f}" y1="{y - 2}" y2="{y + _ROW + 2}"/>'
    yield rect(
        x(first - begin_s),
        y + 5,
        x(last_s - begin_s) - x(first - begin_s),
        _ROW - 10,
        "s-tool",
        "tools, pauses",
    )
    for turn in turns:
        dispatched_s = turn.arrival_s + turn.waited_s
        for kind, start_s, end_s in (
            ("wait", turn.arrival_s, dispatched_s),
            ("queue", dispatched_s, turn.began_s),
            ("prefill", turn.began_s, turn.first_token_s),
            ("decode", turn.first_token_s, turn.end_s),
        ):
            if end_s > start_s:
                span = f"turn {turn.turn}: {kind} {end_s - start_s:.2f} s"
                yield rect(
                    x(start_s - begin_s),
                    y,
                    x(end_s - begin_s) - x(start_s - begin_s),
                    _ROW,
                    f"s-{kind}",
                    f"{span}, {turn.prompt_tokens:,} tokens, {turn.cached_tokens:,} of them cached",
                )


def _clip(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _mean_curve(curves: Sequence[Points]) -> Points:
    whole = [curve for curve in curves if curve]
    if not whole:
        return []
    return [(sum(x for x, _ in at) / len(at), at[0][1]) for at in zip(*whole, strict=True)]


def _range(values: Sequence[float], *, is_share: bool, is_log: bool) -> tuple[float, float]:
    if is_share:
        return 0.0, 1.0
    if is_log:
        return min(values) / 1.1, max(values) * 1.1
    return 0.0, max(values) * 1.05 or 1.0
