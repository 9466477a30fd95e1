"""`tools/setup.sh` on machines that lack something. Nothing is downloaded here."""

import shutil
from pathlib import Path

import pytest

from tests.project.layout import ROOT, run

SOURCES = (
    *("pyproject.toml", "engine_ext/pyproject.toml", "lab/pyproject.toml", "requirements.lock"),
    *("tools/setup.sh", "tools/index.sh"),
)
PYTHON_311 = """#!/bin/sh
case "$*" in
  *ensurepip*) exit {has_venv} ;;
  *version_info*) exit {is_right_version} ;;
  --version) echo "Python 3.11.0" ;;
  *) echo "called: $*" >&2; exit 7 ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, and a PATH that holds only what every Unix has."""
    checkout = tmp_path / "checkout"
    for name in SOURCES:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("bash", "sh", "env", "cat", "cksum", "tr", "dirname", "mktemp", "rm"):
        found = shutil.which(name)
        assert found, name
        (commands / name).symlink_to(found)
    return checkout


def setup(checkout: Path, **env: str):
    return run(checkout / "tools/setup.sh", cwd=checkout, env={"PATH": str(checkout.parent / "bin"), **env})


def install_python(
    checkout: Path, name: str, *, is_right_version: bool = True, has_venv: bool = True
) -> None:
    script = checkout.parent / "bin" / name
    script.write_text(
        PYTHON_311.format(has_venv=int(not has_venv), is_right_version=int(not is_right_version))
    )
    script.chmod(0o755)


def test_no_python(machine: Path):
    done = setup(machine)
    assert done.returncode == 1
    assert done.stderr == "setup: needs Python 3.11 to 3.13 on PATH (or PYTHON=/path/to/python)\n"


def test_debian_without_its_venv_package_gets_one_clear_line(machine: Path):
    install_python(machine, "python3.11", has_venv=False)
    done = setup(machine)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "setup: python3.11 cannot make virtual environments: install its venv package"
    )
    assert done.stderr.count("\n") == 1


def test_a_later_python_that_can_is_preferred_to_an_earlier_that_cannot(machine: Path):
    install_python(machine, "python3.11", has_venv=False)
    install_python(machine, "python3.12")
    assert "called: -m venv --clear .venv" in setup(machine).stderr


def test_with_nothing_changed_it_does_nothing(machine: Path):
    (machine / ".venv/bin").mkdir(parents=True)
    install_python(machine, "python3.11")
    shutil.copy(machine.parent / "bin/python3.11", machine / ".venv/bin/python")
    sources = b"".join((machine / name).read_bytes() for name in SOURCES)
    done = run("cksum", cwd=machine, stdin=sources.decode())
    (machine / ".venv/.turnpike-setup").write_text(done.stdout)
    again = setup(machine)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    (machine / "requirements.lock").write_text("uv==1\n")
    assert "preparing .venv" in setup(machine).stdout
