"""The load of a host, by a probe beside the tools.

Source: MARS (§4.1) has no probe on the host and infers; Linux: `/proc/stat`, pressure stall information,
cgroup v2 (`cpu.max`, `cpu.stat`, `cpu.pressure`).

Deviations: Linux does not count the runnable processes of a cgroup with a limit. Its CPU use stands for them,
times one plus its share of time with a waiting process: so at most twice the use.

Invariants: unreadable files are no evidence; no reading raises.
"""

import re
from typing import Final

import msgspec

from gateway.domain.engine import HostSignals

_SOME: Final = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The files' texts, empty for missing ones."""

    at_s: float
    stat: str
    """`/proc/stat`"""
    cpu_max: str = ""
    cpu_stat: str = ""
    pressure: str = ""
    """`cpu.pressure` of the cgroup."""


class HostMeter:
    """From several samples a second to a report about once a second."""

    def __init__(self, *, own: int = 1) -> None:
        """`own`: runnable processes of the probe."""
        self._own = own
        self._runnable: list[int] = []
        self._last: Sample | None = None
        self._reported: Sample | None = None

    def look(self, sample: Sample) -> None:
        running = runnable(sample.stat)
        if running is not None and len(self._runnable) < 1000:
            self._runnable.append(max(0, running - self._own))
        self._last = sample
        self._reported = self._reported or sample

    def report(self) -> HostSignals | None:
        """Since the last report; None without samples."""
        last, before = self._last, self._reported
        seen, self._runnable = self._runnable, []
        if last is None or before is None:
            return None
        self._reported = last
        limit, used = cores_allowed(last.cpu_max), _used(before, last)
        if limit is not None and used is not None:
            return HostSignals(cores=limit, runnable=used * (1.0 + waiting_share(last.pressure)))
        cores = len(re.findall(r"^cpu\d+ ", last.stat, re.MULTILINE))
        if not cores or not seen:
            return None
        return HostSignals(cores=float(cores), runnable=sum(seen) / len(seen))


def runnable(stat: str) -> int | None:
    found = re.search(r"^procs_running (\d+)", stat, re.MULTILINE)
    return int(found[1]) if found else None


def cores_allowed(cpu_max: str) -> float | None:
    """By the cgroup; None for no limit."""
    found = re.match(r"(\d+) (\d+)", cpu_max)
    return int(found[1]) / int(found[2]) if found and int(found[1]) and int(found[2]) else None


def waiting_share(pressure: str) -> float:
    found = _SOME.search(pressure)
    return min(1.0, float(found[1]) / 100.0) if found else 0.0


def _used(before: Sample, after: Sample) -> float | None:
    first, last = (re.search(r"^usage_usec (\d+)", each.cpu_stat, re.MULTILINE) for each in (before, after))
    passed_s = after.at_s - before.at_s
    if first is None or last is None or passed_s <= 0:
        return None
    return max(0, int(last[1]) - int(first[1])) / 1e6 / passed_s
