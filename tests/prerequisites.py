"""Tools that are not Python packages, which some tests need and `make setup` cannot install."""

import shutil

import pytest


def require_command(name: str, *, install: str) -> str:
    """The path of the command `name`. Without it the test is skipped; in CI it fails (`conftest.py`).

    `install` says how to get it, e.g. "Node.js 20 or newer brings it".
    """
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs `{name}` on PATH: {install}")
    return path
