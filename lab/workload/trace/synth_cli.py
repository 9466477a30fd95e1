"""`turnpike workload synth` and `show`: their options, and what they do."""

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from lab.workload.trace.agent_kinds import AGENT_KINDS
from lab.workload.trace.files import read_workload, write_workload
from lab.workload.trace.presets import PRESETS
from lab.workload.trace.summary import summary_of
from lab.workload.trace.synth import FROM_ARRIVALS, Request, synth


def add_synth(actions: Any) -> argparse.ArgumentParser:
    making: argparse.ArgumentParser = actions.add_parser(
        "synth", help="compose a workload: sessions, arrivals, tenants, classes"
    )
    add = making.add_argument
    add("-o", "--output", required=True, metavar="FILE", help=".jsonl, .jsonl.gz, .jsonl.xz")
    add("--preset", choices=PRESETS, metavar="MIX", help=f"a paper's mix: {', '.join(PRESETS)}")
    add("--sessions", metavar="FILE", help="sessions of a workload")
    add("--agents", choices=AGENT_KINDS, metavar="KIND", help=f"made-up: {', '.join(AGENT_KINDS)}")
    add("--kind", action="append", metavar="NAME=NUMBER", help="made-up agents that differ: turns=12")
    add("--replace", action="store_true", default=None, help="draw sessions any number of times")
    add("--arrivals", metavar="FILE", help="arrivals of a workload")
    add("--per-hour", type=float, metavar="RATE", help="Poisson arrivals; or FILE's, at that rate")
    add("--count", type=int, metavar="N", help="so many sessions at most")
    add("--until", dest="until_s", type=float, metavar="S", help="no arrival after that")
    add("--tenants", metavar="WHO", help=f"a number; or NAME=SHARE,…; or `{FROM_ARRIVALS}`: theirs")
    add("--proactive", type=float, metavar="PART", help="so much of the sessions is background")
    add("--deadline", dest="deadline_s", type=float, metavar="S", help="of every session, after arrival")
    add("--tool-cores", type=float, metavar="N", help="what tools ask of their host, where nothing is known")
    add("--seed", type=int, metavar="N", help="of all that is drawn (default 0)")
    return making


def compose_workload(arguments: argparse.Namespace) -> str:
    """Writes the workload; says what was written. Raises ValueError where it cannot be."""
    given = {name: getattr(arguments, name) for name in Request.__struct_fields__}
    asked = msgspec.convert({name: value for name, value in given.items() if value is not None}, Request)
    header, sessions = synth(asked)
    count = write_workload(arguments.output, header, sessions)
    if not count:
        raise ValueError("no session arrives")
    return f"{arguments.output}: {count} session(s)"


def add_show(actions: Any) -> argparse.ArgumentParser:
    showing: argparse.ArgumentParser = actions.add_parser("show", help="what is in a workload")
    showing.add_argument("source", metavar="FILE", help="a workload")
    return showing


def show_workload(arguments: argparse.Namespace) -> Iterator[str]:
    header, sessions = read_workload(arguments.source)
    return summary_of(header, sessions)
