"""`turnpike workload import KIND SRC -o FILE`: a recorded corpus, as exchanges."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any, Final

from gateway.workload.agentcgroup import agentcgroup
from gateway.workload.arrivals import interleave
from gateway.workload.exchange import Exchange, write_exchange
from gateway.workload.files import members, write_whole
from gateway.workload.lmcache import lmcache
from gateway.workload.openai_http import openai_http
from gateway.workload.problems import Problems
from gateway.workload.recorded import recorded
from gateway.workload.sessions import Importer, rng_of, selected
from gateway.workload.swe_agent import swe_agent
from gateway.workload.tau_bench import tau_bench

IMPORTERS: Final[dict[str, Importer]] = {
    "openai-http": openai_http,
    "tau-bench": tau_bench,
    "agentcgroup": agentcgroup,
    "lmcache": lmcache,
    "swe-agent": swe_agent,
}
AT_ONCE: Final = 8


def add_workload(commands: Any) -> None:
    """The `workload` command, below the `turnpike` command's."""
    workload = commands.add_parser("workload", help="recorded workloads")
    actions = workload.add_subparsers(required=True, metavar="ACTION")
    reading = actions.add_parser("import", help="turn a recorded corpus into exchanges, one a line")
    reading.add_argument("kind", choices=["exchanges", *IMPORTERS], metavar="KIND", help=_kinds())
    reading.add_argument("source", metavar="SRC", help="a file (plain, .gz, .xz), a tar archive, a folder")
    reading.add_argument("-o", "--output", required=True, metavar="FILE", help=".jsonl, .jsonl.gz, .jsonl.xz")
    reading.add_argument("--match", default="*", metavar="GLOB", help="only sessions of such a name")
    reading.add_argument("--limit", type=_positive, metavar="N", help="at most so many sessions")
    reading.add_argument("--seed", type=int, default=0, metavar="N", help="of what is composed (default 0)")
    reading.add_argument(
        "--sessions-at-once",
        type=_positive,
        default=AT_ONCE,
        metavar="N",
        help=f"how many sessions are at work at any moment (default {AT_ONCE}); not for exchanges",
    )
    reading.set_defaults(command=_import)


def _kinds() -> str:
    return "one of: " + ", ".join(["exchanges", *IMPORTERS])


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _import(arguments: argparse.Namespace) -> int:
    problems, sessions = Problems(), set[str]()

    def lines() -> Iterator[bytes]:
        for exchange in _exchanges(arguments, problems):
            sessions.add(exchange.truth.session)
            yield write_exchange(exchange)

    count = write_whole(arguments.output, lines())
    for problem in problems.shown:
        print(f"turnpike: {problem}", file=sys.stderr)
    if not count:
        raise ValueError(f"{arguments.source}: nothing to import ({problems.count} malformed record(s))")
    left_out = f"; {problems.count} malformed record(s) left out" if problems.count else ""
    print(f"{arguments.output}: {count} exchange(s) of {len(sessions)} session(s){left_out}")
    return 0


def _exchanges(arguments: argparse.Namespace, problems: Problems) -> Iterator[Exchange]:
    source, match, limit = members(arguments.source), arguments.match, arguments.limit
    if arguments.kind == "exchanges":
        return recorded(source, problems, match=match, limit=limit)
    sessions = IMPORTERS[arguments.kind](source, problems, arguments.seed)
    return interleave(
        selected(sessions, match=match, limit=limit),
        rng=rng_of(arguments.seed, "arrivals"),
        at_once=arguments.sessions_at_once,
    )
