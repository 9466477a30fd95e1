"""A gateway as a user starts it, in front of given servers."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import ROOT, BenchmarkError, end_with_parent

_READY_WITHIN_S = 60.0


@contextmanager
def gateway(backends: Sequence[str], directory: Path, settings: str = "") -> Iterator[str]:
    """Yields its URL when it is ready. `settings`: more TOML; `directory` is for files, and is made."""
    directory.mkdir(parents=True)
    replicas = ", ".join(f'{{ url = "{url}" }}' for url in backends)
    file, log = directory / "turnpike.toml", directory / "log"
    file.write_text(
        '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
        f"[[pools]]\nreplicas = [{replicas}]\n{settings}"
    )
    command = [sys.executable, "-m", "gateway", "serve", str(file)]
    with log.open("w") as written:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stderr=written,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - there are no threads
        )
    try:
        yield _url_when_ready(process, log)
    finally:
        process.terminate()
        process.wait(60)


def _url_when_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    until = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        for line in log.read_text().splitlines():
            _, found, where = line.partition("listening on ")
            if found and _is_ready(where.rpartition(" ")[2]):
                return f"http://127.0.0.1:{where.partition(',')[0].rpartition(':')[2]}"
        time.sleep(0.05)
    raise BenchmarkError(f"the gateway did not become ready: {log.read_text()}")


def _is_ready(control_port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{control_port}/turnpike/readyz", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except urllib.error.URLError:
        return False
