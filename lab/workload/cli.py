"""`turnpike workload`: recorded corpora, as exchanges or as workloads."""

import argparse
import sys
from collections.abc import Iterator
from typing import Any, Final

from gateway.domain.printable import printable
from lab.workload.agentcgroup import agentcgroup
from lab.workload.arrivals import interleave
from lab.workload.exchange import Exchange, write_exchange
from lab.workload.files import members, write_whole
from lab.workload.lmcache import lmcache
from lab.workload.openai_http import openai_http
from lab.workload.problems import Problems
from lab.workload.recorded import recorded
from lab.workload.sessions import Importer, rng_of, selected
from lab.workload.swe_agent import swe_agent
from lab.workload.tau_bench import tau_bench
from lab.workload.trace.cli import add_workload_options, given_workload_options, import_workload
from lab.workload.trace.kinds import CORPORA
from lab.workload.trace.synth_cli import add_show, add_synth, compose_workload, show_workload

IMPORTERS: Final[dict[str, Importer]] = {
    "openai-http": openai_http,
    "tau-bench": tau_bench,
    "agentcgroup": agentcgroup,
    "lmcache": lmcache,
    "swe-agent": swe_agent,
}
AT_ONCE: Final = 8
EXCHANGES: Final = "exchanges"
WORKLOAD: Final = "workload"


def add_workload(commands: Any) -> None:
    """The `workload` command, below the `turnpike` command's."""
    workload = commands.add_parser("workload", help="recorded and composed workloads")
    actions = workload.add_subparsers(required=True, metavar="ACTION")
    reading = actions.add_parser("import", help="turn a recorded corpus into exchanges or a workload")
    kinds = list(dict.fromkeys([EXCHANGES, *IMPORTERS, *CORPORA]))
    reading.add_argument("kind", choices=kinds, metavar="KIND", help=_kinds())
    reading.add_argument(
        "--as",
        dest="form",
        choices=[EXCHANGES, WORKLOAD],
        help="what to write, for a KIND that can be either (default: exchanges)",
    )
    reading.add_argument("source", metavar="SRC", help="a file (plain, .gz, .xz), a tar archive, a folder")
    reading.add_argument("-o", "--output", required=True, metavar="FILE", help=".jsonl, .jsonl.gz, .jsonl.xz")
    reading.add_argument("--match", metavar="GLOB", help="only sessions of such a name")
    reading.add_argument("--limit", type=_positive, metavar="N", help="at most so many sessions")
    reading.add_argument("--seed", type=int, metavar="N", help="of what is composed (default 0)")
    reading.add_argument_group("for exchanges").add_argument(
        "--sessions-at-once",
        type=_positive,
        metavar="N",
        help=f"how many sessions are at work at any moment (default {AT_ONCE}); not for KIND exchanges",
    )
    add_workload_options(reading)
    reading.set_defaults(command=_import)
    add_synth(actions).set_defaults(command=_synth)
    add_show(actions).set_defaults(command=_show)


def _kinds() -> str:
    """By what they write (docs/contribute/exchanges.md, docs/contribute/workloads.md)."""
    return (
        f"written as exchanges: {', '.join([EXCHANGES, *IMPORTERS])}; "
        f"as a workload: {', '.join(CORPORA)}; what is in both lists is exchanges unless --as says otherwise"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _import(arguments: argparse.Namespace) -> int:
    problems = Problems()
    written = import_workload if _form(arguments) == WORKLOAD else _import_exchanges
    what = written(arguments, problems)
    for problem in problems.shown:
        print(f"turnpike: {printable(str(problem))}", file=sys.stderr)
    if not what:
        raise ValueError(f"{arguments.source}: nothing to import ({problems.count} malformed record(s))")
    left_out = f"; {problems.count} malformed record(s) left out" if problems.count else ""
    print(f"{arguments.output}: {what}{left_out}")
    return 0


def _synth(arguments: argparse.Namespace) -> int:
    print(compose_workload(arguments))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    print("\n".join(map(printable, show_workload(arguments))))
    return 0


def _form(arguments: argparse.Namespace) -> str:
    """What is to be written. Raises ValueError where the options do not fit it."""
    is_either = arguments.kind in IMPORTERS and arguments.kind in CORPORA
    own = WORKLOAD if arguments.kind not in IMPORTERS and arguments.kind != EXCHANGES else EXCHANGES
    form: str = arguments.form or own
    if form != own and not is_either:
        raise ValueError(f"{arguments.kind} is written as {own} only")
    if form == EXCHANGES and (given := given_workload_options(arguments)):
        raise ValueError(f"for workloads only: {', '.join(given)}")
    if form == WORKLOAD and arguments.sessions_at_once is not None:
        raise ValueError("for exchanges only: --sessions-at-once")
    return form


def _import_exchanges(arguments: argparse.Namespace, problems: Problems) -> str:
    sessions = set[str]()

    def lines() -> Iterator[bytes]:
        for exchange in _exchanges(arguments, problems):
            sessions.add(exchange.truth.session)
            yield write_exchange(exchange)

    count = write_whole(arguments.output, lines())
    return f"{count} exchange(s) of {len(sessions)} session(s)" if count else ""


def _exchanges(arguments: argparse.Namespace, problems: Problems) -> Iterator[Exchange]:
    source, match, limit = members(arguments.source), arguments.match or "*", arguments.limit
    if arguments.kind == EXCHANGES:
        return recorded(source, problems, match=match, limit=limit)
    seed = arguments.seed or 0
    sessions = IMPORTERS[arguments.kind](source, problems, seed)
    return interleave(
        selected(sessions, match=match, limit=limit),
        rng=rng_of(seed, "arrivals"),
        at_once=arguments.sessions_at_once or AT_ONCE,
    )
