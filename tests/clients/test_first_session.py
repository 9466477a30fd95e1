"""The guide's first session, as it is written: every command of the page, in its order."""

import itertools
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from scripted_engine.ports import free_port
from scripted_engine.process import EngineOptions, ScriptedEngine
from tests.prerequisites import require_command
from tests.project.layout import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.agents, pytest.mark.timeout(1200)]

UV = Path(sys.executable).with_name("uv")
PAGE = ROOT / "docs/guide/first-session.md"
MOST_S = 300.0
READY = """\
 > serve.log 2>&1 & serve=$!
trap 'kill $serve; wait $serve' EXIT
until curl -sf "$TURNPIKE_CONTROL/turnpike/readyz" > ready; do kill -0 $serve; sleep 0.2; done
"""


def script() -> dict:
    def turn(text: str, command: str) -> dict:
        return {"text": f"{text} " * 30, "tool_calls": [{"name": "bash", "arguments": {"command": command}}]}

    edit = "sed -i.orig 's/quantity + unit_price/quantity * unit_price/' price.py"
    turns = [
        turn("I will read the program.", "cat price.py"),
        turn("One line is wrong.", edit),
        turn("Now I try it.", "python3 -c 'from price import total; print(total(3, 4))'"),
        turn("It multiplies.", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ]
    return {"default": {"turns": turns, "without_tools": "Done."}, "scripts": {}}


def blocks() -> list[str]:
    found = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 8, "a block that is new has to be looked at here"
    return found


def test_every_command_of_the_page(tmp_path: Path) -> None:
    require_command("curl", install="your system's package manager")
    clone, archive = tmp_path / "clone", tmp_path / "clone.tar"
    subprocess.run(["git", "archive", "--output", archive, "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(clone, filter="data")
    port, control = free_port(), free_port()
    with ScriptedEngine(script(), EngineOptions(served_model_names=("coder",))) as engine:
        addresses = {":8000": f":{engine.port}", ":8080": f":{port}", ":8081": f":{control}"}
        # The same commands, with what is downloaded kept from one run to the next.
        lines = ["set -eo pipefail", f'pip() {{ "{UV}" pip "$@"; }}']
        for number, block in enumerate(blocks()):
            here = re.sub(r"(?<=127\.0\.0\.1)(:\d+)", lambda found: addresses[found[1]], block)
            command = here.rstrip() + READY if "turnpike serve" in here else here
            lines.append(f'echo "== {number} $(date +%s.%N)"\n{command}')
        lines.append('echo "== end $(date +%s.%N)"')
        cache = subprocess.run(
            [UV, "cache", "dir"], capture_output=True, text=True, check=True
        ).stdout.strip()
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "TURNPIKE_"))}
        environ = kept | {
            "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "UV_CACHE_DIR": cache,
            "NO_PROXY": "127.0.0.1,localhost",
            "TURNPIKE_CONTROL": f"http://127.0.0.1:{control}",
            "TURNPIKE_SERVER__LISTEN": f"127.0.0.1:{port}",
            "TURNPIKE_SERVER__CONTROL": f"127.0.0.1:{control}",
            "TURNPIKE_SERVER__SHUTDOWN_DELAY_S": "0",
        }
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)], cwd=clone, env=environ, capture_output=True, text=True
        )
        print(done.stdout, done.stderr, f"{time.monotonic() - began:.0f} s in all")
    logs = "\n".join(file.read_text() for file in clone.glob("agent-*/log")) + _read(clone / "serve.log")
    assert done.returncode == 0, done.stdout + done.stderr + logs
    told, times = parts(done.stdout)
    assert re.match(r"turnpike \d", told[0].splitlines()[-1])
    assert "wrote turnpike.toml" in told[1] and "serves coder" in told[1]
    assert "return quantity * unit_price" in told[4], logs
    turns = re.findall(r"^s-\S+ .* (\d+) +- +[\d.]+ \S+ +\d+ %  ", told[5], re.MULTILINE)
    assert turns == ["4", "4", "4"], "three runs are three sessions, and it is known what was cached"
    saved = re.search(r"^(\d+) prompt tokens were cached, and not computed again", told[5], re.MULTILINE)
    assert saved and int(saved[1]) > 3 * 3 * 500, "three turns of each run found what the one before left"
    assert "by call-id" in told[6] and re.search(r"^why +It waited \d", told[6], re.MULTILINE), told[6]
    assert "became   finished" in told[6] and "tokens cached" in told[6]
    assert told[7].count("server.limits.max_body_bytes: 67108864 → 8000000") == 2
    installing = [0, 3]
    spent = sum(took for number, took in enumerate(times) if number not in installing)
    assert spent + 60.0 < MOST_S, times


def parts(output: str) -> tuple[list[str], list[float]]:
    """What each block printed, and how long it took, in seconds."""
    _, *pieces = re.split(r"^== (?:\d+|end) ([\d.]+)\n", output, flags=re.MULTILINE)
    times = [float(each) for each in pieces[::2]]
    return pieces[1::2], [after - before for before, after in itertools.pairwise(times)]


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
