"""The gateway as `turnpike serve` runs it, which also reports on itself: the soak's gateway process.

    python -m benchmarks.soak.gateway SETTINGS REPORT

appends a line of JSON to REPORT every second: resident memory, descriptors, tasks, how long the longest
callback took, and by how much each wake-up of a timer that is due every 10 ms was late, without the time that
its thread was ready and had no processor, or a hypervisor had it (Linux tells both). On SIGUSR1 it also
reports the size of every container that the gateway leads to, by the class and attribute that hold it. A
forked copy walks the containers, so that the gateway goes on meanwhile; lateness is not reported until the
copy is done, since the two share memory and a core.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.processes import resident_mib, stolen_ms
from gateway.config.load import load_config
from gateway.core import forecasts
from gateway.identity.transcript import TranscriptReader
from gateway.requests import facts
from gateway.server.app import Gateway
from gateway.server.runtime.memory import set_up_memory
from gateway.workflow import traces

_PERIOD_S: Final = 0.01
_LOOK_S: Final = 0.005
_RUNNER: Final = asyncio.runners.__file__
"""Whose frame lies below every callback's."""
_REPORT_PERIOD_S: Final = 1.0
_KEPT: Final = 256
"""In place of bounds that are no settings: met within the first tenth of the time, also of a short run."""
_CONTAINERS: Final = (dict, set, frozenset, list, tuple, deque)
_GROWING: Final = (dict, set, list, deque, bytearray)


def _parts(owner: object) -> Iterator[tuple[str, object]]:
    """What an object holds, with the name of the attribute where there is one."""
    if isinstance(owner, dict):
        for key, value in owner.items():
            yield "[]", key
            yield "[]", value
    elif isinstance(owner, _CONTAINERS):
        for value in owner:
            yield "[]", value
    elif type(owner).__module__.startswith(("gateway.", "turnpike_vllm.")):
        names = {*getattr(owner, "__dict__", ())}
        if isinstance(owner, msgspec.Struct):
            names.update(owner.__struct_fields__)
        for kind in type(owner).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            names.update((slots,) if isinstance(slots, str) else slots)
        for name in names:
            if (value := getattr(owner, name, None)) is not None:
                yield f".{name}", value
    else:
        for value in gc.get_referents(owner):
            yield "", value


def container_sizes(root: object) -> dict[str, int]:
    """Entries in all growing containers that `root` leads to, by holder: `Sessions._live` → 12."""
    sizes: Counter[str] = Counter()
    seen = {id(root)}
    found: list[tuple[str, object]] = [(type(root).__name__, root)]
    while found:
        path, owner = found.pop()
        for name, value in _parts(owner):
            if id(value) in seen or isinstance(
                value, type | ModuleType | FunctionType | str | bytes | int | float
            ):
                continue
            seen.add(id(value))
            if isinstance(value, (*_CONTAINERS, bytearray)):
                where = f"{path}{name}"
                if isinstance(value, _GROWING):
                    sizes[where] += len(value)
            else:
                where = type(value).__qualname__
            found.append((where, value))
    return dict(sizes)


class Reporter:
    def __init__(self, gateway: Gateway, path: Path) -> None:
        self._gateway = gateway
        self._file = path.open("a", buffering=1)
        self._late_ms: list[float] = []
        self._callback_ms = 0.0
        self._walker: int | None = None
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def watch(self, loop_thread: int) -> None:
        """On a thread of its own: for how long the loop is in one callback. A crowd that comes at once makes
        it late by the sum of what each takes; one that holds up all others is a fault."""
        frame, since_s = None, 0.0
        while True:
            time.sleep(_LOOK_S)
            now, found = time.monotonic(), sys._current_frames()[loop_thread]  # noqa: SLF001 - there is no other
            while (outer := found.f_back) is not None and outer.f_code.co_filename != _RUNNER:
                found = outer
            if found is not frame or outer is None:
                frame, since_s = (None if outer is None else found), now
            self._callback_ms = max(self._callback_ms, (now - since_s) * 1e3)

    async def run(self) -> None:
        threading.Thread(target=self.watch, args=(threading.get_ident(),), daemon=True).start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._walk)
        reported_s = time.monotonic()
        while True:
            due_s, without_ms = time.monotonic() + _PERIOD_S, self._without_processor_ms()
            await asyncio.sleep(_PERIOD_S)
            now, without_ms = time.monotonic(), self._without_processor_ms() - without_ms
            if self._walker is not None:
                self._walker = None if _has_ended(self._walker) else self._walker
            else:
                self._late_ms.append(max(0.0, (now - due_s) * 1e3 - without_ms))
            if now - reported_s >= _REPORT_PERIOD_S:
                reported_s = now
                self._report()

    def _without_processor_ms(self) -> float:
        """That the thread was ready and had no processor, or that a hypervisor took one away: not its own
        doing."""
        ready_ms = int(os.pread(self._schedule, 64, 0).split()[1]) / 1e6
        return ready_ms + stolen_ms()

    def _report(self) -> None:
        late_ms, self._late_ms = self._late_ms, []
        told = {
            "at_s": time.time(),
            "rss_mib": resident_mib(os.getpid()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "tasks": len(asyncio.all_tasks()),
            "late_ms": [round(each, 2) for each in late_ms],
            "callback_ms": round(self._callback_ms, 2),
        }
        self._callback_ms = 0.0
        self._file.write(json.dumps(told) + "\n")

    def _walk(self) -> None:
        if self._walker is not None:
            return
        self._walker = os.fork()
        if self._walker:
            return
        try:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            sizes = container_sizes(self._gateway)
            told = {"at_s": time.time(), "sizes": sizes, "objects": len(gc.get_objects())}
            self._file.write(json.dumps(told) + "\n")
        except BaseException:  # noqa: BLE001 - the copy must not go on as a gateway
            traceback.print_exc()
        finally:
            os._exit(0)


def _has_ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] == child


async def _main(settings: str, report: str) -> None:
    gateway = Gateway(load_config(settings, os.environ, {}), os.environ)
    reporting = asyncio.get_running_loop().create_task(Reporter(gateway, Path(report)).run())
    try:
        await gateway.run()
    finally:
        reporting.cancel()


def _remember_little() -> None:
    bounds = (
        (forecasts, "REMEMBERED", _KEPT),
        (traces, "_MAX_ANSWERS", _KEPT),
        (facts, "TRANSCRIPTS", TranscriptReader(_KEPT)),
    )
    for module, name, value in bounds:
        assert hasattr(module, name), name
        setattr(module, name, value)


def main(arguments: list[str]) -> Any:
    logging.basicConfig(level=logging.INFO, format="turnpike: %(message)s", stream=sys.stderr)
    set_up_memory()
    _remember_little()
    uvloop.run(_main(*arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
