"""What goes wrong with the store of one machine. Its server runs in a process of its own."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.shared_state import frames, remote
from gateway.shared_state.local_server import LocalServer
from gateway.shared_state.local_store import LocalStore
from gateway.shared_state.protocol import Entry, StoreUnavailable
from gateway.shared_state.remote import BATCH, GATHER_S
from tests.shared_state.conftest import PATIENCE_S

SERVE = """
import asyncio, sys, time
from gateway.shared_state.local_server import LocalServer
async def serve():
    await LocalServer(sys.argv[1], time.monotonic).start()
    print(flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""


class Server:
    def __init__(self, path: str) -> None:
        self._path = path
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVE, self._path]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"\n"
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "own/store.sock")


@pytest.fixture
def server(path: str) -> Iterator[Server]:
    server = Server(path)
    yield server
    server.kill()


async def opened(path: str) -> LocalStore:
    store = LocalStore(path, deadline_s=PATIENCE_S)
    await store.open()
    return store


async def until_up(store: LocalStore, *, up: bool = True) -> None:
    async with asyncio.timeout(20):
        while store.is_up is not up:
            await asyncio.sleep(0.01)


async def test_a_hung_server_costs_a_deadline_then_nothing(server, path):
    store = await opened(path)
    await store.claim(b"a", b"1", 60.0)
    store._deadline_s = 0.05
    server.process.send_signal(signal.SIGSTOP)
    for number in range(4):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.find([b"a"])
        assert time.monotonic() - began < 1.0
        assert store.is_up is (number < 2)
    assert (store.counters.timeouts, store.counters.not_tried) == (3, 1)
    store._deadline_s = PATIENCE_S
    server.process.send_signal(signal.SIGCONT)
    await until_up(store)
    assert await store.find([b"a"]) == [b"1"]  # and not the answer to a question from before
    await store.aclose()


async def test_a_server_that_was_killed_comes_back_empty(server, path):
    store = await opened(path)
    asked = asyncio.gather(*[store.find([b"a"]) for _ in range(10)], return_exceptions=True)
    server.kill()
    await asked
    await until_up(store, up=False)  # one lost connection is enough
    with pytest.raises(StoreUnavailable):
        await store.find([b"a"])
    store.publish([Entry(b"a", b"1", 60.0)])
    server.start()
    await until_up(store)
    await store.flush()
    assert await store.find([b"a"]) == [b"1"]
    await store.aclose()


@pytest.fixture
async def served_here(path: str) -> AsyncIterator[LocalStore]:
    """By a server in this process: some turns of the event loop answer it, however busy the machine is."""
    server = LocalServer(path, time.monotonic)
    await server.start()
    store = await opened(path)
    yield store
    await store.aclose()
    await server.aclose()


async def test_writes_go_together_also_while_others_are_under_way(served_here):
    store, began = served_here, time.monotonic()
    calls, many = store.counters.calls, 5_000
    for number in range(many):
        store.publish([Entry(b"%d" % number, b"1", 60.0)])
        await asyncio.sleep(0)
    full = many / BATCH  # such batches wait for nothing
    assert store.counters.calls - calls <= (time.monotonic() - began) / GATHER_S + full
    await store.flush()
    assert await store.find([b"0", b"%d" % (many - 1)]) == [b"1", b"1"]


async def test_what_is_written_makes_room(served_here, monkeypatch):
    monkeypatch.setattr(remote, "MAX_WAITING_BYTES", 10)
    for _ in range(3):
        served_here.publish([Entry(b"a", b"1" * 9, 60.0), Entry(b"b", b"1", 60.0)])
        await served_here.flush()
    assert (served_here.counters.writes, served_here.counters.dropped_writes) == (3, 3)


async def test_what_comes_while_others_are_under_way_follows_them(served_here):
    store, calls = served_here, served_here.counters.calls
    store.publish([Entry(b"a", b"1", 60.0)])
    async with asyncio.timeout(20):
        while store.counters.calls == calls:
            await asyncio.sleep(0)
        store.publish([Entry(b"b", b"1", 60.0)])
        assert store._writer is not None
        while await store.find([b"b"]) != [b"1"]:
            await asyncio.sleep(GATHER_S)


async def test_only_this_user_reaches_the_socket(server, path):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


async def test_a_directory_that_others_reach_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="0700"):
        await LocalServer(str(tmp_path / "open/store.sock"), time.monotonic).start()


async def test_a_server_leaves_another_one_its_socket(server, path):
    with pytest.raises(FileExistsError, match="another server"):
        await LocalServer(path, time.monotonic).start()
    store = await opened(path)
    assert store.is_up
    await store.aclose()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.HELLO + b"\xff\xff\xff\xff",
        frames.HELLO + frames.framed(b"\xc1"),
        frames.HELLO + frames.framed(b"\x92\x01\x01"),
    ],
)
async def test_whoever_does_not_speak_this_is_cut_off(path, nonsense):
    server = LocalServer(path, time.monotonic)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(nonsense)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        async with asyncio.timeout(20):
            await reader.readexactly(1)
    writer.close()
    store = await opened(path)
    assert store.is_up
    await store.aclose()
    await server.aclose()


def test_frames_are_read_however_they_are_cut():
    bodies = [b"", b"a" * 300, b"bc", b"d" * 70_000]
    sent = b"".join(map(frames.framed, bodies))
    for step in (1, 3, 5, 301, len(sent)):
        reader = frames.Reader()
        seen = [frame for at in range(0, len(sent), step) for frame in reader.feed(sent[at : at + step])]
        assert seen == bodies


async def test_a_client_that_reads_no_answers_is_not_read(path):
    """Else its answers would fill the server's memory."""
    server = LocalServer(path, time.monotonic)
    await server.start()
    server.tables.claim(b"a", b"x" * 200_000, 60.0)
    reader, writer = await asyncio.open_unix_connection(path, limit=1024)
    ask = frames.framed(b"\x92\x01\x91\xc4\x01a")
    writer.write(frames.HELLO + ask)
    await reader.readexactly(200_000)
    writer.write(ask * 5_000)  # 1 GB of answers
    (connection,) = server._connections
    async with asyncio.timeout(20):
        while connection._transport.is_reading():
            await asyncio.sleep(0.01)
    assert connection._transport.get_write_buffer_size() < 2 << 20
    writer.transport.abort()
    await server.aclose()
