"""What a guarded process has started is gone soon after it, whatever ended it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripted_engine.guardian import marked

# A child in a session of its own, whose child has one too, and a grandchild that hides its environment.
RUNNER = """
import os, subprocess, sys
from scripted_engine.guardian import guard
mark = guard()
sleep = ["sleep", "600"]
tree = '''
import subprocess, sys
hidden = subprocess.Popen(["env", "-i", "sleep", "600"])
away = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(hidden.pid, away.pid, flush=True)
hidden.wait()
'''
command = [sys.executable, "-c", tree]
child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
print(mark.rpartition(":")[2], child.pid, child.stdout.readline(), flush=True)
{then}
"""


def start(then: str) -> tuple["subprocess.Popen[str]", str, list[int]]:
    """A runner, its mark, and the three that it started."""
    command = [sys.executable, "-c", RUNNER.format(then=then)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert runner.stdout is not None
    mark, *pids = runner.stdout.readline().split()
    return runner, mark, [int(pid) for pid in pids]


@pytest.fixture
def started() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in filter(lives, pids):
        os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def await_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor) as waiting:
        assert select.select([waiting], [], [], 30)[0], f"process {pid} still runs"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [False, True])
def test_whatever_ends_it_nothing_is_left(started: list[int], number: signal.Signals, whole_group: bool):
    runner, mark, pids = start("child.wait()")
    started += pids
    assert marked(mark)
    assert all(map(lives, pids))
    (os.killpg if whole_group else os.kill)(runner.pid, number)
    for pid in pids:
        await_end(pid)
    runner.communicate()
    assert marked(mark) == set()


@pytest.mark.parametrize("then", ["raise SystemExit", "os._exit(1)"])
def test_nor_is_anything_when_it_ends_by_itself(started: list[int], then: str):
    runner, _, pids = start(then)
    started += pids
    for pid in pids:
        await_end(pid)
    runner.communicate()


ENGINE = """
import json, pathlib, sys
from scripted_engine.process import EngineOptions, ScriptedEngine
with ScriptedEngine({"scripts": {}}) as engine:
    print(engine._process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_real_engine_ends_with_a_runner_that_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as runner:
        assert runner.stdout is not None
        group = int(runner.stdout.readline())
        members = [
            pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if in_session(pid, group)
        ]
        assert len(members) >= 2  # the server, and vLLM's EngineCore
        runner.kill()
    for pid in members:
        await_end(pid)


def in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False
