"""Processes and cores: where each runs, and what it has used."""

import os
import platform
import resource
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from scripted_engine.guardian import guard

ROOT: Final = Path(__file__).resolve().parents[1]
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_OF_SCHEDULER: Final = 2
"""Which of the clocks of a process: what the scheduler counts (clock_getcpuclockid(3))."""


class BenchmarkError(Exception):
    """Something that is needed is missing; the message says what, in one line."""


class Pinning(msgspec.Struct, frozen=True, kw_only=True):
    """Which cores the gateway under test has, and which everything else."""

    gateway: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of_this_machine(cls) -> "Pinning":
        """One core for the gateway, the rest for the others; with a single core, no separation."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(gateway=frozenset(cores[:1]), others=frozenset(cores[1:] or cores))

    def lifted(self) -> "Pinning":
        """The gateway may run anywhere."""
        return Pinning(gateway=self.gateway | self.others, others=self.others)

    def __str__(self) -> str:
        others = ", ".join(map(str, sorted(self.others)))
        return f"gateway on core {min(self.gateway)}, load and upstream on core {others}"


@contextmanager
def on_cpus(cores: frozenset[int]) -> Iterator[None]:
    """Processes started in this block may run there only; so does this one meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def guarded() -> dict[str, str]:
    """The environment for what is started: it ends when this process ends, however that comes about."""
    guard()
    return dict(os.environ)


def allow_many_connections(count: int = 65536) -> None:
    """For every process started from here. Who may raise the limit of this machine does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < hard < count:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
            return
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count) if hard > 0 else count, hard))


@contextmanager
def serving(module: str, *arguments: object, cores: frozenset[int], niceness: int = 0) -> Iterator[str]:
    """A module in a process of its own, until the end of the block; yields the first line that it prints."""
    command = ["nice", "-n", str(niceness), sys.executable, "-m", module, *map(str, arguments)]
    with on_cpus(cores):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=guarded())
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line:
            raise BenchmarkError(f"{module} did not start")
        yield line
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def upstream(
    pinning: Pinning, *, engines: int = 1, events: int = 64, interval_ms: float = 0
) -> Iterator[list[int]]:
    """The fast upstream; yields the ports of its engines."""
    options = ("--engines", engines, "--events", events, "--interval-ms", interval_ms)
    with serving("benchmarks.fast_upstream", *options, cores=pinning.others) as ports:
        yield [int(port) for port in ports.split()]


def cpu_seconds(pid: int) -> float:
    """Used by a process, all its threads, in user and in kernel mode; to the nanosecond."""
    return time.clock_gettime((~pid << 3) | _OF_SCHEDULER)


def used_so_far(pid: int | None, core: int) -> tuple[float, float, float]:
    """The time, the seconds that the process has run, and those that the core has been busy."""
    busy = 0.0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            busy = (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
    return time.perf_counter(), 0.0 if pid is None else cpu_seconds(pid), busy


def stolen_ms() -> float:
    """That a hypervisor gave this machine's processors to others, since it started; in ticks of the kernel. A
    program that waited for one was not late by its own doing."""
    with open("/proc/stat", "rb", buffering=0) as told:
        return int(told.read(256).split(maxsplit=9)[8]) * 1e3 / _TICKS_PER_S


def waited_ms(pid: int) -> float:
    """That the process's first thread was ready to run while its core ran another one, since it started."""
    with open(f"/proc/{pid}/schedstat", "rb", buffering=0) as told:
        return int(told.read(128).split()[1]) / 1e6


class Strangers:
    """How much of this machine went to processes that this one did not start."""

    def __init__(self) -> None:
        self._began = self._so_far()

    @property
    def share(self) -> float:
        """Of all cores, since this was made. What ended meanwhile, and none of ours waited for it, counts as
        a stranger's."""
        wall_s, busy_s, own_s = (now - then for now, then in zip(self._so_far(), self._began, strict=True))
        return max(0.0, busy_s - own_s) / (wall_s * len(os.sched_getaffinity(0)))

    @staticmethod
    def _so_far() -> tuple[float, float, float]:
        parents: dict[int, int] = {}
        used: dict[int, float] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it ended
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                parents[pid] = int(fields[1])
                used[pid] = sum(map(int, fields[11:15])) / _TICKS_PER_S  # and its children that ended
        own = {os.getpid()}
        while more := {pid for pid, parent in parents.items() if parent in own} - own:
            own |= more
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            int(ticks) for ticks in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
        )
        busy_s = (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
        return time.perf_counter(), busy_s, sum(used[pid] for pid in own if pid in used)


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchmarkError(f"process {pid} is gone")


def machine() -> str:
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    return f"{len(names)} × {names[0] if names else platform.machine()}, Linux {platform.release()}"


def interpreter() -> str:
    """Its version, and whether it was built with what makes it faster by a tenth or more."""
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return f"Python {platform.python_version()} ({'optimised' if is_optimised else 'not an optimised build'})"


def revision() -> str:
    """Of this checkout, if it is one."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip() or "no git"


def install(folder: str, *arguments: str, what: str, isolated: bool = True) -> Path:
    """With pip, once, into an environment of its own below `.cache`, or without one into a folder there. Does
    nothing when it is there. Raises BenchmarkError if that is impossible; `what` is then missing."""
    at = ROOT / ".cache" / folder
    stamp, wanted = at / "installed", "\n".join(arguments)
    if stamp.exists() and stamp.read_text() == wanted:
        return at
    print(f"installing {what} from PyPI into {at.relative_to(ROOT)}", file=sys.stderr, flush=True)
    python, target = (str(at / "bin/python"), []) if isolated else (sys.executable, ["--target", str(at)])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", *target]
    commands = [[sys.executable, "-m", "venv", "--clear", str(at)]] if isolated else []
    for command in (*commands, [*pip, *arguments]):
        done = subprocess.run(command, capture_output=True, text=True, env=guarded())
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BenchmarkError(f"{what} cannot be installed: {last}")
    stamp.write_text(wanted)
    return at
