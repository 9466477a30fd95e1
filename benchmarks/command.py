"""The command line of a live benchmark: how much is measured, what is told, and how it ends."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import BenchmarkError, machine, revision
from benchmarks.verdict import Verdict

Measure = Callable[[bool, Verdict, Callable[..., Any]], None]
"""Whether it is quick, where figures go, and where lines go that are told meanwhile."""


def judged(
    file: str,
    doc: str | None,
    measure: Measure,
    *,
    quick: str,
    about: str = "",
    own: argparse.ArgumentParser | None = None,
    argv: list[str] | None = None,
) -> int:
    """The exit status: 0 if all targets hold, 1 if not, 2 if it could not be measured.

    `file`: the benchmark's own; `quick`: what `--quick` does; `about`: what else is worth knowing of it;
    `own`: its further options, without help, which it reads itself.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0], parents=[own] if own else [])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all that runs is ended
    tell: Any = (lambda *_: None) if arguments.json else (lambda *said: print(*said, flush=True))
    known = (machine(), f"revision {revision()}", about, f"load average {os.getloadavg()[0]:.1f}")
    tell(", ".join(filter(None, known)))
    verdict = Verdict()
    try:
        measure(arguments.quick, verdict, tell)
    except BenchmarkError as error:
        print(f"{Path(file).stem}: {error}", file=sys.stderr)
        return 2
    verdict.tell("load_average", os.getloadavg()[0])
    return verdict.report(is_json_alone=arguments.json)
