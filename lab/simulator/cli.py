"""`turnpike simulate`: policies on a workload, at several loads, on a simulated fleet."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.registry import RECIPES
from lab.simulator.baselines.spec import PolicySpec, parse_policies
from lab.simulator.engine.options import EngineOptions
from lab.simulator.errors import SimulatorError
from lab.simulator.experiment.draw import Arrivals, fitting
from lab.simulator.experiment.parallel import run_all
from lab.simulator.experiment.results import BEST_BY, Cell, planned, put_together
from lab.simulator.experiment.trial import Setting, Trial
from lab.simulator.fleet import FleetSpec, decode_fleet
from lab.simulator.measures.figures import BY_NAME, METRICS, RunFigures
from lab.simulator.report.page import Page, page
from lab.simulator.report.text import table
from lab.workload.trace.files import read_workload
from lab.workload.trace.format import Header, Session

_OWN = "own"


def add_simulate(commands: Any) -> None:
    """The `simulate` command, below the `turnpike` command's."""
    simulate = commands.add_parser(
        "simulate",
        help="play a workload on a simulated fleet",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_policies(),
    )
    simulate.add_argument("--workload", required=True, metavar="FILE", help="a workload file")
    simulate.add_argument("--fleet", required=True, type=Path, metavar="FLEET.toml", help="the fleet")
    simulate.add_argument(
        "--policy", required=True, metavar="A,B,…", help="what to compare, as below; A+B combines"
    )
    simulate.add_argument(
        "--load", required=True, metavar="X,…", help=f"sessions an hour; `{_OWN}` for the file's own pace"
    )
    simulate.add_argument(
        "--arrivals",
        choices=[each.value for each in Arrivals],
        default=Arrivals.POISSON.value,
        help="drawn, or as in the file but faster or slower (default poisson)",
    )
    simulate.add_argument(
        "--seeds", type=_positive, default=1, metavar="N", help="runs of each, with seeds 1 to N (default 1)"
    )
    simulate.add_argument(
        "--sessions", type=_positive, default=120, metavar="N", help="sessions of each run (default 120)"
    )
    simulate.add_argument("--jobs", type=_positive, metavar="N", help="runs at a time (default: all cores)")
    simulate.add_argument(
        "--max-model-len",
        type=_positive,
        default=EngineOptions().max_model_len,
        metavar="TOKENS",
        help="longest context of the simulated engines",
    )
    simulate.add_argument(
        "--max-retries",
        type=_positive,
        default=1_000_000,
        metavar="N",
        help="times that a client asks again after a refusal (default: it never gives up)",
    )
    simulate.add_argument(
        "--best-by",
        choices=list(BY_NAME),
        default=BEST_BY,
        metavar="METRIC",
        help=f"what the best of a sweep is best at (default {BEST_BY})",
    )
    simulate.add_argument("--show", default="", metavar="ID,…", help="sessions for the report's waterfall")
    simulate.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    simulate.add_argument("--report", type=Path, metavar="FILE.html", help="write a page with plots there")
    simulate.set_defaults(command=_simulate)


def _policies() -> str:
    lines = ["policies:"]
    for recipe in RECIPES.values():
        lines.append(f"  {recipe.name:<18} {recipe.summary}")
        lines += [f"      :{knob.name}={knob.default}  {knob.meaning}" for knob in recipe.knobs]
    return "\n".join([*lines, "  NAME:sweep tries all values that a policy declares, and reports its best."])


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _simulate(arguments: argparse.Namespace) -> int:
    try:
        return _compare(arguments)
    except SimulatorError as error:
        raise ValueError(str(error)) from error


