"""The wheels as somebody gets them who has nothing else: built, checked, installed, started."""

import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.project.layout import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

_DATA = """
import gateway.shared_state
from importlib.resources import files
from gateway.config.profiles import shipped_parts
assert shipped_parts().models and shipped_parts().hardware
for package, pattern in (
    ("gateway.dashboard", "static/index.html"),
    ("gateway.shared_state", "lua"),
    ("gateway", "py.typed"),
):
    assert files(package).joinpath(pattern).exists(), (package, pattern)
"""
_LAB_DATA = """
from importlib.resources import files
import lab.engine
assert list(files("lab.simulator.report").glob("*.css")) and list(files("lab.engine").glob("*.jinja"))
"""


def run(*command: str | Path, **more: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environ, cwd="/")
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    """The gateway's, the lab's and the plugin's, built from what git has."""
    directory = tmp_path_factory.mktemp("wheels")
    source, built = directory / "source", directory / "dist"
    archive = directory / "source.tar"
    subprocess.run(["git", "archive", "--output", archive, "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    for project in (source, source / "lab", source / "engine_ext"):
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, project)
    return sorted(built.iterdir())


@pytest.fixture(scope="module")
def empty(tmp_path_factory, wheels) -> Path:
    """The programs of an environment that has the gateway's and the plugin's wheels and what they need."""
    directory = tmp_path_factory.mktemp("empty")
    venv.create(directory, with_pip=True)
    programs = directory / "bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, *(each for each in wheels if not each.name.startswith("turnpike_lab")))
    run(*pip, "twine")
    return programs


def test_they_are_fit_for_an_index(wheels, empty):
    assert [each.name.partition("-")[0] for each in wheels] == [
        "turnpike_gateway",
        "turnpike_lab",
        "turnpike_vllm",
    ]
    told = run(empty / "python", "-m", "twine", "check", "--strict", *wheels)
    assert told.count("PASSED") == 3


def test_nothing_is_missing(empty):
    assert run(empty / "turnpike", "--version").startswith("turnpike 0.")
    assert "doctor" in run(empty / "turnpike-vllm", "--help")
    run(empty / "python", "-c", _DATA)


def test_it_serves(empty, tmp_path):
    log = tmp_path / "log"
    command = [
        *(empty / "turnpike", "serve", "--backend", "http://127.0.0.1:9"),
        *("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"),
    ]
    with log.open("w") as written, subprocess.Popen(command, stderr=written, cwd="/") as process:
        try:
            deadline = time.monotonic() + 60
            while (found := re.search(r"control on port (\d+)\n", log.read_text())) is None:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            page = f"http://127.0.0.1:{found[1]}/turnpike/"
            with urllib.request.urlopen(page, timeout=10) as answer:
                assert b"<html" in answer.read()
        finally:
            process.terminate()
            process.wait(60)


def test_uvx_starts_it_without_an_installation(wheels, tmp_path):
    uvx = Path(sys.executable).with_name("uvx")
    index = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True
    ).stdout.strip()
    settings = {"UV_CACHE_DIR": str(tmp_path), **({"UV_DEFAULT_INDEX": index} if index else {})}
    for program in ("turnpike", "turnpike-gateway"):
        told = run(uvx, "--python", sys.executable, "--from", wheels[0], program, "--version", **settings)
        assert told.startswith("turnpike 0.")


def test_the_lab_s_commands_come_with_its_wheel(wheels, empty):
    (lab,) = (each for each in wheels if each.name.startswith("turnpike_lab"))
    run(empty / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", lab)
    for name in ("simulate", "workload", "eval", "replay", "play"):
        assert f"turnpike {name}" in run(empty / "turnpike", name, "--help")
    run(empty / "python", "-c", _LAB_DATA)
