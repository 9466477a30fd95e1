"""`turnpike eval workflow|graph FILE...`: what recordings teach of workflows."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.domain.printable import printable
from lab.evaluation.recording import read_recording
from lab.evaluation.replay import Replay
from lab.evaluation.workflow import Report, evaluate_exchanges

_COLUMNS: Final = {
    "pauses": "pauses",
    "next_accuracy": "next",
    "end_accuracy": "end",
    "end_accuracy_se": "±",
    "end_loss": "loss",
    "end_loss_base": "base",
    "end_ece": "ece",
    "released": "let go",
    "released_right": "rightly",
    "held": "held",
    "boundary_precision": "tool P",
    "boundary_recall": "tool R",
}


def add_workflow(subjects: Any) -> None:
    workflow = subjects.add_parser("workflow", help="what conversations do next, and when their tools run")
    workflow.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help=".jsonl, .jsonl.gz or .jsonl.xz"
    )
    workflow.add_argument("--strip-ids", action="store_true", help="hide every id that clients state")
    workflow.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    workflow.set_defaults(command=_workflow)


def add_graph(subjects: Any) -> None:
    graph = subjects.add_parser("graph", help="the execution graph that is learned, step by step")
    graph.add_argument("files", nargs="+", type=Path, metavar="FILE", help="exchanges, as above")
    graph.add_argument("--type", type=int, default=0, metavar="N", help="the N-th agent type by steps")
    graph.set_defaults(command=_graph)


def evaluate_workflow(files: Sequence[Path], *, strip_ids: bool) -> dict[str, Any]:
    """The report: over all files together, and each file's own."""
    per_file: dict[str, Report] = {}
    for path in files:
        exchanges = read_recording(path)
        name = exchanges[0].truth.client if exchanges else path.name
        while name in per_file:
            name += "'"
        per_file[name] = evaluate_exchanges(exchanges, without_ids=strip_ids)
    return {
        "strip_ids": strip_ids,
        "all": _rounded(together(list(per_file.values()))),
        "per_client": {name: _rounded(msgspec.to_builtins(report)) for name, report in per_file.items()},
    }


_WEIGHTS: Final = {
    "next_accuracy": "followed",
    "majority": "followed",
    "end_accuracy": "pauses",
    "end_precision": "ends_said",
    "end_recall": "ends",
    "end_loss": "pauses",
    "end_loss_base": "pauses",
    "end_ece": "pauses",
    "released_right": "released",
    "held": "followed",
    "boundary_precision": "boundaries_found",
    "boundary_recall": "boundaries",
}


def together(reports: Sequence[Report]) -> dict[str, Any]:
    """Every figure, weighted by how many were measured; the largest error of durations."""
    found: dict[str, Any] = {"files": len(reports)}
    for field in ("exchanges", "pauses", "followed", "ends", "released", "boundaries"):
        found[field] = sum(getattr(report, field) for report in reports)
    for name, weight in _WEIGHTS.items():
        known = [(getattr(r, name), getattr(r, weight)) for r in reports if getattr(r, name) is not None]
        total = sum(each for _, each in known)
        found[name] = sum(value * each for value, each in known) / total if total else None
    squared = [(r.end_accuracy_se * r.pauses) ** 2 for r in reports if r.end_accuracy_se is not None]
    found["end_accuracy_se"] = math.sqrt(sum(squared)) / found["pauses"] if squared else None
    errors = [r.duration_error_ms_p99 for r in reports if r.duration_error_ms_p99 is not None]
    found["duration_error_ms_p99"] = max(errors, default=None)
    return found


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}


def _workflow(arguments: argparse.Namespace) -> int:
    report = evaluate_workflow(arguments.files, strip_ids=arguments.strip_ids)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
        return 0
    print(f"{'client':<20}" + "".join(f"{column:>10}" for column in _COLUMNS.values()))
    for name, row in {**report["per_client"], "all": report["all"]}.items():
        print(f"{printable(name):<20}" + "".join(f"{_cell(row[column]):>10}" for column in _COLUMNS))
    return 0


def _graph(arguments: argparse.Namespace) -> int:
    exchanges = sorted(
        (exchange for path in arguments.files for exchange in read_recording(path)), key=lambda each: each.t
    )
    replay = Replay(exchanges, without_ids=False)
    replay.run()
    conversations = replay.brain.sessions.conversations
    graphs = sorted(conversations.graphs, key=lambda graph: -graph.lifetimes.turns)
    if arguments.type >= len(graphs):
        raise ValueError(f"there are {len(graphs)} agent types")
    graph = graphs[arguments.type]
    print(f"{graph.lifetimes.turns} steps of {graph.tasks} conversations")
    print(f"{'step':<32}{'followed by':<32}{'probability':>12}{'times':>8}")
    for start, to, probability, count in sorted(graph.edges(), key=lambda edge: -edge[3]):
        before, after = (printable(graph.label(node))[:30] for node in (start, to))
        print(f"{before:<32}{after:<32}{probability:>12.3f}{count:>8.0f}")
    return 0


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
