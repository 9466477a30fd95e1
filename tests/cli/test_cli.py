"""The `turnpike` command, as a process."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from gateway import __main__ as cli
from gateway.config.load import load_config
from gateway.server.auth.client_keys import hash_key
from gateway.server.http.listening import dashboard_url, listening_on

PATIENCE_S = 20.0


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TURNPIKE_")}


class SlowBackend:
    """One that answers a health check at once, and else sends a stream of which it holds back the end."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while head := connection.recv(65536):
                if head.startswith(b"GET "):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                self.go_on.wait(PATIENCE_S)
                connection.sendall(b"4\r\nlast\r\n0\r\n\r\n")

    def close(self) -> None:
        self.go_on.set()
        self._server.close()


class Serving:
    """A `turnpike serve` process."""

    def __init__(self, *arguments: str, shutdown_delay_s: int = 0) -> None:
        ports = ("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", *ports, *arguments],
            stderr=subprocess.PIPE,
            env=_clean_environment() | {"TURNPIKE_SERVER__SHUTDOWN_DELAY_S": str(shutdown_delay_s)},
        )
        self.log = b""
        found = self.read_log_until(rb"listening on http://127.0.0.1:(\d+), control on port (\d+)")
        self.port, self.control_port = int(found[1]), int(found[2])

    def read_log_until(self, pattern: bytes) -> re.Match[bytes]:
        assert self.process.stderr is not None
        descriptor = self.process.stderr.fileno()
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.log)) is None:
            readable, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
            assert readable, self.log
            data = os.read(descriptor, 65536)
            assert data, self.log
            self.log += data
        return found

    def until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while b" 200 " not in ask(self.control_port, b"GET /turnpike/readyz HTTP/1.0\r\n\r\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(request)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@pytest.fixture
def streaming():
    """A gateway with a stream running through it, and the connection on which the stream comes."""
    backend = SlowBackend()
    serving = Serving("--backend", backend.url)
    serving.until_ready()
    client = socket.create_connection(("127.0.0.1", serving.port), PATIENCE_S)
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\n\r\n{}")
    data = b""
    while b"first" not in data:
        data += client.recv(65536)
    yield serving, backend, client
    client.close()
    serving.close()
    backend.close()


@pytest.mark.slow
def test_sigterm_lets_a_running_stream_end(streaming):
    serving, backend, client = streaming
    idle = socket.create_connection(("127.0.0.1", serving.port), PATIENCE_S)
    serving.process.send_signal(signal.SIGTERM)
    serving.read_log_until(b"draining")
    assert idle.recv(1) == b""  # an idle connection is closed
    with pytest.raises(ConnectionRefusedError):
        ask(serving.port, b"GET / HTTP/1.0\r\n\r\n")
    assert serving.process.poll() is None
    assert b" 503 " in ask(serving.control_port, b"GET /turnpike/readyz HTTP/1.0\r\n\r\n")
    backend.go_on.set()
    assert read_all(client).endswith(b"last\r\n0\r\n\r\n")
    assert serving.process.wait(PATIENCE_S) == 0
    idle.close()


@pytest.mark.slow
def test_what_cannot_be_parsed_at_the_control_port_fills_no_log():
    serving = Serving("--backend", "http://127.0.0.1:1")
    try:
        for request in (b"GET /\x01 HTTP/1.1\r\n\r\n", b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 10000)):
            assert b" 400 " in ask(serving.control_port, request)
        serving.process.send_signal(signal.SIGTERM)
        serving.read_log_until(b"draining")
        assert b"Traceback" not in serving.log
    finally:
        serving.close()


