"""The command line of a live benchmark: how much is measured, what is told, and how it ends."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
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
    signal.signal(signal.SIGTERM, _ended(os.getpid()))
    tell: Any = (lambda *_: None) if arguments.json else (lambda *said: print(*said, flush=True))
    known = (machine(), f"revision {revision()}", about, f"load average {os.getloadavg()[0]:.1f}")
    tell(", ".join(filter(None, known)))
    verdict = Verdict()
    try:
        measure(arguments.quick, verdict, tell)
    except BenchmarkError as error:
        print(f"{_name(file)}: {error}", file=sys.stderr)
        return 2
    verdict.tell("load_average", os.getloadavg()[0])
    return verdict.report(is_json_alone=arguments.json)


def judged_by_parts(
    file: str,
    doc: str | None,
    parts: Mapping[str, Measure],
    *,
    quick: str,
    about: str = "",
    own: argparse.ArgumentParser | None = None,
    argv: list[str] | None = None,
) -> int:
    """As `judged`. The command line may name some of the parts; the figures of each begin with its name."""
    parser = argparse.ArgumentParser(add_help=False, parents=[own] if own else [])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    names = parser.parse_known_args(argv)[0].parts or list(parts)

    def measure(is_quick: bool, verdict: Verdict, tell: Callable[..., Any]) -> None:
        if unknown := [name for name in names if name not in parts]:
            raise BenchmarkError(f"there is no part {unknown[0]!r}; there are {', '.join(parts)}")
        for name in names:
            verdict.prefix = f"{name}."
            parts[name](is_quick, verdict, tell)
        verdict.prefix = ""

    return judged(file, doc, measure, quick=quick, about=about, own=parser, argv=argv)


def _name(file: str) -> str:
    path = Path(file)
    return path.parent.name if path.stem == "__main__" else path.stem


def _ended(owner: int) -> Callable[..., None]:
    """The owner ends all that it runs. A forked worker leaves at once: a lock that it inherited may never be
    released, and its pool would wait for it for ever."""

    def end(*_: object) -> None:
        if os.getpid() != owner:
            os._exit(128 + signal.SIGTERM)
        sys.exit(128 + signal.SIGTERM)

    return end
