"""The deadline of a call is for the store, not for an event loop that stood still meanwhile."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
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
        self._is_dead = is_dead

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._ours)
        if not self._is_dead:
            threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while asked := self._theirs.recv(100):
            self._theirs.sendall(asked)

    async def _ping(self) -> None:
        if not self._is_dead:
            await self._find([b"ping"])

    async def _find(self, keys: Any) -> list[bytes | None]:
        self._writer.write(keys[0])
        return [await self._reader.readexactly(len(keys[0]))]

    async def _disconnect(self) -> None:
        self._writer.close()
        self._theirs.close()

    _claim = _exchange = _add = _write = None  # type: ignore[assignment]


async def opened(*, is_dead: bool = False) -> EchoStore:
    store = EchoStore(is_dead=is_dead)
    await store.open()
    assert store.is_up
    return store


async def stall_during_calls() -> None:
    store = await opened()
    for stall_s in 2 * FAILURES * [1.25 * DEADLINE_S]:
        call = asyncio.ensure_future(store.find([b"key"]))
        await asyncio.sleep(0)
        time.sleep(stall_s)
        assert await call == [b"key"]
    assert store.is_up and not store.counters.timeouts
    await store.aclose()


async def call_the_dead() -> None:
    store = await opened(is_dead=True)
    for number in range(FAILURES):
        assert store.is_up
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.find([b"key"])
        assert time.monotonic() - began >= 0.9 * DEADLINE_S
        assert store.counters.timeouts == number + 1
    assert not store.is_up
    await store.aclose()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("play", [stall_during_calls, call_the_dead])
def test_a_stall_of_the_loop_is_not_blamed_on_the_store_and_silence_is(run: Callable, play: Callable) -> None:
    run(play())
