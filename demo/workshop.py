"""The scratch directory of one agent run: a small program with a bug, and the test that shows it."""

import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = "price.py"
TEST = "check_price.py"
BUG = "return quantity + unit_price"
REPAIR = "return quantity * unit_price"

_PROGRAM_TEXT = f'''"""What an order costs."""


def total(quantity: int, unit_price: int) -> int:
    {BUG}
'''

_TEST_TEXT = """from price import total

assert total(3, 4) == 12, f"3 pieces at 4 cost {total(3, 4)}, not 12"
print("passed")
"""


def prepare(directory: Path) -> Path:
    """Writes the program and its failing test; a repository of its own, so that agents look no further up."""
    directory.mkdir(parents=True)
    (directory / PROGRAM).write_text(_PROGRAM_TEXT)
    (directory / TEST).write_text(_TEST_TEXT)
    if shutil.which("git"):
        subprocess.run(["git", "init", "--quiet"], cwd=directory, check=False, capture_output=True)
    return directory


def is_edited(directory: Path) -> bool:
    """Whether the repair, and nothing else, was written to the program."""
    return (directory / PROGRAM).read_text() == _PROGRAM_TEXT.replace(BUG, REPAIR)


def does_test_pass(directory: Path) -> bool:
    """Runs the test, as it was handed out, on the program as it is now."""
    if (directory / TEST).read_text() != _TEST_TEXT:
        return False
    command = [sys.executable, "-B", TEST]
    return subprocess.run(command, cwd=directory, check=False, capture_output=True).returncode == 0
