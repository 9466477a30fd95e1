"""A gateway as a user starts it: the command, a settings file, a process of its own.

What its brain is told is recorded; when it has ended, another brain is told the same, and must answer
the same.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.simulator.replay import replay

_READY_WITHIN_S = 60.0


@contextmanager
def running_gateway(backends: Sequence[str], directory: Path, *, more_settings: str = "") -> Iterator[int]:
    """As `gateway_with`, in front of these backends."""
    replicas = ", ".join(f'{{ url = "{url}" }}' for url in backends)
    settings = (
        '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
        f"[[pools]]\nreplicas = [{replicas}]\n{more_settings}"
    )
    with gateway_with(settings, directory) as port:
        yield port


@contextmanager
def gateway_with(settings: str, directory: Path, **environment: str) -> Iterator[int]:
    """Yields the port of a gateway that is ready, and ends it by SIGTERM; a bad end fails the test, and so
    does a brain that answers otherwise when it is asked again.

    `directory` is made, for the settings and the log.
    """
    directory.mkdir(parents=True)
    path = directory / "turnpike.toml"
    path.write_text(settings)
    command = [sys.executable, "-m", "gateway", "serve", str(path)]
    env = {
        **os.environ,
        **environment,
        "TURNPIKE_SERVER__SHUTDOWN_DELAY_S": "0",
        "TURNPIKE_RECORDING__PATH": str(directory / "events"),
    }
    log = directory / "log"
    with log.open("w") as written, subprocess.Popen(command, stderr=written, env=env) as process:
        try:
            yield _port_when_ready(process, log)
        finally:
            process.terminate()
            status = process.wait(60)
    assert status == 0, log.read_text()
    assert replay(directory / "events").events > 0


def _port_when_ready(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            _, found, where = line.partition("listening on ")
            if found and _is_ready(control_port=int(where.rpartition(" ")[2])):
                return int(where.partition(",")[0].rpartition(":")[2])
        time.sleep(0.05)
    raise AssertionError(f"the gateway did not become ready: {log.read_text()}")


def _is_ready(control_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{control_port}/turnpike/readyz", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except urllib.error.URLError:
        return False
