"""The engine plugin's wheel, built: what belongs into a server that is in production, and nothing else."""

import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.project.layout import ROOT, run

pytestmark = pytest.mark.slow

BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    source = tmp_path_factory.mktemp("wheel") / "source"
    shutil.copytree(ROOT / "engine_ext", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    done = run(sys.executable, "-c", BUILD, source.parent, cwd=source)
    assert done.returncode == 0, done.stderr
    (wheel,) = source.parent.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_it_holds_the_plugin_and_the_license(held: set[str]):
    there = {path.relative_to(ROOT / "engine_ext").as_posix() for path in modules(ROOT / "engine_ext")}
    assert {name for name in held if ".dist-info/" not in name} == there
    assert [name for name in held if name.endswith("/licenses/LICENSE")]


def modules(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.py") if "build" not in path.relative_to(folder).parts]


@pytest.mark.parametrize("project", [".", "engine_ext", "lab"])
def test_every_distribution_ships_the_same_license(project: str):
    settings = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["project"]
    assert (settings["license"], settings["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (ROOT / project / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (ROOT / "LICENSE").read_text().split()[:3] == ["Apache", "License", "Version"]
