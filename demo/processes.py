"""Child processes: each in a process group of its own, all of them gone when the demo ends.

An agent runs its tools in sessions of their own, which a signal to the agent's group does not reach.
So every child also carries a mark in its environment, which its own children inherit, and whatever still
carries the mark at the end is stopped too (where `/proc` shows it).
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo.errors import DemoError

MARK = "TURNPIKE_DEMO_RUN"
STOP_WITHIN_S = 10.0


async def spawn(
    argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], log: Path
) -> asyncio.subprocess.Process:
    """Starts a process in its own group, with no input and all its output in `log`."""
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )


async def stop(process: asyncio.subprocess.Process, *, within_s: float = STOP_WITHIN_S) -> None:
    """Ends the process and its whole group: asks, waits, then insists. Harmless when already gone."""
    signal_group(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        pass
    finally:
        signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def stop_marked(mark: str) -> int:
    """Kills every process that carries this mark and says how many there were."""
    found = marked(mark)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def marked(mark: str) -> list[int]:
    """The other processes whose environment carries this mark; none where there is no `/proc`."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        pid = int(entry.parent.name)
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes().split(b"\0"):
                found.append(pid)
    return found


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:])[-400:]
