"""The `turnpike` command within this process, where starting another one shows nothing more."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Turnpike = Callable[..., subprocess.CompletedProcess[str]]
"""Words of the command, `stdin`, and variables of the environment -> what it said and its exit status."""


@pytest.fixture
def turnpike(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Turnpike:
    from gateway.__main__ import main

    def run_here(*words: str | Path, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        for name in os.environ:
            if name.startswith("TURNPIKE_"):
                monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        arguments = [str(word) for word in words]
        try:
            status = main(arguments)
        except SystemExit as ended:  # argparse: help, or words that are no command
            status = int(ended.code or 0)
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run_here
