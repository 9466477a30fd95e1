"""`turnpike settings`, and SIGHUP, against a gateway as a user starts it."""

import contextlib
import json
import signal
from pathlib import Path

import pytest

from gateway.__main__ import main
from scripted_engine.ports import free_port
from tests.cli.test_cli import Serving, ask

pytestmark = pytest.mark.slow

SETTINGS = """
[server]
listen = "127.0.0.1:0"
control = "127.0.0.1:0"
shutdown_delay_s = 0
{server}
[[pools]]
replicas = [{{ url = "http://127.0.0.1:{backend}" }}]
"""


def write(path: Path, server: str = "", backend: int = 9) -> None:
    path.write_text(SETTINGS.format(server=server, backend=backend))


def test_a_file_is_compared_read_again_and_refused(tmp_path, capsys):
    path = tmp_path / "turnpike.toml"
    write(path)
    with contextlib.closing(Serving(str(path))) as serving:
        at = ["--control", f"http://127.0.0.1:{serving.control_port}"]
        other = tmp_path / "other.toml"
        write(other, 'debug_headers = false\nstate_path = "/x"')
        assert main(["settings", "diff", str(other), *at]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "server.debug_headers: true → false",
            "server.state_path: not there → (not shown)  needs a restart",
        ]
        assert main(["settings", "diff", *at]) == 0
        assert capsys.readouterr().out == "nothing would change\n"

        write(path, "debug_headers = false")
        assert main(["settings", "reload", "--json", *at]) == 0
        assert [each["key"] for each in json.loads(capsys.readouterr().out)] == ["server.debug_headers"]

        write(path, "recipts = false")
        assert main(["settings", "reload", *at]) == 1
        assert f"{path}: server.recipts: there is no such key" in capsys.readouterr().err
        assert main(["settings", "diff", str(path), *at]) == 1
        assert "the file: server.recipts: there is no such key" in capsys.readouterr().err

        serving.process.send_signal(signal.SIGHUP)
        serving.read_log_until(rb"the settings stay as they were.*server\.recipts")
        write(path, "drain_s = 1")
        serving.process.send_signal(signal.SIGHUP)
        serving.read_log_until(rb"the settings were read again.*server\.debug_headers, server\.drain_s\n")
        assert b" 200 " in ask(serving.control_port, b"GET /turnpike/healthz HTTP/1.0\r\n\r\n")


@pytest.fixture
def hangups_end():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups_end")
def test_without_a_file_a_hangup_ends_it(tmp_path):
    with contextlib.closing(Serving("--backend", f"http://127.0.0.1:{free_port()}")) as serving:
        assert main(["settings", "reload", "--control", f"http://127.0.0.1:{serving.control_port}"]) == 1
        serving.process.send_signal(signal.SIGHUP)
        assert serving.process.wait(30) == -signal.SIGHUP
