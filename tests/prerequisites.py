"""Programs that are not Python packages, which some tests need."""

import os
import shutil
from pathlib import Path

import pytest

FETCHED = Path(__file__).resolve().parents[1] / ".cache/programs/bin"
"""Where `tools/programs.sh` puts what it fetches; `make test` runs it."""


def require_command(name: str, *, install: str = "tools/programs.sh fetches it") -> str:
    """The path of the command `name`, from PATH or from what was fetched. Without it the test is skipped,
    which is a failure unless skips are allowed (`no_skips.py`).

    `install` says how to get it, e.g. "Node.js 20 or newer brings it".
    """
    path = shutil.which(name) or shutil.which(name, path=os.fspath(FETCHED))
    if path is None:
        pytest.skip(f"needs `{name}` on PATH: {install}")
    return path
