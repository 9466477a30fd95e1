"""docs/design/results.md: one screen of what holds and what does not, and everything else folded behind
it."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.results import live
from benchmarks.results.figures import Cell, cells, ratio, strongest
from benchmarks.results.headlines import NOT_MEASURED, Headlines, figures, rows, sources
from benchmarks.results.scenario import OURS, Claim, Scenario
from benchmarks.results.store import Store
from benchmarks.verdict import Interval
from lab.simulator.measures.figures import BY_NAME

OFF: Final = 0.02
"""A run that is made again may be off by so much: sums of floats depend on their order."""
_KNOBS: Final = re.compile(r":[^+]*")
_NOTICEABLE: Final = 0.03
_OTHERS: Final = {"completion_p90_s": "p90", "ttft_p90_s": "TTFT p90", "goodput_2": "goodput"}
_SHOWN: Final = {"completion_mean_s": "mean", **_OTHERS}
_REMEDIES: Final = "remedies"
_BASE: Final = "affinity"
SCENARIOS: Final = (
    _REMEDIES,
    "recorded",
    "recorded-offload",
    "mars-h100",
    "mars-h100-gpt-oss",
    "mars-h200",
    "saga",
)
"""On the page, in this order. Others compare what their own pages report."""
_REMEDY_NAMES: Final = {
    "stock": "nothing: turns go to the replicas in turn",
    "affinity": "session affinity",
    "session-cap": "affinity, and the best fixed cap in hindsight, in sessions a replica: ",
    "turnpike": "Turnpike",
    "turnpike+plugin": "Turnpike and its engine plugin",
}
_EACH_POINT: Final = "Turnpike ÷ the strongest baseline of each figure; named is that of the mean"
_TO_NOTHING: Final = "÷ nothing; in brackets 95 %. ≤ 2 ×: sessions that end within twice their isolated time."
_CUT: Final = """*As recorded* is cut: 214 of 425 sessions, their first 40 turns, contexts of up to
131,072 tokens, tools of up to 60 s and without names, no sub-agents, half of a first prompt shared by all.
A longer pause ends a session; arrivals are random
([workloads](../contribute/workloads.md#importing-recorded-corpora))."""
_ONE_MAKING: Final = """All of a policy's runs on a workload have one hash of sources, also where several
revisions stand. `make results` makes runs of older sources again; no test compares them with today's."""
_HERE: Final = Path(__file__).parent
_HEAD: Final = (_HERE / "head.md").read_text(encoding="utf-8")
_GAINS: Final = (_HERE / "gains.md").read_text(encoding="utf-8")
_FIGURE: Final = re.compile(r"\{(\S+) ([\d.]+) (\S+) (\S+) (mean|ttft|goodput|share)\}")
"""Scenario, load, policy and rival: mean completion, first tokens' p90, goodput, or mean completion in per
cent."""
_OF_KIND: Final = {"ttft": "ttft_p90_s", "goodput": "goodput_2"}
_LIVE_FIGURE: Final = re.compile(r"\{(\w+) (\w+)\}")
_SHORT: Final = (_HERE / "short.md").read_text(encoding="utf-8").strip()
_LIVE: Final = (_HERE / "live.md").read_text(encoding="utf-8").strip()
_FOOT: Final = (_HERE / "foot.md").read_text(encoding="utf-8")


def whole() -> str:
    read = [(name, Scenario.read(name), Store(name)) for name in SCENARIOS]
    told = [each for each in read if each[2].runs]
    papers = [each for each in told if each[0] != _REMEDIES]
    others = Headlines.read()
    aiperf = figures("aiperf")
    head = _LIVE_FIGURE.sub(lambda found: live.over_all(aiperf, *found.groups()), _HEAD)
    parts = [_FIGURE.sub(_figure, head)]
    if Store(_REMEDIES).runs:
        parts += [*_remedies(Scenario.read(_REMEDIES), Store(_REMEDIES)), ""]
    parts += ["## Workloads and loads", "", _SHORT, "", *_short(papers), ""]
    parts += [_LIVE, "", *_details("Each load", live.table(aiperf)), ""]
    parts += ["## The papers' headlines, each on its own ground", ""]
    parts += [*_details("Theirs, their policy here, and Turnpike", [*_claims(read), *rows(others)]), ""]
    parts += _details("Where the figures that are of no workload above come from", sources(others))
    parts += ["", "## Every point", ""]
    parts += [*_details(_EACH_POINT, _points(papers)), ""]
    parts += [*_details("Each policy's mean completion ÷ session affinity's", _policies(papers)), ""]
    parts += [*_details("What made the cells", _cells(told)), ""]
    return "\n".join([*parts, _FOOT])


def gains() -> str:
    """The README's table."""
    return _FIGURE.sub(_figure, _GAINS)


def _figure(found: re.Match[str]) -> str:
    name, load, ours, rival, kind = found.groups()
    at = {
        _KNOBS.sub("", cell.policy): cell
        for cell in cells(Scenario.read(name), Store(name).runs.values(), float(load))
    }
    if ours not in at or rival not in at:
        return NOT_MEASURED.strip("*")
    told = ratio(at[ours], at[rival], _OF_KIND.get(kind, "completion_mean_s"))
    assert told is not None
    if kind == "share":
        return f"{100 * told.mean:.0f} %{': slower' if told.mean > 1 + _NOTICEABLE else ''}"
    return f"{told.mean:.2f} ({told.low:.2f} to {told.high:.2f})"


def _details(summary: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"<details><summary>{summary}</summary>"
    yield ""
    yield from lines
    yield ""
    yield "</details>"


def _remedies(scenario: Scenario, store: Store) -> Iterator[str]:
    """Each remedy ÷ the first policy, without native offload and with it."""
    [load] = scenario.loads
    found = cells(scenario, store.runs.values(), load)
    by_name = {_KNOBS.sub("", cell.label): cell for cell in found}
    nothing = found[0]
    yield f"## {scenario.title}"
    yield ""
    yield (
        f"At {scenario.per_h(load):g} sessions an hour: for each replica {load:g} × the knee of one alone. "
        f"{len(nothing.runs)} seeds."
    )
    yield _TO_NOTHING
    yield _CUT
    yield ""
    yield "| remedy | mean | TTFT p90 | ≤ 2 × | with native offload: mean | TTFT p90 | ≤ 2 × |"
    yield "|---|" + "--:|" * 6
    for policy, remedy in _REMEDY_NAMES.items():
        columns, knobs = [], []
        for name in (policy, f"{policy}+offload"):
            cell = by_name.get(name)
            knobs += [] if cell is None else [each.partition("=")[2] for each in _KNOBS.findall(cell.label)]
            for metric in ("completion_mean_s", "ttft_p90_s"):
                against = None if cell is None else ratio(cell, nothing, metric)
                columns.append(told_ratio(against, metric))
            columns.append("–" if cell is None else f"{cell.mean('goodput_2'):.0%}")
        yield f"| {remedy}{', with offload '.join(knobs)} | {' | '.join(columns)} |"


def _short(told: Sequence[tuple[str, Scenario, Store]]) -> Iterator[str]:
    """A row for each workload and each memory and engine that Turnpike has there."""
    loads = sorted({load for _, scenario, _ in told for load in scenario.loads})
    heads = " | ".join(f"{load:g} × knee" for load in loads)
    yield f"| workload | Turnpike | {heads} | worst other figure | seeds |"
    yield "|---|---|" + "--:|" * len(loads) + "---|--:|"
    for _, scenario, store in told:
        by_load = {load: cells(scenario, store.runs.values(), load) for load in scenario.loads}
        ours = {cell.label: None for at in by_load.values() for cell in at if cell.is_ours}
        for row, label in enumerate(ours):
            means, losses, seeds = dict.fromkeys(loads, "–"), [(1.0, "–")], 0
            for load, at in by_load.items():
                cell = next((each for each in at if each.label == label), None)
                if cell is None:
                    continue
                seeds = len(cell.runs)
                means[load] = _against(at, cell, "completion_mean_s")
                losses += [_loss(at, cell, metric, load) for metric in _OTHERS]
            worst, text = max(losses)
            yield (
                f"| {'' if row else scenario.title} | `{label}` | {' | '.join(means.values())} | "
                f"{f'**{text}**' if worst > 1 + _NOTICEABLE else '–'} | {seeds} |"
            )


def _loss(at: Sequence[Cell], ours: Cell, metric: str, load: float) -> tuple[float, str]:
    """How many times worse than the strongest baseline, and in words."""
    rival = strongest(at, metric, has_offload=ours.has_offload)
    found = ratio(ours, rival, metric) if rival is not None else None
    if found is None:
        return 1.0, "–"
    return _times_worse(found, metric), f"{_OTHERS[metric]} × {found.mean:.2f} at {load:g}"


def _points(told: Sequence[tuple[str, Scenario, Store]]) -> Iterator[str]:
    heads = " | ".join(_SHOWN.values())
    yield f"| workload | × knee | Turnpike | strongest baseline | {heads} | seeds |"
    yield "|---|--:|---|---|" + "--:|" * (len(_SHOWN) + 1)
    for _, scenario, store in told:
        for load in scenario.loads:
            at = cells(scenario, store.runs.values(), load)
            for ours in (cell for cell in at if cell.is_ours):
                rival = strongest(at, "completion_mean_s", has_offload=ours.has_offload)
                if rival is None:
                    continue
                ratios = [_against(at, ours, metric) for metric in _SHOWN]
                seeds = len(ours.runs.keys() & rival.runs.keys())
                yield (
                    f"| {scenario.title} | {load:g} | `{ours.label}` | `{rival.label}` | "
                    f"{' | '.join(ratios)} | {seeds} |"
                )


def _policies(told: Sequence[tuple[str, Scenario, Store]]) -> Iterator[str]:
    """A column for each workload and load; without native offload."""
    columns = dict[str, dict[str, str]]()
    for name, scenario, store in told:
        for load in scenario.loads:
            at = {
                _KNOBS.sub("", cell.policy): cell
                for cell in cells(scenario, store.runs.values(), load)
                if not cell.has_offload
            }
            if base := at.pop(_BASE, None):
                column = columns[f"{name}, {load:g} ×"] = {}
                for policy, cell in at.items():
                    if found := ratio(cell, base, "completion_mean_s"):
                        column[policy] = f"{_digits(found.mean)}{_between(found)}"
    yield f"| policy | {' | '.join(columns)} |"
    yield "|---|" + "--:|" * len(columns)
    for policy in dict.fromkeys(policy for column in columns.values() for policy in column):
        yield f"| `{policy}` | {' | '.join(column.get(policy, '–') for column in columns.values())} |"


def _against(at: Sequence[Cell], ours: Cell, metric: str) -> str:
    rival = strongest(at, metric, has_offload=ours.has_offload)
    return "–" if rival is None else told_ratio(ratio(ours, rival, metric), metric)


def told_ratio(found: Interval | None, metric: str) -> str:
    if found is None:
        return "–"
    text = f"{_digits(found.mean)}{_between(found)}"
    return f"**{text}**" if _times_worse(found, metric) > 1 + _NOTICEABLE else text


def _times_worse(found: Interval, metric: str) -> float:
    return 1 / found.mean if BY_NAME[metric].higher_is_better else found.mean


def _claims(told: Sequence[tuple[str, Scenario, Store]]) -> Iterator[str]:
    yield "÷ is how many times less, × how many times as much. MARS and SAGA: the range over the loads above,"
    yield "in brackets 95 % at the best one. **Bold**: short of the least that is printed, or not measured."
    yield ""
    yield "| paper | theirs | their policy here | Turnpike | what differs |"
    yield "|---|---|---|---|---|"
    for _, scenario, store in told:
        by_load = [cells(scenario, store.runs.values(), load) for load in scenario.loads]
        for claim in scenario.claims:
            theirs = _range(by_load, claim, claim.policy, at_least=claim.at_least) or "–"
            ours = _range(by_load, claim, OURS, at_least=claim.at_least) or NOT_MEASURED
            what = f"{scenario.title}: {claim.what}"
            yield f"| {what} | {claim.theirs} | {theirs} | {ours} | {claim.differs} |"


def _range(
    by_load: Iterable[Sequence[Cell]], claim: Claim, policy: str, *, at_least: float | None = None
) -> str:
    """As gains: 2 is half the time, or twice as much. The policy itself is no baseline of its own.

    Empty if there is none; bold if the best is less than `at_least`.
    """
    is_higher = BY_NAME[claim.metric].higher_is_better
    gains: list[Interval] = []
    for at in by_load:
        ours = next((cell for cell in at if cell.policy == policy), None)
        others = [cell for cell in at if cell.policy != policy]
        rival = (
            next((cell for cell in others if cell.policy == claim.against), None)
            if claim.against
            else strongest(others, claim.metric, has_offload=False)
        )
        found = ratio(ours, rival, claim.metric) if ours and rival else None
        if found is not None:
            gains.append(found if is_higher else _inverse(found))
    if not gains:
        return ""
    sign = "×" if is_higher else "÷"
    best = max(gains, key=lambda gain: gain.mean)
    least = min(gains, key=lambda gain: gain.mean)
    text = f"{least.mean:.2f} to " if least is not best else ""
    text = f"{sign} {text}{best.mean:.2f}{_between(best)}"
    return f"**{text}**" if at_least is not None and best.mean < at_least else text


def _inverse(found: Interval) -> Interval:
    return Interval(1 / found.mean, 1 / found.high, 1 / found.low if found.low else math.inf)


def _between(found: Interval) -> str:
    """Its 95 %; of a single seed there is none."""
    return f" ({_digits(found.low)}–{_digits(found.high)})" if math.isfinite(found.high) else " (one seed)"


def _digits(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def _cells(told: Sequence[tuple[str, Scenario, Store]]) -> Iterator[str]:
    yield _ONE_MAKING
    yield ""
    for name, scenario, store in told:
        runs = store.runs.values()
        made_by = {
            "revision": {run.revision for run in runs},
            "vLLM": {run.making.vllm for run in runs},
            "sessions": {run.making.sessions for run in runs},
            "scenario": {run.making.scenario for run in runs},
            "sources of": {f"{_KNOBS.sub('', run.policy)} {run.making.sources}" for run in runs},
        }
        yield (
            f"**{scenario.title}** (`{name}`; {scenario.source}): {scenario.sessions} sessions a run, seeds "
            f"from {min(run.seed for run in runs)} on; knee at {scenario.knee_per_h:g} sessions an hour; "
            + "; ".join(f"{what} {', '.join(sorted(each))}" for what, each in made_by.items())
            + "."
        )
        yield ""
