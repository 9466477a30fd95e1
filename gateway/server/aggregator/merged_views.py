"""Views of several gateways as one (pure): what each has a part of is added up, what all see stands once."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from gateway.core.snapshot import MAX_SESSIONS
from gateway.dashboard.turn_log import UPDATES_OF_A_POOL
from gateway.telemetry.usage import WHOSE

View = dict[str, Any]

_SUMMED: Final = frozenset(
    (
        *("session_count", "running", "waiting", "active_tools", "waiting_by", "outcome"),
        *("sessions", "admitted", "lately"),
        *("window", "kv_budget", "demand", "held"),
        *("turns", "unlinked", "changed", "measured", "again_tokens"),
    )
)


def merge_snapshots(views: Sequence[View], *, began_s: float, seq: str) -> View:
    """`began_s`: of the first to begin; `seq`: where the merged stream goes on behind the views."""
    merged: View = {
        name: None if name in _OWN else _merged(name, [view[name] for view in views]) for name in views[0]
    }
    merged["began_s"] = began_s
    for name, key in _ROWS.items():
        merged[name] = _rows((row for view in views for row in view.get(name, ())), key)
    if "seq" in merged:
        merged["seq"] = seq
        for pool in merged["pools"]:
            rows = [row for view in views for row in view["pools"] if row["id"] == pool["id"]]
            updates = sorted((each for row in rows for each in row["updates"]), key=itemgetter("at_s"))
            pool["updates"] = updates[-UPDATES_OF_A_POOL:]
        sessions = _best((each for view in views for each in view["sessions"]), by="last_seen_s")
        merged["sessions"] = sorted(sessions, key=itemgetter("last_seen_s"), reverse=True)[:MAX_SESSIONS]
    return merged


def merge_graphs(answers: Iterable[Sequence[View]]) -> list[View]:
    return _best((graph for graphs in answers for graph in graphs), by="steps")


def merge_usage(views: Sequence[View]) -> View:
    rows: dict[tuple[str, ...], View] = {}
    for row in (row for view in views for row in view["usage"]):
        known = rows.setdefault(tuple(row[name] for name in WHOSE), {})
        for name, value in row.items():
            known[name] = value + known.get(name, 0) if isinstance(value, int | float) else value
    return {
        "at_s": max(view["at_s"] for view in views),
        "began_s": min(view["began_s"] for view in views),
        "usage": [rows[user] for user in sorted(rows)],
    }


def _best(rows: Iterable[View], *, by: str) -> list[View]:
    """Of those with one id, the one with the most."""
    best: dict[str, View] = {}
    for row in rows:
        known = best.setdefault(row["id"], row)
        if row[by] > known[by]:
            best[row["id"]] = row
    return list(best.values())


def _rows(rows: Iterable[View], key: Callable[[View], Any]) -> list[View]:
    groups: dict[Any, list[View]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [
        {name: _merged(name, [row[name] for row in group]) for name in group[0]} for group in groups.values()
    ]


def _merged(name: str, values: list[Any]) -> Any:
    if name in _SUMMED:
        if isinstance(values[0], dict):
            keys = dict.fromkeys(key for each in values for key in each)
            return {key: _sum([each.get(key, 0) for each in values]) for key in keys}
        return _sum(values)
    known = [each for each in values if each is not None]
    if not known:
        return None
    if isinstance(known[0], list):
        return max(known, key=len)
    return max(known) if isinstance(known[0], int | float) else known[0]


def _sum(values: list[Any]) -> Any:
    return None if None in values else sum(values)  # no limit for one is no limit for all


_ROWS: Final[dict[str, Callable[[View], Any]]] = {
    "replicas": itemgetter("id"),
    "pools": itemgetter("id"),
    "tenants": itemgetter("id", "pool"),
    "bounds": itemgetter("bound", "tenant"),
    "conduct": itemgetter("client", "agent"),
}
_OWN: Final = frozenset((*_ROWS, "seq", "sessions", "began_s"))
