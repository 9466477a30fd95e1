"""All tests but the nightly ones, in parts, with one summary. `make test` runs it.

    python -m tools.run_tests [PYTEST_ARGUMENT ...]

Every part runs, whatever an earlier one gave. Arguments go to each; they may choose tests of one part alone.

Without arguments up to `MOST_AGAIN` failed tests run once more, one after the other, with the machine to
themselves: tests start servers, kill them and wait for effects, while others do the same. The summary names
each that passes then, because it has to be mended all the same.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

WORKERS = (3 * len(os.sched_getaffinity(0)) + 1) // 2
"""Tests that wait leave a core to another one's."""
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
PARTS = {
    "light": ("-n", str(WORKERS), *BY_FILE, "-m", "not heavy and not nightly"),
    "heavy": ("-n", "2", *BY_FILE, "-m", "heavy and not nightly"),
}
ALONE = ("-n", "0")
SLOWEST = 20
MOST_AGAIN = 3
_NO_TESTS = 5
"""What pytest exits with where none was chosen."""


class Outcome(NamedTuple):
    test: str
    """As pytest takes it."""
    outcome: str
    """`passed`, `failed`, `skipped`, or `passed alone` after a failure."""
    took_s: float


def read(report: Path) -> list[Outcome]:
    """Of a JUnit report. A test whose teardown fails as well is there twice, and counts once, as failed."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("file", "")
        classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", "."))
        name = "::".join([file, *filter(None, classes.split(".")), case.get("name", "")])
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        before = found.get(name, Outcome(name, outcome, 0.0))
        if before.outcome == "failed":
            outcome = "failed"
        found[name] = Outcome(name, outcome, before.took_s + float(case.get("time", 0)))
    return list(found.values())


def summary(outcomes: Sequence[Outcome], notes: Iterable[str]) -> str:
    by_time = sorted(outcomes, key=lambda each: -each.took_s)[:SLOWEST]
    failed = [each.test for each in outcomes if each.outcome == "failed"]
    alone = [each.test for each in outcomes if each.outcome == "passed alone"]
    numbers = Counter(each.outcome for each in outcomes)
    counts = [f"{numbers[kind]} {kind}" for kind in ("passed", "failed", "skipped")]
    counts += [f"{len(alone)} passed alone"] if alone else []
    lines = ["", f"slowest {len(by_time)}:", *(f"  {each.took_s:6.1f} s  {each.test}" for each in by_time)]
    lines += ["", *notes, *(f"FAILED {test}" for test in failed)]
    lines += [*(f"FAILED, and passed alone: {test}" for test in alone), ", ".join(counts)]
    return "\n".join(lines)


def run(name: str, chosen: Sequence[str]) -> tuple[int, list[Outcome]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *chosen, f"--junitxml={report}"]
        print(f"tests: {name}", flush=True)
        # That family names files.
        code = subprocess.run([*command, "-o", "junit_family=xunit1"], check=False).returncode
        return code, read(report) if report.exists() else []


def once_more(outcomes: Sequence[Outcome]) -> list[Outcome]:
    failed = [each.test for each in outcomes if each.outcome == "failed"]
    passed = set()
    for test in failed:
        code, found = run("again, alone", [*ALONE, test])
        passed |= {test} if code == 0 and found else set()
    return [each._replace(outcome="passed alone") if each.test in passed else each for each in outcomes]


def main(arguments: Sequence[str], parts: Mapping[str, Sequence[str]] = PARTS) -> int:
    outcomes: list[Outcome] = []
    notes: list[str] = []
    codes = []
    for name, chosen in parts.items():
        began = time.monotonic()
        code, found = run(name, [*chosen, *arguments])
        codes.append(code)
        outcomes += found
        ended = "" if codes[-1] in {0, 1, _NO_TESTS} else f", and ended early (exit {codes[-1]})"
        notes.append(f"{name}: {len(found)} tests in {time.monotonic() - began:.0f} s{ended}")
    failures = sum(each.outcome == "failed" for each in outcomes)
    if failures and failures <= MOST_AGAIN and not arguments and set(codes) <= {0, 1}:
        outcomes = once_more(outcomes)
        if not any(each.outcome == "failed" for each in outcomes):
            codes = [0]
    print(summary(outcomes, notes), flush=True)
    ran_well = all(code == 0 or (code == _NO_TESTS and arguments) for code in codes)
    return 0 if ran_well and outcomes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
