"""`turnpike eval sessions|workflow|graph|prompts FILE...`: how right inference is on recorded traffic."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gateway.domain.printable import printable
from gateway.identity.explicit_ids import IDENTITY_BODY_FIELDS, IDENTITY_HEADERS
from lab.evaluation.adversarial import KINDS, stage_kind
from lab.evaluation.gateways import SharedReplays
from lab.evaluation.metrics import Score, Scores, score
from lab.evaluation.next_prompts import add_prompts
from lab.evaluation.recording import Exchange, read_recording
from lab.evaluation.replay import Placed, replay
from lab.evaluation.workflow_cli import add_graph, add_workflow

_COLUMNS = (
    "turns",
    "pairwise_f1",
    "acted_precision",
    "acted_f1",
    "hash_precision",
    "hash_recall",
    "thread_f1",
    "link_f1",
    "retry_f1",
    "placed_recall",
    "balance",
    "ambiguous",
)


def add_eval(commands: Any) -> None:
    """The `eval` command, below the `turnpike` command's."""
    evaluate = commands.add_parser("eval", help="measure inference on recorded traffic")
    subjects = evaluate.add_subparsers(required=True, metavar="SUBJECT")
    sessions = subjects.add_parser("sessions", help="which turns belong together")
    sessions.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help=".jsonl, .jsonl.gz or .jsonl.xz"
    )
    sessions.add_argument(
        "--adversarial", action="store_true", help="add traffic of strangers that is made to be mistaken"
    )
    sessions.add_argument("--strip-ids", action="store_true", help="hide every id that clients state")
    sessions.add_argument(
        "--gateways",
        type=int,
        default=1,
        metavar="N",
        help="hand each exchange to one of N gateways at random",
    )
    sessions.add_argument("--store", default="memory://", metavar="URL", help="what these share: redis://...")
    sessions.add_argument("--kill-one", action="store_true", help="one of them is killed in the middle")
    sessions.add_argument(
        "--busy", action="store_true", help="all of them are busy, so sessions begin where they come in"
    )
    sessions.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    sessions.set_defaults(command=_sessions)
    add_workflow(subjects)
    add_graph(subjects)
    add_prompts(subjects)


def evaluate_sessions(
    files: list[Path],
    *,
    strip_ids: bool,
    is_adversarial: bool = False,
    place: Callable[[Sequence[Exchange]], list[Placed]] | None = None,
) -> dict[str, Any]:
    """The report: macro-averaged over the recordings, and each one's own. `place`: what puts turns in their
    places; by default one gateway."""
    if place is None:
        place = partial(replay, without_ids=strip_ids)
    per_client: dict[str, Any] = {}
    recordings = [(path.name, read_recording(path)) for path in files]
    recordings += [(kind, stage_kind(kind)) for kind in KINDS if is_adversarial]
    for origin, exchanges in recordings:
        name = exchanges[0].truth.client if exchanges else origin
        while name in per_client:
            name = f"{name}'"
        per_client[name] = _row(score(place(exchanges)))
    report: dict[str, Any] = {"strip_ids": strip_ids, "clients": len(per_client)}
    if strip_ids:
        report["hidden"] = hidden()
    keys = [key for key in next(iter(per_client.values()), {}) if key not in ("turns", "ambiguous")]
    for key in keys:
        known = [row[key] for row in per_client.values() if row[key] is not None]
        report[key] = round(sum(known) / len(known), 6) if known else None
    for key in ("turns", "ambiguous"):
        report[key] = sum(row[key] for row in per_client.values())
    return {**report, "per_client": per_client}


def hidden() -> dict[str, list[str]]:
    """What `--strip-ids` takes out of every request."""
    return {
        "headers": sorted(name.decode() for name in IDENTITY_HEADERS),
        "body_fields": sorted(IDENTITY_BODY_FIELDS),
    }


def _row(scores: Scores) -> dict[str, Any]:
    row: dict[str, Any] = {"turns": scores.turns}
    for name, found in (
        ("pairwise", scores.sessions),
        ("acted", scores.acted_upon),
        ("thread", scores.threads),
        ("link", scores.links),
        ("retry", scores.retries),
        ("hash", scores.by_prefix_hash),
    ):
        row |= _figures(name, found)
    row["placed_recall"] = round(scores.placed.recall, 6) if scores.placed.true else None
    row["balance"] = round(scores.balance, 6)
    row["ambiguous"] = scores.ambiguous
    return row


def _figures(name: str, found: Score) -> dict[str, float | None]:
    """None where the recording has nothing to find and nothing was found."""
    if not found.true and not found.found:
        return {f"{name}_precision": None, f"{name}_recall": None, f"{name}_f1": None}
    return {
        f"{name}_precision": round(found.precision, 6),
        f"{name}_recall": round(found.recall, 6),
        f"{name}_f1": round(found.f1, 6),
    }


def _sessions(arguments: argparse.Namespace) -> int:
    with SharedReplays(
        arguments.store,
        count=arguments.gateways,
        without_ids=arguments.strip_ids,
        kills_one=arguments.kill_one,
        are_busy=arguments.busy,
    ) as several:
        report = evaluate_sessions(
            arguments.files,
            strip_ids=arguments.strip_ids,
            is_adversarial=arguments.adversarial,
            place=several if arguments.gateways > 1 else None,
        )
    if arguments.json:
        print(msgspec.json.encode(report).decode())
        return 0
    if arguments.strip_ids:
        for kind, names in hidden().items():
            print(f"hidden {kind}: {', '.join(names)}")
    print(f"{'client':<20}" + "".join(f"{column:>16}" for column in _COLUMNS))
    for name, row in {**report["per_client"], "all (macro)": report}.items():
        print(f"{printable(name):<20}" + "".join(f"{_cell(row[column]):>16}" for column in _COLUMNS))
    return 0


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
