"""`make`, `.ci/run` and the scripts: what they would run, without running it."""

import os
import shlex

from tests.project.layout import PYPROJECT, ROOT, run
from tools import run_tests

NESTED = {"MAKEFLAGS": "", "MAKELEVEL": "", "MFLAGS": "", "pytest_args": ""}


def dry_run(target: str) -> str:
    """The commands of a target, whatever this very run of make was told."""
    done = run("make", "--dry-run", target, env=NESTED)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_test_and_make_nightly_leave_no_test_out():
    assert dry_run("test").splitlines()[-1].split() == [".venv/bin/python", "-m", "tools.run_tests"]
    marks = [part[part.index("-m") + 1] for part in run_tests.PARTS.values()]
    assert marks == ["not heavy and not nightly", "heavy and not nightly"]
    nightly = [".venv/bin/python", "-m", "pytest", "-m", "nightly"]
    assert shlex.split(dry_run("nightly").splitlines()[-1]) == nightly
    assert "-m" not in " ".join(PYPROJECT["tool"]["pytest"]["ini_options"]["addopts"]).split()


def test_ci_runs_the_test_command_and_nothing_else():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]