def _compare(arguments: argparse.Namespace) -> int:
    specs = parse_policies(arguments.policy)
    loads = _loads(arguments.load)
    fleet = decode_fleet(arguments.fleet.read_bytes())
    for spec in specs:
        for variant in spec.variants:
            variant.plan(fleet)  # says what cannot be combined before anything is run
    header, workload, left_out = _workload(arguments, fleet)
    setting = Setting(
        workload=workload,
        fleet=fleet,
        options=EngineOptions(max_model_len=arguments.max_model_len),
        arrivals=Arrivals(arguments.arrivals),
        sessions=arguments.sessions,
        max_retries=arguments.max_retries,
        shown_ids=frozenset(filter(None, arguments.show.split(","))),
    )
    trials = planned(specs, loads, arguments.seeds)
    jobs = arguments.jobs or os.cpu_count() or 1
    found = run_all(setting, trials, jobs=jobs, progress=_Progress(len(trials)))
    cells = put_together(specs, loads, trials, found, best_by=arguments.best_by)
    if arguments.report is not None:
        said = Page(
            title=header.name,
            workload=header,
            fleet=fleet,
            arrivals=setting.arrivals.value,
            sessions=setting.sessions,
            seeds=arguments.seeds,
            cells=cells,
        )
        arguments.report.write_text(page(said), encoding="utf-8")
    if arguments.json:
        print(msgspec.json.encode(_as_json(arguments, header, fleet, specs, cells, left_out)).decode())
    else:
        print(table(cells))
    return 0


def _loads(text: str) -> list[float | None]:
    loads: list[float | None] = []
    for each in text.split(","):
        try:
            load = None if each == _OWN else float(each)
        except ValueError:
            raise SimulatorError(f"--load: {each!r} is neither a number nor `{_OWN}`") from None
        if load is not None and not 0 < load < float("inf"):
            raise SimulatorError(f"--load: {each} sessions an hour cannot arrive")
        loads.append(load)
    return loads


def _workload(arguments: argparse.Namespace, fleet: FleetSpec) -> tuple[Header, list[Session], int]:
    header, sessions = read_workload(arguments.workload)
    workload = list(sessions)
    kv_tokens = min(Plan.of(fleet).kv_tokens(fleet).values())
    fits = fitting(workload, kv_tokens=kv_tokens, max_model_len=arguments.max_model_len)
    left_out = len(workload) - len(fits)
    if left_out:
        print(f"turnpike: {left_out} session(s) too long for a replica are left out", file=sys.stderr)
    if not fits:
        raise SimulatorError(f"{arguments.workload}: no sessions that fit the fleet")
    return header, fits, left_out


class _Progress:
    """A line on stderr: the last one is overwritten on a terminal."""

    def __init__(self, trials: int) -> None:
        self._trials = trials
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, done: int, trial: Trial, found: RunFigures) -> None:
        at = "own pace" if trial.per_h is None else f"{trial.per_h:g}/h"
        mean = found.metrics["completion_mean_s"] or 0.0
        line = f"{done}/{self._trials} {trial.variant.label} at {at}, seed {trial.seed}: mean {mean:.0f} s"
        if self._is_terminal:
            print(f"\r\x1b[K{line}", end="\n" if done == self._trials else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _as_json(
    arguments: argparse.Namespace,
    header: Header,
    fleet: FleetSpec,
    specs: list[PolicySpec],
    cells: list[Cell],
    left_out: int,
) -> dict[str, Any]:
    return {
        "workload": header,
        "sessions_left_out": left_out,
        "fleet": fleet,
        "arrivals": arguments.arrivals,
        "sessions": arguments.sessions,
        "seeds": list(range(1, arguments.seeds + 1)),
        "best_by": arguments.best_by,
        "policies": [spec.text for spec in specs],
        "metrics": {metric.name: metric.meaning for metric in METRICS},
        "results": [
            {
                "policy": cell.policy,
                "variant": cell.variant,
                "load_per_h": cell.per_h,
                "is_clairvoyant": cell.is_clairvoyant,
                "is_best": cell.is_best,
                "metrics": cell.metrics,
                "tenants": cell.tenants,
                "runs": [{"sessions": run.sessions, "turns": run.turns, **run.metrics} for run in cell.runs],
            }
            for cell in cells
        ],
    }
