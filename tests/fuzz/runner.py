"""Fuzzes every target over all processors: `python -m tests.fuzz.runner [--inputs N] [--seed N] [TARGET …]`.

Prints a line for each target, and how to repeat what failed. Inputs follow from the seed alone. The exit
status is 1 if any failed.
"""

import argparse
import math
import multiprocessing
import os
import random
import sys
import time
import traceback
from typing import NamedTuple

from tests.fuzz.targets import TARGETS

_BATCH = 2_000
_BY_NAME = {target.name: target for target in TARGETS}
_SHOWN = 5


class Batch(NamedTuple):
    target: str
    seed: int
    start: int
    stop: int


class Outcome(NamedTuple):
    batch: Batch
    crashes: list[str]
    seconds: float


def run(batch: Batch) -> Outcome:
    target, crashes, began_s = _BY_NAME[batch.target], [], time.monotonic()
    for number in range(batch.start, batch.stop):
        try:
            target.check(target.make(random.Random(f"{batch.seed}.{target.name}.{number}")))
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            crashes.append(f"{target.name}, seed {batch.seed}, input {number}\n{traceback.format_exc()}")
    return Outcome(batch, crashes, time.monotonic() - began_s)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.runner", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_BY_NAME))
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    names = options.targets or list(_BY_NAME)
    shares = sum(_BY_NAME[name].share for name in names)
    inputs = {name: math.ceil(options.inputs * _BY_NAME[name].share / shares) for name in names}
    batches = [
        Batch(name, options.seed, start, min(start + _BATCH, inputs[name]))
        for name in sorted(names, key=lambda name: _BY_NAME[name].share)
        for start in range(0, inputs[name], _BATCH)
    ]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for outcome in pool.imap_unordered(run, batches):
            outcomes[outcome.batch.target].append(outcome)
    failed = [crash for done in outcomes.values() for outcome in done for crash in outcome.crashes]
    for crash in failed[:_SHOWN]:
        print(crash)
    for name, done in outcomes.items():
        checked = sum(outcome.batch.stop - outcome.batch.start for outcome in done)
        crashes = sum(len(outcome.crashes) for outcome in done)
        seconds = sum(outcome.seconds for outcome in done)
        print(f"{name:10} {checked:8} inputs  {crashes:5} crashes  {seconds:7.1f} s  seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
