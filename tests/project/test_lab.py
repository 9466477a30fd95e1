"""The lab beside the product: not loaded by it, told how to install, and whole as a package."""

import sys
import tomllib

import pytest

import gateway.__main__ as command
from tests.project.layout import ROOT, run

LAB = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())


def test_the_command_loads_nothing_of_the_lab():
    program = "import sys, gateway.__main__; print([each for each in sys.modules if each.startswith('lab')])"
    done = run(sys.executable, "-c", program)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_the_lab_its_commands_say_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(command, "entry_points", lambda **_: ())
    with pytest.raises(SystemExit) as ended:
        command.main(["simulate", "--help"])
    assert ended.value.code == 2
    assert "pip install ./engine_ext ./lab" in capsys.readouterr().err


def test_its_wheel_has_every_package_and_command():
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "lab").rglob("*.py")}
    packages = sorted(".".join(folder.parts) for folder in folders if "build" not in folder.parts)
    assert packages == LAB["tool"]["setuptools"]["packages"]
    assert set(LAB["project"]["entry-points"]["turnpike.commands"]) == set(command._LAB_COMMANDS)
