"""Who may read and write the store, and listen where a gateway listened, and has not the fleet's secret."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import cycle, pairwise
from urllib.parse import urlsplit

import msgspec
import pytest

from gateway.shared_state.fleet_secret import SEAL_BYTES, Seal
from gateway.shared_state.redis_store import PREFIX
from tests.several.fleet import (
    SECRET,
    Fleet,
    GatewayProcess,
    at_work,
    comes_true,
    failures_of,
    is_metric,
    running_fleet,
)

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

KEY, TASK = b"sk-of-a-tenant-0123456789", b"fix the tests of module"
HEAD = 9
"""Bytes before an announcement: the version, and when it lapses."""
NUMBER = 5
"""Where its number stands in it."""
LAPSES_NEVER = b"\x01" + b"\0\0\0\0\0\0\xf0\x7f"


class Attacker:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.seen: dict[bytes, bytes] = {}
        """All values that it read, those of announcements by their own bytes."""
        self.announced: list[tuple[bytes, bytes]] = []
        """Of all gateways, in the order in which they were read."""
        self.got = b""
        self.internal = b""

    def read(self) -> None:
        with self._fleet.redis.admin() as admin:
            for key in admin.scan_iter(PREFIX + b"e:*", count=1000):
                self.seen[key] = admin.get(key) or b""
            for origin, value in admin.hgetall(PREFIX + b"g").items():
                self.seen[value] = value
                if not value.startswith(LAPSES_NEVER) and (origin, value) not in self.announced:
                    self.announced.append((origin, value))

    def write(self, url: str) -> None:
        """Announces gateways that it makes up, also of what others announced, and mixes entries up."""
        with self._fleet.redis.admin() as admin:
            for origin, value in self.announced[-4:]:
                told = msgspec.msgpack.decode(value[HEAD + SEAL_BYTES :])
                forged = msgspec.msgpack.encode([url, *told[1:NUMBER], 1_000_000, *told[NUMBER + 1 :]])
                for seal in (
                    b"",
                    value[HEAD:][:SEAL_BYTES],
                    Seal(b"t" * 32, "announcements").of(origin, forged),
                ):
                    for name in (origin, *[b"fake-%d-%d" % (len(seal), number) for number in range(8)]):
                        admin.hset(PREFIX + b"g", name, LAPSES_NEVER + seal + forged)
                admin.hset(PREFIX + b"g", b"another", LAPSES_NEVER + value[HEAD:])
            keys = list(admin.scan_iter(PREFIX + b"e:*", count=1000))
            for key, other in pairwise(keys):
                admin.set(key, self.seen.get(other, b"\x01forged"), keepttl=True)

    def put(self, origin: bytes, announced: bytes) -> None:
        with self._fleet.redis.admin() as admin:
            admin.hset(PREFIX + b"g", origin, LAPSES_NEVER + announced)

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """As a gateway would: to whatever is asked it answers with what it knows, or that somebody inside the
        fleet's network knows."""

        async def serve_inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                self.internal += await reader.read(65536)

        inside = await asyncio.start_server(serve_inside, "127.0.0.1", 0)
        place = b"http://127.0.0.1:%d/latest/meta-data" % inside.sockets[0].getsockname()[1]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                while piece := await reader.read(65536):
                    self.got += piece
                    body, status = self.announced[-1][1][HEAD:], next(statuses)
                    head = b"HTTP/1.1 %d OK\r\nLocation: %s\r\nContent-Length: %d\r\n\r\n"
                    writer.write(head % (status, place, len(body)) + body)

        statuses = cycle((200, 302, 307, 308))
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        async with inside, server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def url_of(self, origin: bytes) -> str:
        value = next(value for name, value in reversed(self.announced) if name == origin)
        return str(msgspec.msgpack.decode(value[HEAD + SEAL_BYTES :])[0])


async def test_who_reads_and_writes_the_store_gets_no_key_no_prompt_and_no_request(tmp_path):
    async with running_fleet(tmp_path) as fleet:
        headers = b"Authorization: Bearer %s\r\n" % KEY
        agents = [fleet.agent(f"agent-{number}", headers=headers) for number in range(6)]
        attacker = Attacker(fleet)
        async with attacker.listening() as url, at_work(*agents):
            for number in range(20):
                attacker.read()
                attacker.write(url)
                await asyncio.sleep(0.1)
                await fleet.agent(f"new-{number}", headers=headers).turn()
        for each in fleet.gateways:
            await comes_true(lambda each=each: is_metric(each, "peers_alive", 1), 2.0)
        assert attacker.got == b"", "nobody believes what it forged"
        assert not failures_of(fleet.agents)
        known = b"\n".join((*attacker.seen, *attacker.seen.values()))
        assert len(attacker.seen) > 50
        assert [text for text in (KEY, SECRET, TASK, b"Step 1", b"agent-1") if text in known] == []

        origins = {name for name, _ in attacker.announced}
        fleet.gateways[0].kill()
        await asyncio.sleep(0.2)
        attacker.read()
        before = len(attacker.announced)
        await asyncio.sleep(0.3)
        attacker.read()
        (gone,) = origins - {name for name, _ in attacker.announced[before:]}
        async with attacker.listening(urlsplit(attacker.url_of(gone)).port or 0):
            fleet.gateways[0] = late = GatewayProcess(tmp_path, "late", fleet.settings)
            replaying = asyncio.ensure_future(replays(attacker, gone))
            await fleet.start(late)
            async with at_work(*agents):
                await asyncio.sleep(3.0)
            for each in fleet.gateways:
                assert await is_metric(each, "peers_alive", 1), "the two that live"
            replaying.cancel()
        assert attacker.got.count(b"POST /turnpike/peer") > 1, "who did not know it asked who that is"
        assert attacker.internal == b"", "nobody asks where it redirects to"
        assert [text for text in (KEY, SECRET, TASK) if text in attacker.got] == []


async def replays(attacker: Attacker, origin: bytes) -> None:
    while True:
        for name, value in attacker.announced:
            if name == origin:
                attacker.put(name, value[HEAD:])
                await asyncio.sleep(0.01)
