"""The papers' headlines whose runs are another benchmark's: the figures of its last line are stored.

`lines/NAME.json` has what one command prints, name → {value, target, ok}; `headlines.toml` says which command
that is and which figures stand beside which headline. A run that is made again replaces its figures.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from benchmarks.verdict import Figure

FOLDER: Final = Path(__file__).parent
NOT_MEASURED: Final = "**not measured**"

Shown = Literal["less", "gain", "share"]
"""0.18 is told as −18 %; 5.1 as ÷ 5.1, a gain of a time; 1.07 as × 1.07."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: str
    told_at: str
    """The revision whose page tells them."""
    page: str
    """Below docs/design, with the section: where its figures are told and explained."""
    note: str = ""


class Headline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paper: str
    what: str
    theirs: str
    """As printed."""
    differs: str
    source: str = ""
    """Empty if nothing was measured."""
    shown: Shown = "share"
    at_least: float | None = None
    """Of a figure as it is stored; what the paper prints at the least. Short of it, it is a miss."""
    at_most: float | None = None
    policy: dict[str, str] = {}
    """The paper's policy as it is built here: figures by what they are of; an empty text says nothing."""
    ours: dict[str, str] = {}

    def is_missed(self, value: float) -> bool:
        return (self.at_least is not None and value < self.at_least) or (
            self.at_most is not None and value > self.at_most
        )


class Headlines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sources: dict[str, Source]
    headlines: list[Headline]

    @classmethod
    def read(cls) -> Self:
        return msgspec.toml.decode((FOLDER / "headlines.toml").read_bytes(), type=cls)


def figures(source: str) -> dict[str, Figure]:
    """As the command printed them."""
    line = (FOLDER / f"lines/{source}.json").read_bytes()
    return msgspec.json.decode(line, type=dict[str, Figure])


def rows(found: Headlines) -> Iterator[str]:
    """Of the table that `page.whole` begins."""
    lines = {source: figures(source) for source in found.sources}
    for each in found.headlines:
        line = lines.get(each.source, {})
        theirs = _cell(each, each.policy, line) or "–"
        ours = _cell(each, each.ours, line) or NOT_MEASURED
        source = found.sources.get(each.source)
        differs = each.differs if source is None else f"{each.differs} ([{each.source}]({source.page}))"
        yield f"| {each.paper}: {each.what} | {each.theirs} | {theirs} | {ours} | {differs} |"


def sources(found: Headlines) -> Iterator[str]:
    yield "Figures are the command's last line, at that revision. Its code may be older than the cells'."
    yield ""
    yield "| figures | command | revision |"
    yield "|---|---|---|"
    for name, each in found.sources.items():
        note = f"; {each.note}" if each.note else ""
        yield f"| [{name}]({each.page}) | `{each.command}`{note} | {each.told_at} |"


def _cell(each: Headline, wanted: Mapping[str, str], line: Mapping[str, Figure]) -> str:
    told = []
    for of, name in wanted.items():
        text = f"{of}: " * bool(of) + told_figure(name, line, each.shown)
        value = line[name].value
        is_missed = value is None or each.is_missed(value)
        told.append(f"**{text}**" if is_missed else text)
    return "; ".join(told)


def told_figure(name: str, line: Mapping[str, Figure], shown: Shown) -> str:
    """With its interval, if the command told one. KeyError if it did not tell the figure at all."""
    value, low, high = (
        found.value if found is not None else None
        for found in (line[name], line.get(f"{name}_low"), line.get(f"{name}_high"))
    )
    if value is None:
        return NOT_MEASURED.strip("*")
    text = {"less": f"−{100 * value:.3g} %", "gain": f"÷ {value:.3g}", "share": f"× {value:.3g}"}[shown]
    if low is None or high is None:
        return text
    times = 100 if shown == "less" else 1
    return f"{text} ({times * low:.3g} to {times * high:.3g})"
