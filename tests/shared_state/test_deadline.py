"""The deadline of a call is for the store, not for an event loop that stood still meanwhile."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from gateway.shared_state.breaker import FAILURES
from gateway.shared_state.protocol import StoreUnavailable
from gateway.shared_state.remote import DEADLINE_S, RemoteStore


class EchoStore(RemoteStore):
    """A thread answers it at once, also while the event loop stands still; or nobody does."""

    def __init__(self, *, is_dead: bool = False) -> None:
        super().__init__("echo")
        self._ours, self._theirs = socket.socketpair()
        self._answers = threading.Thread(target=self._answer, daemon=True)
        self._is_dead, self._is_connected = is_dead, False

    async def _connect(self) -> None:
        if self._is_connected:
            return
        self._is_connected = True
        self._incoming, self._outgoing = await asyncio.open_connection(sock=self._ours)
        if not self._is_dead:
            self._answers.start()

    def _answer(self) -> None:
        with self._theirs:
            while asked := self._theirs.recv(100):
                self._theirs.sendall(asked)

    async def _ping(self) -> None:
        if not self._is_dead:
            await self._find([b"ping"])

    async def _find(self, keys: Any) -> list[bytes | None]:
        self._outgoing.write(keys[0])
        return [await self._incoming.readexactly(len(keys[0]))]

    async def _disconnect(self) -> None:
        self._outgoing.close()
        await self._outgoing.wait_closed()
        if self._is_dead:
            self._theirs.close()
        else:
            self._answers.join(20)

    _claim = _exchange = _add = _write = None  # type: ignore[assignment]


@contextlib.asynccontextmanager
async def opened(*, is_dead: bool = False) -> AsyncIterator[EchoStore]:
    store = EchoStore(is_dead=is_dead)
    await store.open()
    assert store.is_up
    try:
        yield store
    finally:
        await store.aclose()


async def stall_during_calls() -> None:
    async with opened() as store:
        for _ in range(2 * FAILURES):
            call = asyncio.ensure_future(store.find([b"key"]))
            await asyncio.sleep(0)
            time.sleep(1.25 * DEADLINE_S)
            assert await call == [b"key"]
        assert store.is_up and not store.counters.timeouts


async def call_the_dead() -> None:
    async with opened(is_dead=True) as store:
        for number in range(FAILURES):
            assert store.is_up
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await store.find([b"key"])
            assert time.monotonic() - began >= 0.9 * DEADLINE_S
            assert store.counters.timeouts == number + 1
        assert not store.is_up


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("play", [stall_during_calls, call_the_dead])
def test_a_stall_of_the_loop_is_not_blamed_on_the_store_and_silence_is(run: Callable, play: Callable) -> None:
    run(play())
