"""`turnpike settings`, and SIGHUP, against a gateway as a user starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.__main__ import main

pytestmark = pytest.mark.slow

SETTINGS = """
[server]
listen = "127.0.0.1:0"
control = "127.0.0.1:0"
lame_duck_s = 0
{server}
[[pools]]
replicas = [{{ url = "http://127.0.0.1:{backend}" }}]
"""


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path, int]]:
    """The process, its log, and the port of its control plane."""
    log = directory / "log"
    command = [sys.executable, "-m", "gateway", "serve", *arguments]
    with log.open("w") as written, subprocess.Popen(command, stderr=written, env={**os.environ}) as process:
        try:
            (line,) = logged(process, log, "listening on ")
            yield process, log, int(line.rpartition(" ")[2])
        finally:
            process.terminate()
            process.wait(30)


def logged(process: subprocess.Popen[bytes], log: Path, text: str, times: int = 1) -> list[str]:
    """The lines that say so, when there are so many."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        found = [line for line in log.read_text().splitlines() if text in line]
        if len(found) >= times:
            return found
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def write(path: Path, server: str = "", backend: int = 9) -> None:
    path.write_text(SETTINGS.format(server=server, backend=backend))


def test_a_file_is_compared_read_again_and_refused(tmp_path, capsys):
    path = tmp_path / "turnpike.toml"
    write(path)
    with serving(tmp_path, str(path)) as (process, log, port):
        at = ["--control", f"http://127.0.0.1:{port}"]
        other = tmp_path / "other.toml"
        write(other, 'receipts = false\nstate_path = "/x"')
        assert main(["settings", "diff", str(other), *at]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "server.receipts: true → false",
            "server.state_path: not there → (not shown)  needs a restart",
        ]
        assert main(["settings", "diff", *at]) == 0
        assert capsys.readouterr().out == "nothing would change\n"

        write(path, "receipts = false")
        assert main(["settings", "reload", "--json", *at]) == 0
        assert [each["key"] for each in json.loads(capsys.readouterr().out)] == ["server.receipts"]

        write(path, "recipts = false")
        assert main(["settings", "reload", *at]) == 1
        assert f"{path}: server.recipts: there is no such key" in capsys.readouterr().err
        assert main(["settings", "diff", str(path), *at]) == 1
        assert "the file: server.recipts: there is no such key" in capsys.readouterr().err

        process.send_signal(signal.SIGHUP)
        (line,) = logged(process, log, "the settings stay as they were")
        assert "server.recipts" in line
        write(path, "drain_s = 1")
        process.send_signal(signal.SIGHUP)
        (line,) = logged(process, log, "the settings were read again")
        assert line.endswith("server.receipts, server.drain_s")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/turnpike/healthz") as answer:
            assert answer.status == 200


@pytest.fixture
def hangups_end():
    """Under nohup they are ignored, and children inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups_end")
def test_without_a_file_a_hangup_ends_it(tmp_path):
    backend = f"http://127.0.0.1:{closed_port()}"
    settings = ("--backend", backend, "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
    with serving(tmp_path, *settings) as (process, _, port):
        assert main(["settings", "reload", "--control", f"http://127.0.0.1:{port}"]) == 1
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == -signal.SIGHUP
