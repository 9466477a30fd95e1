"""What a process starts ends when that process ends, however it ends: also by SIGKILL, and grandchildren too.

``guard()`` puts a mark into this process's environment, which everything started from now on inherits. It
also starts a guardian, a small process that waits for this one to end: a pipe between the two then closes.
The guardian kills whatever carries the mark, and whatever shares a session with that, since some programs
(Chromium) overwrite the environment that the kernel shows of them. A plain fork, without exec, shows the
environment of before the mark and is not found.

Standard library only. Where there is no ``/proc`` nothing is guarded.
"""

import contextlib
import os
import signal
import sys
import time
import uuid

VARIABLE = "GUARDED_BY"
"""The marks, separated by colons: a guarded process may itself be started by one."""
_AGAIN_S = 0.02
_ROUNDS = 250

_own_mark: str | None = None


def guard() -> str:
    """From now on, what this process starts ends with it. Harmless when called again.

    Returns the value of ``VARIABLE``, for environments that are not made from ``os.environ``.
    """
    global _own_mark  # noqa: PLW0603 - a process has one guardian
    if _own_mark is None:
        _own_mark = uuid.uuid4().hex
        if os.path.exists("/proc/self/environ"):
            _start_guardian(_own_mark)
        os.environ[VARIABLE] = ":".join(filter(None, (os.environ.get(VARIABLE), _own_mark)))
    return os.environ[VARIABLE]


def marked(mark: str) -> set[int]:
    """The other processes that carry this mark; none where there is no ``/proc``."""
    found = set()
    for pid in _processes():
        if pid != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
                if mark in _marks(environment.read()):
                    found.add(pid)
    return found


def _start_guardian(mark: str) -> None:
    reading, writing = os.pipe()
    os.register_at_fork(after_in_child=lambda: os.close(writing))
    command = [sys.executable, "-I", "-S", __file__, mark, str(os.getsid(0))]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    actions = [(os.POSIX_SPAWN_DUP2, reading, 0), *nowhere]
    # A session of its own: a signal to the group of the guarded process must not reach it.
    os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)
    os.close(reading)


def _processes() -> list[int]:
    if not os.path.isdir("/proc"):
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _marks(environment: bytes) -> list[str]:
    name = f"{VARIABLE}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(name):
            return entry[len(name) :].decode(errors="replace").split(":")
    return []


def _with_their_sessions(pids: set[int], spared_session: int) -> set[int]:
    sessions = {_session(pid) for pid in pids} - {spared_session, os.getsid(0), None}
    return pids | {pid for pid in _processes() if _session(pid) in sessions}


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _wait_then_kill(mark: str, guarded_session: int) -> None:
    while os.read(0, 1):
        pass
    is_gone = False
    for _ in range(_ROUNDS):
        found = _with_their_sessions(marked(mark), guarded_session)
        if is_gone and not found:
            return
        is_gone = not found  # looked at once more: a process that is just being started shows no environment
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_S)


if __name__ == "__main__":
    _wait_then_kill(sys.argv[1], int(sys.argv[2]))
