"""A gateway as a user starts it, in front of given servers."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.processes import ROOT, BenchmarkError, guarded, on_cpus

_READY_WITHIN_S = 60.0
Settings = dict[str, dict[str, Any]]
"""By section."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    control: str
    """The URL of its control plane."""
    process: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def control_port(self) -> int:
        return int(self.control.rpartition(":")[2])


@contextmanager
def running(
    backends: Sequence[str],
    directory: Path,
    settings: str = "",
    *,
    server: str = "",
    pool: str | None = None,
    has_probe: bool = False,
    tree: Path = ROOT,
    cores: frozenset[int] | None = None,
    program: Sequence[str] = ("gateway", "serve"),
    arguments: Sequence[str] = (),
) -> Iterator[Running]:
    """Ready. `settings`: more TOML; `directory` is for files, and is made.

    `server`: more of that section; `pool`: in TOML, if it is more than the backends; `has_probe`: a probe
    reports how busy this machine is; `tree`: the checkout; `cores`: where it may run; `program`: a module,
    and `arguments` behind the settings.
    """
    directory.mkdir(parents=True)
    if pool is None:
        replicas = ", ".join(f'{{ url = "{url}" }}' for url in backends)
        pool = f"[[pools]]\nreplicas = [{replicas}]\n"
    file, log = directory / "turnpike.toml", directory / "log"
    file.write_text(f'[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n{server}{pool}{settings}')
    with ExitStack() as stack:
        with on_cpus(cores or frozenset(os.sched_getaffinity(0))):
            process = stack.enter_context(_turnpike(log, tree, *program, str(file), *arguments))
        url, control = _urls_when_ready(process, log)
        if has_probe:
            stack.enter_context(_turnpike(directory / "probe.log", tree, "gateway", "probe", control))
        yield Running(url=url, control=control, process=process)


@contextmanager
def gateway(backends: Sequence[str], directory: Path, settings: str = "", **how: Any) -> Iterator[str]:
    """Its URL. `how`: as of `running`."""
    with running(backends, directory, settings, **how) as found:
        yield found.url


def as_toml(settings: Settings) -> str:
    return "".join(
        f"[{section}]\n"
        + "".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in keys.items())
        for section, keys in settings.items()
    )


@contextmanager
def gateway_process(
    backends: Sequence[str], directory: Path, settings: str = "", **how: Any
) -> Iterator[tuple[str, int]]:
    """Its URL and its process."""
    with running(backends, directory, settings, **how) as found:
        yield found.url, found.pid


@contextmanager
def _turnpike(log: Path, tree: Path, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=tree,  # where Python looks for the package first
            stderr=written,
            env=guarded(),
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _urls_when_ready(process: "subprocess.Popen[bytes]", log: Path) -> tuple[str, str]:
    """Of the gateway, and of its control plane."""
    until = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        for line in log.read_text().splitlines():
            _, found, where = line.partition("listening on ")
            port, control = where.partition(",")[0].rpartition(":")[2], where.rpartition(" ")[2]
            if found and _is_ready(control):
                return f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}"
        time.sleep(0.05)
    raise BenchmarkError(f"the gateway did not become ready: {log.read_text()}")


def _is_ready(control_port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{control_port}/turnpike/readyz", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except urllib.error.URLError:
        return False
