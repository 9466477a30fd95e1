"""A test that hangs ends, with its name and every thread's stack.

pytest-timeout asks this plugin to keep the time. At a test's limit `SIGALRM` raises `Hung` in the main
thread: that test fails, the others still run. `Hung` is no `Exception`, nor pytest's own `Failed`, because
Hypothesis takes those for falsified examples and runs the test again.

Some hangs cannot be interrupted so: code that swallows every exception, or that never returns to the
interpreter. `timeout_grace` seconds later the whole process therefore ends, with status 1.
Collection, where pytest-timeout does not look, and the end of the run have this second limit too.
"""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any, Final

import pytest

_STATUS: Final = 1
_END_OF_RUN_S: Final = 60.0
"""For what is left when the last test is over: threads that the interpreter waits for."""
_PYTHON_MISSED_IT_S: Final = 2.0
"""How long after the watching thread should have ended the process the interpreter's C code does."""


class Hung(BaseException):
    """The test ran past its limit."""


class Watchdog:
    """Ends this process when what it runs has passed its last limit."""

    def __init__(self, stderr: int) -> None:
        """`stderr`: where the message goes; not pytest's capture of it."""
        self._stderr = stderr
        self._timer: threading.Timer | None = None

    def watch(self, name: str, limit_s: float) -> None:
        """From now on for so long; what was watched before is not any more."""
        self.rest()
        self._timer = threading.Timer(limit_s, self._end, (name, limit_s))
        self._timer.daemon = True
        self._timer.start()
        # A thread cannot run while C code holds the interpreter's lock. This one needs no lock.
        after_s = limit_s + _PYTHON_MISSED_IT_S
        faulthandler.dump_traceback_later(after_s, exit=True, file=self._stderr)

    def rest(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, name: str, limit_s: float) -> None:
        os.write(self._stderr, f"\n\n{name} hangs ({limit_s:g} s); this process ends.\n".encode())
        faulthandler.dump_traceback(self._stderr, all_threads=True)
        os._exit(_STATUS)


class Hangs:
    def __init__(self, config: pytest.Config) -> None:
        self._watchdog = Watchdog(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2))
        self._grace_s = float(config.getini("timeout_grace"))
        self._collection_s = float(config.getini("timeout_of_collection"))
        self._is_worker = hasattr(config, "workerinput")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        self._watchdog.watch(f"collecting {collector.nodeid or 'the tests'}", self._collection_s)
        try:
            return (yield)
        finally:
            self._watchdog.rest()

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """The limit covers a test's fixtures, so also those of the session that it is first to use."""

        def ring(number: int, frame: FrameType | None) -> None:
            raise Hung(f"{item.nodeid} ran for more than {settings.timeout:g} s")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        self._watchdog.watch(item.nodeid, settings.timeout + self._grace_s)
        return True

    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """A failure cancels pytest-timeout's timer; what is torn down after it may hang too."""
        try:
            return (yield)
        finally:
            self._watchdog.rest()

    def pytest_enter_pdb(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._watchdog.rest()

    def pytest_unconfigure(self) -> None:
        if not self._is_worker:  # xdist's workers wait for one another, and end with the controller
            self._watchdog.watch("the end of the run", _END_OF_RUN_S)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "timeout_grace",
        "seconds after a test's limit at which a test that goes on ends the run",
        default="30",
    )
    parser.addini(
        "timeout_of_collection",
        "seconds after which the run ends if a file is still being collected",
        default="120",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Hangs(config))
