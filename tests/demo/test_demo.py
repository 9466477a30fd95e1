"""The demo as a user runs it: real agents, real engines, the real gateway, and nothing left afterwards."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.agents import AGENTS
from scripted_engine.guardian import marked
from tests.prerequisites import require_command

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "demo"]


def run_demo(*options, timeout_s, **settings):
    command = [*DEMO, *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout_s, **settings
    )


def mark_of(output):
    """What the demo's processes are known by: the name of its directory."""
    return output.partition("run/demo/")[2].split()[0]


@pytest.mark.nightly  # three minutes; real agents of each client are in tests/clients
@pytest.mark.engine
@pytest.mark.agents
@pytest.mark.timeout(600)
def test_every_agent_repairs_its_file_on_both_sides_and_is_recognised_as_one_session():
    require_command("npm", install="Node.js 20 or newer brings it")
    result = run_demo("--json", "--conversations", "3", timeout_s=570)  # fewer than the demo has
    assert result.returncode == 0, result.stdout + result.stderr
    totals = json.loads(result.stdout.splitlines()[-1])
    assert totals["ok"]
    assert totals["runs"] == totals["recognised"] == totals["done"] == len(AGENTS)
    assert totals["turns"] == 4 * totals["runs"]
    for row in totals["sessions"]:
        # Codex runs a tool once the call is whole, and may be back before the answer has ended.
        least = 0 if row["run"].startswith("codex") else 3
        assert least <= row["tool_phases"] <= 3
    assert 0 < totals["cached_tokens"] < totals["prompt_tokens"]
    assert totals["added_ms"]["requests"] >= totals["turns"]
    # Each turn comes with a hint, and its pause with another.
    assert totals["hints_followed"] > totals["turns"]
    assert totals["turns_held"] >= totals["turns_returned"] > 0
    assert 0 < totals["most_blocks_retained"] < totals["blocks"]
    hidden = [row for row in totals["sessions"] if row["identity"] != "sent"]
    assert len(hidden) == 1
    assert all("call-id" in row["recognised_by"] for row in hidden)
    compared = totals["comparison"]
    assert compared["done"]
    measures = compared["measures"]
    for side in ("stock", "turnpike"):
        assert measures["a conversation, mean"][side] > measures["first token, mean"][side] > 0
        assert 0 < measures["prompt tokens found in the prefix cache"][side] < 1
    assert measures["waited at the gateway, in all"]["stock"] < 0.1  # there is none
    assert "Where it does not help" in result.stdout
    pages = ROOT / "run/demo" / mark_of(result.stdout) / "report.html"
    assert "3 real agents and 3 replayed conversations" in pages.read_text()
    assert "left behind" not in result.stderr
    assert marked(mark_of(result.stdout)) == set()


@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.timeout(120)
def test_an_interrupt_stops_everything():
    require_command("npm", install="Node.js 20 or newer brings it")
    demo = subprocess.Popen(
        [*DEMO, "--quick"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever is started in the background ignores it, and so do all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    with demo:
        assert demo.stdout is not None
        output = ""
        while "starting" not in output:
            output += demo.stdout.readline()
        groups: set[int] = set()
        while len(groups) < 2:  # not the guardian, which ends last
            groups = children_of(demo.pid) & marked(mark_of(output))
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "demo: stopped" in errors
    assert marked(mark_of(output)) == set()
    assert not any(is_alive(group) for group in groups)


def children_of(pid):
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    return {child for child, parent in pairs if parent == pid}


def is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_without_node_it_is_one_line(tmp_path):
    result = run_demo(timeout_s=60, env={**os.environ, "PATH": str(tmp_path)})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("demo: node is not on PATH")
    assert len(result.stderr.splitlines()) == 1
