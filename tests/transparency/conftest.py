"""A gateway as a user starts it, in front of a real scripted engine and a real embedding engine."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import EMBEDDER, MODEL, Fleet
from tests.transparency.tee import Tee

SCRIPTS = {
    "scripts": {
        "talk": {"turns": [{"text": "Good evening. This is a reply of some length, so that it has deltas."}]},
        "tools": {
            "turns": [
                {
                    "text": "I look first.",
                    "tool_calls": [
                        {"name": "bash", "arguments": {"command": "ls -la"}},
                        {"name": "bash", "arguments": {"command": 'echo "naïve ✓"'}},
                    ],
                },
                {"text": "Done, both of them."},
            ]
        },
    }
}


@dataclass(frozen=True)
class Route:
    """From the client to an engine: directly, or through the gateway and a tee."""

    gateway_port: int
    engine_port: int
    tee: Tee


@pytest.fixture(scope="session")
def paths(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Route]]:
    """By model: the scripted engine and the embedding one, each behind a gateway of its own."""
    fleet.play(SCRIPTS)
    engines = {MODEL: fleet.scripted[0].port, EMBEDDER: fleet.embedder.port}
    directory = tmp_path_factory.mktemp("gateways")
    with (
        Tee(engines[MODEL]) as scripted,
        Tee(engines[EMBEDDER]) as embedder,
        _gateway(scripted, directory / "scripted") as scripted_port,
        _gateway(embedder, directory / "embedder") as embedder_port,
    ):
        yield {
            MODEL: Route(scripted_port, engines[MODEL], scripted),
            EMBEDDER: Route(embedder_port, engines[EMBEDDER], embedder),
        }


@contextmanager
def _gateway(tee: Tee, directory: Path) -> Iterator[int]:
    directory.mkdir()
    settings = directory / "turnpike.toml"
    # One health check at the start and none later: the tee keeps only what a test sends.
    settings.write_text(
        '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
        f'[[pools]]\nreplicas = [{{ url = "http://127.0.0.1:{tee.port}" }}]\n'
        "[upstream]\nhealth_period_s = 86400\n"
    )
    log = (directory / "log").open("w+")
    command = [sys.executable, "-m", "gateway", "serve", str(settings)]
    with subprocess.Popen(command, stderr=log, text=True) as process:
        try:
            yield _listening_port(process, directory / "log")
        finally:
            process.terminate()
            assert process.wait(30) == 0
            log.close()


def _listening_port(process: subprocess.Popen[str], log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if "listening on" in line:
                port = int(line.partition(",")[0].rpartition(":")[2])
                control = int(line.rpartition(" ")[2])
                if _is_ready(control):
                    return port
        time.sleep(0.05)
    raise AssertionError(f"the gateway did not become ready: {log.read_text()}")


def _is_ready(control: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{control}/turnpike/readyz", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except urllib.error.URLError:
        return False
