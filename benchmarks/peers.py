"""The gateways under test, started as a user would, each alone on the same core.

The Rust routers come from PyPI, into an environment of their own; nginx is used if it is installed. `LEAN`
are the flags that cost a router least (`round_robin`, no log of requests); without flags it runs with its own
defaults (policy `cache_aware`, log level `info`, for both).
"""

import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.dialects import MODEL
from benchmarks.processes import ROOT, BenchmarkError, Pinning, guarded, install, on_cpus
from scripted_engine.ports import free_port

PACKAGES: Final = ("smg==1.13.0", "vllm-router==0.1.17")
"""Fixed, so that two runs compare; raise them to what a user would get today."""
LEAN: Final = {
    "smg": ("--policy", "round_robin", "--log-level", "warn"),
    "vllm-router": ("--policy", "round_robin", "--log-level", "warning"),
}
_ENVIRONMENT: Final = ROOT / ".cache/peers"
_READY_WITHIN_S: Final = 60.0

_NGINX_CONFIG: Final = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  client_body_temp_path {directory}/b; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f;
  uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream backend {{ server {backend}; keepalive 128; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""


class Gateway(msgspec.Struct, kw_only=True):
    """Something that requests are sent to, and what it runs as."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    control_port: int = 0
    """Turnpike's control plane."""


def install_rust_peers() -> None:
    install("peers", *PACKAGES, what=" and ".join(PACKAGES))


def has_nginx() -> bool:
    return _nginx() is not None


def nginx_version() -> str:
    found = _nginx()
    if found is None:
        return "not installed"
    return subprocess.run([found, "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]


def _nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def turnpike(
    backends: list[int],
    pinning: Pinning,
    directory: Path,
    *,
    name: str = "turnpike",
    tool: tuple[str, ...] = (),
    tree: Path = ROOT,
    is_relay: bool = False,
) -> Iterator[Gateway]:
    """All inference on, every record written to the information stream's file; settings are the defaults.

    `tool`: a command to run it under, such as a profiler; `tree`: the checkout that it runs from; `is_relay`:
    it infers and writes nothing.
    """
    port, control = free_port(), free_port()
    file_name = name.replace(" ", "-")
    stream, settings = directory / f"{file_name}.jsonl", directory / f"{file_name}.toml"
    stream.unlink(missing_ok=True)
    settings.write_text('[server]\nmode = "relay"\n')
    command = [*tool, sys.executable, "-m", "gateway", "serve",
               *([str(settings)] if is_relay else ["--stream", str(stream)]),
               "--listen", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}"]  # fmt: skip
    for backend in backends:
        command += ["--backend", f"http://127.0.0.1:{backend}"]
    with _running(name, command, port, pinning, directory, tree=tree) as process:
        yield Gateway(name=name, port=port, process=process, control_port=control)


@contextmanager
def rust_peer(
    package: str,
    backends: Sequence[str],
    pinning: Pinning,
    directory: Path,
    *,
    flags: Sequence[str] = (),
    model: str = MODEL,
) -> Iterator[Gateway]:
    """`package`: a key of `LEAN`; `backends`: URLs."""
    port, metrics = free_port(), free_port()
    launch = ["smg", "launch"] if package == "smg" else [package]
    command = [str(_ENVIRONMENT / "bin" / launch[0]), *launch[1:], "--host", "127.0.0.1", "--port", str(port),
               "--prometheus-port", str(metrics), "--worker-urls", *backends, *flags]  # fmt: skip
    with _running(package, command, port, pinning, directory, model) as process:
        yield Gateway(name=package, port=port, process=process)


def recognised_share(gateway: Gateway) -> float:
    """Of Turnpike's turns, those whose session was found by a tool call id that came back."""
    count = _counted(gateway, "turnpike_turns_total{")
    recognised = sum(number for line, number in count.items() if 'source="call-id"' in line)
    return recognised / max(1.0, sum(count.values()))


def waits(gateway: Gateway) -> float:
    """Of Turnpike's turns, how many it kept waiting."""
    return sum(_counted(gateway, "turnpike_waits_total{").values())


def _counted(gateway: Gateway, metric: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.control_port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line: float(line.rpartition(" ")[2]) for line in lines if line.startswith(metric)}


@contextmanager
def nginx(backend: int, pinning: Pinning, directory: Path) -> Iterator[Gateway]:
    """The limit: a relay in C that reads nothing. Buffering off in both directions."""
    binary = _nginx()
    assert binary is not None
    port = free_port()
    config = directory / "nginx.conf"
    config.write_text(_NGINX_CONFIG.format(directory=directory, port=port, backend=f"127.0.0.1:{backend}"))
    command = [binary, "-p", str(directory), "-c", str(config), "-e", "stderr"]
    with _running("nginx", command, port, pinning, directory) as process:
        yield Gateway(name="nginx", port=port, process=process)


@contextmanager
def _running(
    name: str,
    command: list[str],
    port: int,
    pinning: Pinning,
    directory: Path,
    model: str = MODEL,
    tree: Path = ROOT,
) -> Iterator[subprocess.Popen[bytes]]:
    """The process, once it answers a request; it ends with the block."""
    log = directory / f"{name.replace(' ', '-')}.log"
    # Pinned before it starts, so that a runtime which counts the cores counts one.
    with log.open("wb") as written, on_cpus(pinning.gateway):
        process = subprocess.Popen(command, cwd=tree, stdout=written, stderr=written, env=_environment(tree))
    try:
        _wait_until_ready(name, process, port, log, model)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(name: str, process: subprocess.Popen[bytes], port: int, log: Path, model: str) -> None:
    body = (
        b'{"model":"%s","messages":[{"role":"user","content":"hi"}],"stream":false,"max_tokens":1}'
        % model.encode()
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise BenchmarkError(f"{name} did not become ready: {' | '.join(lines) or 'it said nothing'}")


def _environment(tree: Path) -> dict[str, str]:
    """The caller's, without what would change a gateway's settings or send its traffic elsewhere."""
    proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    kept = {
        key: value
        for key, value in guarded().items()
        if not key.startswith("TURNPIKE_") and key.lower() not in proxies
    }
    return kept | {"PYTHONPATH": f"{tree}:{tree}/engine_ext"}
