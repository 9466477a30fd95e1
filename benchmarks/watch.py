"""Watches a gateway from outside: how much memory it holds, and how late its event loop is.

About every 100 ms it asks for `/turnpike/healthz` on the control plane, which the same event loop answers:
what an answer takes beyond the usual is time that the loop was busy with something else. When it asks is
left to chance, or it would meet traffic of the same period always at the same point. A process of its
own, so that the load it watches does not delay it more than the machine does.

    python -m benchmarks.watch PID CONTROL_PORT SECONDS

prints one JSON object: `probe_ms` and `rss_mib` in the order of time.
"""

import http.client
import json
import random
import subprocess
import sys
import time
from typing import Final

import msgspec

from benchmarks.processes import ROOT, resident_mib

_PERIOD_S: Final = 0.1
_PROBES_PER_MEMORY_READING: Final = 10


class Watched(msgspec.Struct, kw_only=True):
    probe_ms: list[float]
    """What each probe took, one in every 100 ms."""
    rss_mib: list[float]
    """Resident memory, every second."""


def start_watching(pid: int, control_port: int, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.watch", str(pid), str(control_port), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def result_of(watching: subprocess.Popen[bytes]) -> Watched:
    out, _ = watching.communicate()
    return msgspec.json.decode(out, type=Watched)


def watch(pid: int, control_port: int, seconds: float) -> Watched:
    seen = Watched(probe_ms=[], rss_mib=[])
    connection = http.client.HTTPConnection("127.0.0.1", control_port, timeout=60)
    start = time.perf_counter()
    rng = random.Random(pid)
    for number in range(int(seconds / _PERIOD_S)):
        due = start + (number + rng.random()) * _PERIOD_S
        time.sleep(max(0.0, due - time.perf_counter()))
        if number % _PROBES_PER_MEMORY_READING == 0:
            seen.rss_mib.append(resident_mib(pid))
        asked = time.perf_counter()
        connection.request("GET", "/turnpike/healthz")
        connection.getresponse().read()
        seen.probe_ms.append((time.perf_counter() - asked) * 1e3)
    connection.close()
    return seen


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
