"""What a scenario compares, against its targets: ratios of the same seeds, or figures themselves."""

from collections.abc import Callable, Iterator

import msgspec

from benchmarks.results.figures import Cell, cells, ratio
from benchmarks.results.scenario import Compare, Scenario
from benchmarks.results.store import Store
from benchmarks.verdict import Interval, Verdict, bootstrapped

Stored = Callable[[str], tuple[Scenario, Store]]
"""A scenario by name, and its runs."""


def judge(verdict: Verdict, name: str, stored: Stored) -> None:
    """Adds each figure that the scenario compares, at each load that there are runs of."""
    scenario, _ = stored(name)
    for load in scenario.loads:
        at = _at(stored, name, load)
        for compare in scenario.compares:
            if compare.policy not in at or load not in (compare.loads or scenario.loads):
                continue
            beside = _at(stored, compare.beside, load) if compare.beside else {}
            for metric in compare.metrics:
                for told, found in _found(compare, metric, at, beside):
                    is_one = len(at[compare.policy].runs) < 2
                    _tell(verdict, f"{name} at {load:g}: {metric} {told}", found, compare, is_one=is_one)


def _at(stored: Stored, name: str, load: float) -> dict[str, Cell]:
    scenario, store = stored(name)
    return {cell.policy: cell for cell in cells(scenario, store.runs.values(), load)}


def _found(
    compare: Compare, metric: str, at: dict[str, Cell], beside: dict[str, Cell]
) -> Iterator[tuple[str, Interval | None]]:
    ours = at[compare.policy]
    others = [compare.beside] if compare.beside else compare.against
    for policy in others:
        theirs = beside.get(compare.policy) if compare.beside else at.get(policy)
        if theirs is not None:
            sign = "-" if compare.is_difference else "/"
            yield f"{ours.policy} {sign} {policy}", _compared(compare, ours, theirs, metric)
    if not others:
        yield ours.policy, _exactly(ours.figure(metric))


def _compared(compare: Compare, ours: Cell, theirs: Cell, metric: str) -> Interval | None:
    """Of a group of tenants all seeds count as one, which has no interval."""
    seeds = sorted(ours.runs.keys() & theirs.runs.keys())
    ours, theirs = (
        msgspec.structs.replace(each, runs={seed: each.runs[seed] for seed in seeds})
        for each in (ours, theirs)
    )
    if ours.is_of_tenants(metric):
        top, bottom = ours.figure(metric), theirs.figure(metric)
        return _exactly(top / bottom if top and bottom else None)
    if not compare.is_difference:
        return ratio(ours, theirs, metric)
    pairs = [(ours.runs[seed].metrics[metric], theirs.runs[seed].metrics[metric]) for seed in seeds]
    found = [one - other for one, other in pairs if one is not None and other is not None]
    return bootstrapped(found) if found else None


def _exactly(value: float | None) -> Interval | None:
    return None if value is None else Interval(value, value, value)


def _tell(verdict: Verdict, name: str, found: Interval | None, compare: Compare, *, is_one: bool) -> None:
    """`is_one`: of a single seed, which says nothing that is sure."""
    values = {name: None if found is None else found.mean}
    judged = name
    if found is not None and not is_one and found.low < found.high:
        values |= {f"{name}_low": found.low, f"{name}_high": found.high}
        if compare.is_sure:
            judged = f"{name}_low" if compare.at_most is None else f"{name}_high"
    for key, value in values.items():
        if key != judged or (compare.is_sure and is_one):
            verdict.tell(key, value)
        elif compare.at_most is not None:
            verdict.at_most(key, value, compare.at_most)
        elif compare.at_least is not None:
            verdict.at_least(key, value, compare.at_least)
        else:
            verdict.tell(key, value)
