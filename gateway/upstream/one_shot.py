"""Coroutines without tasks: one that waits goes on within the very call that brings what it waits for.

A task of asyncio's takes a turn of the event loop for every step, which costs a small request several
times what its step does. So a handler waits for *moments*, and is *run* by hand.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class OneShot:
    """Comes once, or fails once; later results are ignored. One coroutine may await it."""

    has_come = False
    resume: Callable[[], None] | None = None
    """Set by whoever runs the coroutine that waits."""
    _error: BaseException | None = None

    def set(self) -> None:
        """Whoever waits goes on now, before this returns: to be called last, with all books in order."""
        if not self.has_come:
            self.has_come = True
            resume, self.resume = self.resume, None  # who waits holds this, and would keep it alive
            if resume is not None:
                resume()

    def fail(self, error: BaseException) -> None:
        if not self.has_come:
            self._error = error
            self.set()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.has_come:
            yield self
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame


async def in_task(work: Coroutine[Any, Any, T]) -> T:
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def complete() -> None:
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - handed on
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

    run = Run(complete(), lambda: None)
    run.advance()
    try:
        return await done
    finally:
        if not done.done() or done.cancelled():
            run.cancel()


class Run:
    """Runs a coroutine that awaits moments, or futures of asyncio's. It may use nothing that needs a task."""

    __slots__ = ("_awaited", "_coroutine", "_on_end")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_end: Callable[[], None]) -> None:
        """`on_end` is called once, when the coroutine has ended in whatever way."""
        self._coroutine = coroutine
        self._on_end = on_end
        self._awaited: Any = None

    def advance(self) -> None:
        """Starts it, and later takes it from one wait to the next. Raises what it raises."""
        try:
            awaited = self._awaited = self._coroutine.send(None)
        except BaseException as end:
            self._on_end()
            if not isinstance(end, StopIteration):
                raise
        else:
            if type(awaited) is OneShot:  # as mostly
                awaited.resume = self.advance
            else:
                self._wait_for(awaited)

    def cancel(self) -> None:
        """Raises `CancelledError` where it waits."""
        if isinstance(self._awaited, OneShot):
            self._awaited.resume = None
        self._awaited = None
        try:
            awaited = self._awaited = self._coroutine.throw(asyncio.CancelledError())
        except BaseException as end:
            self._on_end()
            if not isinstance(end, StopIteration | asyncio.CancelledError):
                raise
        else:
            self._wait_for(awaited)

    def _wait_for(self, awaited: Any) -> None:
        if type(awaited) is OneShot:
            awaited.resume = self.advance
        else:
            awaited._asyncio_future_blocking = False  # noqa: SLF001 - as a task does it
            awaited.add_done_callback(self._future_done)

    def _future_done(self, future: "asyncio.Future[Any]") -> None:
        if self._awaited is future:  # else it was cancelled meanwhile
            self.advance()