@pytest.mark.slow
def test_sigterm_leaves_time_to_be_taken_out_of_rotation():
    backend = SlowBackend()
    backend.go_on.set()
    serving = Serving("--backend", backend.url, shutdown_delay_s=3600)
    try:
        serving.until_ready()
        serving.process.send_signal(signal.SIGTERM)
        serving.read_log_until(b"not ready any more")
        assert b" 503 " in ask(serving.control_port, b"GET /turnpike/readyz HTTP/1.0\r\n\r\n")
        request = b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"
        assert b" 200 " in ask(serving.port, request)  # whoever has not noticed yet is served
        serving.process.send_signal(signal.SIGTERM)
        serving.read_log_until(b"draining")
        assert serving.process.wait(PATIENCE_S) == 0
    finally:
        serving.close()
        backend.close()


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(streaming):
    serving, _, client = streaming
    serving.process.send_signal(signal.SIGINT)
    serving.read_log_until(b"draining")
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(PATIENCE_S) == 0
    with pytest.raises(ConnectionResetError):
        read_all(client)


@pytest.mark.parametrize("flag", ["--listen", "--control"])
def test_a_port_that_is_taken(turnpike, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = "--control" if flag == "--listen" else "--listen"
        result = turnpike("serve", "--backend", "http://127.0.0.1:9", flag, address, free, "127.0.0.1:0")
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("turnpike: ") and "address already in use" in result.stderr.lower()
    assert f"server.{flag[2:]} ({flag}): {address}: " in result.stderr, "which setting it is"


@pytest.mark.slow
def test_a_process_ends_with_the_status_of_its_command(tmp_path):
    command = [sys.executable, "-m", "gateway", "check-config", str(tmp_path / "none.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1 and ended.stderr.startswith("turnpike: ")


def test_a_fault_of_our_own_is_told_with_its_trace(turnpike, monkeypatch):
    async def fails(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("gateway.server.app.Gateway.run", fails)
    with pytest.raises(RuntimeError) as failed:
        turnpike("serve", "--backend", "http://127.0.0.1:9")
    assert str(failed.value.__cause__) == "a bug"


def test_check_config_says_what_it_found(turnpike, tmp_path):
    path = tmp_path / "turnpike.toml"
    path.write_text(
        f'[[pools]]\nname = "p"\n[[pools.replicas]]\nurl = "http://a:1"\n[[pools.replicas]]\nurl = "http://b:1"\n'
        f'[[tenants]]\nname = "t"\nkey_hashes = ["{hash_key("k")}"]\n[server]\nlisten = "0.0.0.0:80"\n'
    )
    result = turnpike("check-config", str(path))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (
        "ok: 2 replica(s) in 1 pool(s), 1 tenant(s), listening on 0.0.0.0:80, control on 127.0.0.1:8081\n"
    )


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("", [], "no backend is given"),
        ("[[pools]\n", [], "{path}: "),
        ("", ["--backend", "a:1"], "].url: "),
        ("", ["--backend", "http://a:1", "--listen", "0.0.0.0:80"], "requires no key"),
        ("", ["--backend", "http://a:1", "--control", "0.0.0.0:80"], "requires no key"),
        ("", ["--backend", "http://a:1", "--backend", "http://a:1"], "is there twice"),
    ],
)
def test_check_config_says_what_is_wrong(turnpike, tmp_path, text, flags, said):
    path = tmp_path / "turnpike.toml"
    path.write_text(text)
    result = turnpike("check-config", str(path), *flags)
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("turnpike: ")
    assert said.format(path=path) in result.stderr


def test_check_config_looks_at_what_the_settings_point_to(turnpike, tmp_path):
    path = tmp_path / "turnpike.toml"
    pools = '[[pools]]\n[[pools.replicas]]\nurl = "http://user:pw@a:1"\n'
    for text, said in (
        (pools, "scheme, host, port and path"),
        (pools.replace("user:pw@", "") + 'api_key_env = "NOT_THERE"\n', "NOT_THERE"),
        (pools.replace("user:pw@", "") + 'api_key_file = "/none"\n', "/none"),
        (pools.replace("//user:pw@a:1", "//localhost:8080"), "is server.listen"),
        (pools.replace("user:pw@a:1", "a:99999"), "a port is a number up to 65535"),
        (
            f'{pools.replace("http://user:pw@", "https://")}[upstream]\nca_file = "/none"\n',
            "upstream.ca_file: No",
        ),
    ):
        path.write_text(text)
        result = turnpike("check-config", str(path))
        assert result.returncode == 1 and said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_the_environment_and_the_flags_overrule_the_file(turnpike, tmp_path):
    path = tmp_path / "turnpike.toml"
    path.write_text('[server]\nlisten = "127.0.0.1:1"\ncontrol = "127.0.0.1:1"\n')
    result = turnpike(
        "check-config", "--config", str(path), "--backend", "http://a:1", "--control", "127.0.0.1:3",
        TURNPIKE_SERVER__LISTEN="127.0.0.1:2", TURNPIKE_SERVER__CONTROL="127.0.0.1:2",
    )  # fmt: skip
    assert "listening on 127.0.0.1:2, control on 127.0.0.1:3" in result.stdout


def test_hash_key(turnpike):
    assert turnpike("hash-key", stdin="tp-secret\n").stdout == hash_key("tp-secret") + "\n"
    made = turnpike("hash-key", "--generate").stdout.splitlines()
    key, hashed = (line.split()[1] for line in made)
    assert hash_key(key) == hashed and key.startswith("tp-")
    empty = turnpike("hash-key", stdin="\n")
    assert empty.returncode == 1 and empty.stderr == "turnpike: the key is empty\n"


@pytest.mark.slow
def test_the_stream_flag_writes_the_stream(tmp_path):
    backend = SlowBackend()
    backend.go_on.set()
    stream = tmp_path / "stream.jsonl"
    serving = Serving("--backend", backend.url, "--stream", str(stream))
    try:
        serving.until_ready()
        ask(serving.port, b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(PATIENCE_S) == 0
    finally:
        serving.close()
        backend.close()
    types = [json.loads(line)["type"] for line in stream.read_text().splitlines()]
    assert {"replica", "turn_arrive", "gpu_submit", "gpu_end"} <= set(types), types


def test_a_sidecar_serves_the_engine_beside_it(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    sidecar = cli._load(cli._parser().parse_args(["serve", "--sidecar"])).pools[0].replicas
    assert [(each.url, each.api_key_env) for each in sidecar] == [("http://127.0.0.1:8000", None)]
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with_key = cli._load(cli._parser().parse_args(["serve", "--sidecar"])).pools[0].replicas
    assert [each.api_key_env for each in with_key] == ["VLLM_API_KEY"]
    named = cli._load(cli._parser().parse_args(["serve", "--sidecar", "--backend", "http://b"]))
    assert [each.url for each in named.pools[0].replicas] == ["http://b"], "what is named goes before"


def test_it_says_where_the_dashboard_is(streaming):
    serving, _, _ = streaming
    at = serving.read_log_until(rb"the dashboard is at (http://127.0.0.1:(\d+)/turnpike/)\n")
    assert int(at[2]) == serving.control_port


def test_who_reads_no_further_is_told_nothing():
    """`turnpike … | head`: what reads is gone before all is written."""
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "gateway", "completion", "bash"]
    done = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("listen", "at", "dashboard"),
    [
        ("[::1]:9", "http://[::1]:1,", "http://[::1]:2/turnpike/"),
        ("[::]:9", "http://[::]:1,", "http://[::1]:2/turnpike/"),
        ("0.0.0.0:9", "http://0.0.0.0:1,", "http://127.0.0.1:2/turnpike/"),
        ("gw.local:9", "http://gw.local:1,", "http://gw.local:2/turnpike/"),
    ],
)
def test_addresses_that_it_prints_can_be_used(listen, at, dashboard):
    server = {"listen": listen, "allow_public_without_keys": True}
    config = load_config(None, {}, {"pools": [{"replicas": [{"url": "http://b"}]}], "server": server})
    assert at in listening_on(config, 1, 2) and dashboard_url(listen, 2) == dashboard


def test_every_example_of_the_help_is_a_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = capsys.readouterr().out
    examples = re.findall(r"^  turnpike (\w+)", told, re.MULTILINE)
    assert len(examples) == 6 and all(f"    {each} " in told for each in examples)
