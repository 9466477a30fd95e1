"""AIPerf's table on the page: figures of live servers, as the last lines of `benchmarks.rivals aiperf` print
them."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from benchmarks.rivals.arms import NONE, OURS, ROUTERS
from benchmarks.rivals.judging import BEST_ROUTER
from benchmarks.verdict import Figure

_LOSS: Final = 1.05
"""More than this is bold: two runs of the same differ by about as much."""
_AGAINST: Final = {NONE: "no gateway", BEST_ROUTER: "best router"}
_COLUMNS: Final = {
    "requests_per_s": "requests a second",
    "completion_mean_s": "mean completion",
    "ttft_mean_ms": "TTFT mean",
    "ttft_p99_ms": "TTFT p99",
}
_MORE_IS_BETTER: Final = "requests_per_s"
_FIGURES: Final = re.compile(r"((?:(?P<pause_s>[\d.]+)s(?:_of_(?P<conversations>\d+))?|\w+)\.)failed")
"""Each row has this figure under its own name."""
_NAMES: Final = {"agentic.": "agentic coding, 8 of 12", "mooncake.": "Mooncake, at its times"}


def table(line: Mapping[str, Figure]) -> Iterator[str]:
    """For each row of the command: Turnpike ÷ no gateway, and ÷ the best router."""
    yield f"| load | Turnpike ÷ | {' | '.join(_COLUMNS.values())} | pace |"
    yield "|---|---|" + "--:|" * (len(_COLUMNS) + 1)
    for row in filter(None, map(_FIGURES.fullmatch, line)):
        for number, (other, name) in enumerate(_AGAINST.items()):
            cells = [_cell(line, f"{row[1]}{figure}_to_{other}", figure) for figure in _COLUMNS]
            cells.append(f"{_pace(line, row[1], other):.2f}")
            yield f"| {'' if number else _name(row)} | {name} | {' | '.join(cells)} |"


def over_all(line: Mapping[str, Figure], figure: str, other: str) -> str:
    """Of Turnpike's ratio to the other arm, the least and the most of the rows."""
    rows = filter(None, map(_FIGURES.fullmatch, line))
    found = [line[f"{row[1]}{figure}_to_{other}"].value or 0.0 for row in rows]
    return f"{min(found):.2f} to {max(found):.2f}"


def _name(row: re.Match[str]) -> str:
    pause_s, conversations = row["pause_s"], row["conversations"]
    if pause_s is None:
        return _NAMES[row[1]]
    return f"{pause_s} s, {f'20 of {conversations}' if conversations else '20 at once'}"


def _cell(line: Mapping[str, Figure], name: str, figure: str) -> str:
    value, low, high = (line[name + end].value for end in ("", "_low", "_high"))
    if value is None or low is None or high is None:
        return "–"
    text = f"{value:.2f} ({low:.2f}–{high:.2f})"
    is_loss = value < 1 / _LOSS if figure == _MORE_IS_BETTER else value > _LOSS
    return f"**{text}**" if is_loss else text


def _pace(line: Mapping[str, Figure], row: str, other: str) -> float:
    """The machine's, medians: seconds of the same little work beside Turnpike's runs ÷ beside the other's."""

    def median(arm: str, figure: str) -> float:
        return line[f"{row}{arm}.{figure}"].value or 0.0

    if other == BEST_ROUTER:
        played = [arm for arm in ROUTERS if f"{row}{arm}.pace_ms" in line]
        other = min(played, key=lambda arm: median(arm, "completion_mean_s"))
    return median(OURS, "pace_ms") / median(other, "pace_ms")
