"""Background tasks: the one place that starts and supervises them.

A bare `asyncio.create_task` may be collected while it runs, and hides its exception until then. A loop that
must not end runs under `supervise`: if it raises, it is started again, at once and then less and less often.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Makes the coroutine of a loop; called again after each failure.
Work = Callable[[], Coroutine[Any, Any, None]]

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
# A loop that has run for so long since its last failure counts as well again.
CALM_S: Final = 10.0


def pause_s(failures: int) -> float:
    """Between a loop's failure and its restart; `failures` in a row, at least one."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))


class _Failure(NamedTuple):
    in_a_row: int
    well_at: float
    """When it counts as well again, unless it fails before that; time of the event loop."""


class TaskGroup:
    """Holds tasks while they run, logs what they raise, and ends them all on `cancel`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        # By the loop's name; those that never failed are there with 0.
        self.restarts: Counter[str] = Counter()
        self._failures: dict[str, _Failure] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def supervise(self, name: str, work: Work, *, of: str = "") -> asyncio.Task[None]:
        """Runs a loop until it returns or is cancelled, and again whenever it raises.

        `name` becomes a metric's label, so there are few; `of` distinguishes loops of one name.
        """
        self.restarts[name] += 0
        return self.spawn(self._keep_running(name, work, f"{name} of {of}" if of else name))

    def failing(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        return sorted(name for name, failure in self._failures.items() if now < failure.well_at)

    def cancel_soon(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def cancel(self) -> None:
        self.cancel_soon()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_running(self, name: str, work: Work, full_name: str) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while True:
                try:
                    await work()
                    return
                except Exception as error:  # noqa: BLE001 - whatever it is, the loop has to go on
                    before = self._failures.get(full_name)
                    is_first = before is None or clock() >= before.well_at
                    in_a_row = 1 if before is None or is_first else before.in_a_row + 1
                    wait_s = pause_s(in_a_row)
                    self._failures[full_name] = _Failure(in_a_row, clock() + wait_s + CALM_S)
                    self.restarts[name] += 1
                    if is_first:  # the same again and again would fill the log
                        _log.error("%s failed and is started again", full_name, exc_info=error)
                    await asyncio.sleep(wait_s)
        finally:
            self._failures.pop(full_name, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)


def check_each(
    what: str, items: Iterable[T], check: Callable[[T], None], cut: Callable[[T], None] = lambda _: None
) -> None:
    """Checks every item, whatever the check of another one raises; `cut` ends an item whose check raises."""
    for item in tuple(items):
        try:
            check(item)
        except Exception:  # noqa: BLE001 - a bug of ours costs one item, not the others' timeouts
            _log.exception("the check of a %s failed", what)
            with contextlib.suppress(Exception):
                cut(item)
