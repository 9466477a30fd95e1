"""All tests but the nightly ones, in parts, with one summary. `make test` runs it.

    python -m tools.run_tests [PYTEST_ARGUMENT ...]

Every part runs, whatever an earlier one gave. Arguments go to each; they may choose tests of one part alone.
"""

import os
import subprocess
import sys
import tempfile
import time
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
SLOWEST = 20
_NO_TESTS = 5
"""What pytest exits with where none was chosen."""


class Outcome(NamedTuple):
    test: str
    outcome: str
    """`passed`, `failed` or `skipped`."""
    took_s: float


def read(report: Path) -> list[Outcome]:
    """Of a JUnit report. A test whose teardown fails as well is there twice, and counts once, as failed."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{case.get('name')}"
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
    counts = [
        f"{sum(each.outcome == kind for each in outcomes)} {kind}" for kind in ("passed", "failed", "skipped")
    ]
    lines = ["", f"slowest {len(by_time)}:", *(f"  {each.took_s:6.1f} s  {each.test}" for each in by_time)]
    lines += ["", *notes, *(f"FAILED {test}" for test in failed), ", ".join(counts)]
    return "\n".join(lines)


def main(arguments: Sequence[str], parts: Mapping[str, Sequence[str]] = PARTS) -> int:
    outcomes: list[Outcome] = []
    notes: list[str] = []
    codes = []
    for name, chosen in parts.items():
        with tempfile.TemporaryDirectory() as folder:
            report, began = Path(folder) / "report.xml", time.monotonic()
            command = [sys.executable, "-m", "pytest", *chosen, f"--junitxml={report}"]
            command += ["-o", "junit_family=xunit1", *arguments]  # that family names files
            print(f"tests: {name}", flush=True)
            codes.append(subprocess.run(command, check=False).returncode)
            found = read(report) if report.exists() else []
        outcomes += found
        ended = "" if codes[-1] in {0, 1, _NO_TESTS} else f", and ended early (exit {codes[-1]})"
        notes.append(f"{name}: {len(found)} tests in {time.monotonic() - began:.0f} s{ended}")
    print(summary(outcomes, notes), flush=True)
    ran_well = all(code == 0 or (code == _NO_TESTS and arguments) for code in codes)
    return 0 if ran_well and outcomes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
