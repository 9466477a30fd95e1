"""Child processes: each in a process group of its own, all of them gone when the demo ends.

An agent runs its tools in groups of their own, which a signal to the agent's group does not reach. So
every child also carries a mark in its environment, which its own children inherit, and whatever still
carries the mark at the end is stopped too (where `/proc` shows it). If the demo cannot do that because
it was killed, its guardian does.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo.errors import DemoError
from scripted_engine.guardian import VARIABLE, guard, marked

STOP_WITHIN_S = 10.0

Process = asyncio.subprocess.Process


class Children:
    """The processes that one demo has started."""

    def __init__(self, mark: str) -> None:
        """`mark` is what they are known by: different from every other demo's on this machine."""
        self._mark = mark
        self._groups: set[int] = set()

    async def spawn(
        self, argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], log: Path
    ) -> Process:
        """Starts a process in its own group, with no input and all its output in `log`."""
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env={**env, VARIABLE: f"{guard()}:{self._mark}"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self._groups.add(process.pid)
        return process

    async def stop(self, process: Process, *, within_s: float = STOP_WITHIN_S) -> None:
        """Ends the process and its whole group: asks, waits, then insists. Harmless when already gone."""
        _signal_group(process.pid, signal.SIGTERM)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_until_group_ends(process), within_s)
        finally:
            _signal_group(process.pid, signal.SIGKILL)
        await process.wait()
        self._groups.discard(process.pid)

    def stop_all(self) -> int:
        """Kills, at once, whatever is left; says how many processes had left their group behind."""
        while self._groups:
            _signal_group(self._groups.pop(), signal.SIGKILL)
        strays = marked(self._mark)
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return len(strays)


async def _until_group_ends(process: Process) -> None:
    await process.wait()
    for pause_s in itertools.repeat(0.05):
        if not _signal_group(process.pid, 0):
            return
        await asyncio.sleep(pause_s)


def _signal_group(pid: int, number: int) -> bool:
    """Whether there was anybody to signal."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def require_free(port: int) -> int:
    """The same port, or one line saying that it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DemoError(
                f"port {port} is taken: choose another with --port, or leave it out for a free one"
            ) from error
    return port


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log, on one line."""
    return " | ".join(_lines(log)[-count:])[-400:]


def first_error(log: Path) -> str:
    """The first line of a log that speaks of an error; the last line where none does."""
    lines = _lines(log)
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")[:400]


def _lines(log: Path) -> list[str]:
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line.strip() for line in text.splitlines() if line.strip()]
