"""Every block of commands in the guide, as it is written, in a script for each page.

`first-session.md` has a test of its own, which installs the clone, too; `tests/engine_ext/` starts engines
with the plugin; `what.md` has a drawing.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripted_engine.ports import free_port
from tests.engines import MODEL, Fleet
from tests.prerequisites import require_command
from tests.project.layout import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

GUIDE = ROOT / "docs/guide"
ELSEWHERE = {"first-session.md", "install.md", "what.md"}
START = """
serve() {{
  {command} > serve.log 2>&1 & serve=$!
  until curl -sf "$TURNPIKE_CONTROL/turnpike/readyz" > ready; do kill -0 $serve; sleep 0.2; done
}}
finish() {{ kill $serve; wait $serve; }}
serve
"""
HASH = "hash() { turnpike hash-key --generate | tee key | sed -n 's/^hash: *//p'; }\n"
FLEET_FILE = '[[replicas]]\nprofile = "qwen3-coder-30b-a3b@h200"\n'


def blocks(page: str) -> list[str]:
    """Commands and settings, in their order."""
    return re.findall(r"^```(?:sh|toml)?\n(.*?)^```", (GUIDE / page).read_text(), re.MULTILINE | re.DOTALL)


def test_no_page_with_blocks_is_left_out() -> None:
    pages = {each.name for each in GUIDE.glob("*.md") if "```" in each.read_text()}
    assert pages - ELSEWHERE == {"agents.md", "run.md", "tune.md", "watch.md"}
    assert [len(blocks(page)) for page in ("agents.md", "run.md", "tune.md", "watch.md")] == [2, 6, 1, 2]


def test_install() -> None:
    gateway, plugin = blocks("install.md")
    assert gateway == "pip install .\nturnpike --version\n", "as in the first session, which runs it"
    pip, serve = plugin.split("\n", 1)
    assert pip == "pip install ./engine_ext" and (ROOT / "engine_ext/pyproject.toml").exists()
    named = re.search(r"VLLM_PLUGINS=(\w+) vllm serve MODEL .*--scheduler-cls ([\w.]+) ", serve, re.DOTALL)
    assert named and named[1] in entry_points(group="vllm.general_plugins").names
    module, _, name = named[2].rpartition(".")
    found = find_spec(module)  # without its import, which is vLLM's
    assert found and found.origin and f"class {name}(" in Path(found.origin).read_text()


class Shell:
    """Runs scripts in a folder, with the guide's addresses replaced by free ones."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        require_command("curl", install="your system's package manager")
        port, control = free_port(), free_port()
        self._folder = folder
        self._here = {f"http://gpu-{n}:8000": each.url for n, each in enumerate(fleet.scripted, 1)} | {
            "http://127.0.0.1:8081": f"http://127.0.0.1:{control}",
            "http://GATEWAY:8080": f"http://127.0.0.1:{port}",
            '"0.0.0.0:8080"': f'"127.0.0.1:{port}"',
            '"127.0.0.1:8081"': f'"127.0.0.1:{control}"',
            '"MODEL"': f'"{MODEL}"',
        }
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TURNPIKE_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_PROXY": "127.0.0.1",
            "GPU2_KEY": "any",
            "TURNPIKE_CONTROL": f"http://127.0.0.1:{control}",
            "TURNPIKE_SERVER__LISTEN": f"127.0.0.1:{port}",
            "TURNPIKE_SERVER__CONTROL": f"127.0.0.1:{control}",
            "TURNPIKE_SERVER__SHUTDOWN_DELAY_S": "0",
        }

    def here(self, text: str) -> str:
        for there, here in self._here.items():
            text = text.replace(there, here)
        return text

    def run(self, *lines: str) -> str:
        script = self.here("\n".join(["set -eo pipefail", *lines]))
        done = subprocess.run(
            ["bash", "-c", script], cwd=self._folder, env=self._environment, capture_output=True, text=True
        )
        log = self._folder / "serve.log"
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        return done.stdout


@pytest.fixture
def shell(tmp_path, fleet) -> Shell:
    fleet.play({"default": {"turns": [{"text": "Hello."}]}})
    return Shell(tmp_path, fleet)


def test_run_and_watch(shell: Shell, tmp_path: Path) -> None:
    alone, settings, check_and_serve, change, keys, drain = blocks("run.md")
    check, serve = check_and_serve.splitlines()
    sessions, figures = blocks("watch.md")
    hello, headers = blocks("agents.md")
    (tmp_path / "turnpike.toml").write_text(shell.here(settings))
    printed = shell.run(
        START.format(command=alone.strip()),
        "finish",
        HASH + 'for n in 1 2; do sed -i "0,/sha256:…/s//$(hash)/" turnpike.toml; done',
        check,
        'export TURNPIKE_SERVER__KEYS_PATH="$PWD/keys"',
        "turnpike keys add ci-1 --tenant team-a",
        START.format(command=serve),
        change,
        keys + "sleep 1.5",
        hello.replace("KEY", "$(sed -n 's/^key: *//p' key)").rstrip() + " | tee hello",
        "sleep 1; echo == sessions",
        sessions.replace("r-4f1c9a1b", "$(sed -n 's/^x-turnpike-request: *//p' hello | tr -d '\\r')"),
        "echo == drain",
        drain.replace("curl -X", "curl -f -X"),
        "finish",
    )
    answered, _, rest = printed.partition("== sessions")
    for line in headers.splitlines():
        assert f"\n{line.partition(':')[0]}:" in answered, line
    assert "ci-2" in answered and "became   finished" in rest
    assert '"draining":true' in rest.replace(" ", "") and '"draining":false' in rest.replace(" ", "")
    assert figures.startswith("["), "settings, which another test reads"


def test_tune(shell: Shell, tmp_path: Path) -> None:
    [block] = blocks("tune.md")
    serve, workload, simulate = block.splitlines()
    (tmp_path / "FLEET.toml").write_text(FLEET_FILE)
    urls = ", ".join(f'{{ url = "http://gpu-{number}:8000" }}' for number in (1, 2))
    (tmp_path / "turnpike.toml").write_text(shell.here(f"[[pools]]\nreplicas = [{urls}]\n"))
    [hello, _] = blocks("agents.md")
    printed = shell.run(START.format(command=serve), hello, hello, "finish", workload, simulate)
    assert re.findall(r"^(\d+) sessions/h", printed, re.MULTILINE) == ["60", "90"]
    assert re.findall(r"^(turnpike|affinity) +\d", printed, re.MULTILINE) == ["turnpike", "affinity"] * 2
