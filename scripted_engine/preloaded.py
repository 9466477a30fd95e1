"""Engines that start soon: forks of one process that has imported vLLM.

Without a GPU almost all of an engine's start is importing torch and vLLM. So a process that starts engines
has one *zygote*, which imports them once; each engine is a fork of it, with an environment, a folder, a log
and CPUs of its own, and runs ``scripted_engine.server`` as a process begun anew would.

The zygote bears the mark of its guardian, and its forks with it. It ends with the process that it serves.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

SERVER = "scripted_engine.server"
_ONE_THREAD = ("OMP_NUM_THREADS", "1")
"""An OpenMP of several threads does not outlive a fork."""
_MESSAGE_BYTES = 1 << 20

_starting = threading.Lock()


def is_forkable(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    return list(command[:3]) == [sys.executable, "-m", SERVER] and _ONE_THREAD in environment.items()


class Fork:
    """Of `subprocess.Popen` what an engine's owner needs, for a process that is another one's child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Whether it ended, as a number that says no more than that."""
        return 0 if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(SERVER, timeout or 0.0)
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None
        return 0

    def _has_ended(self, timeout: float | None) -> bool:
        return self._ended is None or bool(select.select([self._ended], [], [], timeout)[0])


def fork(arguments: Sequence[str], environment: Mapping[str, str], folder: str, log: BinaryIO) -> Fork:
    """A server with these arguments, in a session of its own. The first one waits for the imports.

    Raises OSError if the zygote ended.
    """
    wanted = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": folder,
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    with _starting:
        return _shared(environment).fork(json.dumps(wanted).encode(), log)


def _shared(environment: Mapping[str, str]) -> "_Zygote":
    global _zygote  # noqa: PLW0603 - a process has one
    if _zygote is None:
        _zygote = _Zygote(environment)
    return _zygote


class _Zygote:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripted_engine.preloaded", str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._close)

    def fork(self, message: bytes, log: BinaryIO) -> Fork:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._channel, [message], [log.fileno()])
            if answer := self._channel.recv(_MESSAGE_BYTES):
                return Fork(int(answer))
        self._printed.seek(0)
        raise OSError("vLLM was not imported:\n" + self._printed.read().decode(errors="replace"))

    def _close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()
        self._printed.close()


_zygote: _Zygote | None = None


def main() -> None:
    """The zygote: a fork for each message, until the other end is gone."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    from scripted_engine import server

    server.share_imports()
    gc.freeze()  # a collection in a fork would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
        if not message:
            return
        (log,) = descriptors
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become(json.loads(message), log)
            server.main()
            return
        os.close(log)
        channel.send(b"%d" % pid)


def _become(wanted: Mapping[str, Any], log: int) -> None:
    os.setsid()
    os.sched_setaffinity(0, wanted["cpus"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in more if path and path not in sys.path]
    sys.argv = [SERVER, *wanted["arguments"]]
    tempfile.tempdir = None


if __name__ == "__main__":
    main()
