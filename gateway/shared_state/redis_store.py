"""The store in Redis (or Valkey), alone or as a cluster.

Every key begins with `turnpike:1:`, where 1 is the version of the format, then its kind, then the caller's:
`e:` entries, `n:` rows of numbers, `g` the gauges of all origins. Each step touches one key, and so one slot
of a cluster. Values begin with the byte 1; with another one they read as absent.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from gateway.shared_state.protocol import VERSION, Entry, checked_size
from gateway.shared_state.remote import CONNECT_S, DEADLINE_S, RefusedError, RemoteStore

PREFIX: Final = b"turnpike:1:"
# To each node. They are made by the probe, so that no call's deadline has to pay for a TLS handshake.
CONNECTIONS: Final = 8

_ENTRY = PREFIX + b"e:"
_GAUGES = PREFIX + b"g"
_ROW = PREFIX + b"n:"


class _Script:
    """Sent by its hash; with its text to a server that does not have it."""

    def __init__(self, name: str) -> None:
        path = resources.files("gateway.shared_state") / "lua" / f"{name}.lua"
        self.text = path.read_text(encoding="ascii")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_CLAIM, _EXCHANGE, _ADD = map(_Script, ["claim", "exchange", "add"])

_Command = tuple[Any, ...]


class RedisStore(RemoteStore):
    _broken = (OSError, EOFError, exceptions.RedisError, exceptions.RedisClusterException)

    def __init__(self, url: str, *, password: str | None = None, deadline_s: float = DEADLINE_S) -> None:
        """`url`: redis:// or rediss://, with `+cluster` for a cluster; it may hold user and password.
        `password` goes before the one in the URL."""
        parts = urlsplit(url)
        super().__init__(f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}", deadline_s=deadline_s)
        scheme, _, mode = parts.scheme.partition("+")
        settings: dict[str, Any] = {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),  # within a deadline, and what was done may not be done twice
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": None,  # calls have a deadline; a second one is a quarter of their CPU
        }
        if password is not None:
            settings["password"] = password
            if parts.password is not None:  # redis-py would prefer it
                user = f"{parts.username}@" if parts.username else ""
                parts = parts._replace(netloc=user + parts.netloc.rpartition("@")[2])
        self._is_cluster = mode == "cluster"
        if self._is_cluster:
            settings["max_connections"] = 2 * CONNECTIONS
        self._url, self._settings = parts._replace(scheme=scheme).geturl(), settings
        self._client = self._new_client()
        # Calls beyond it wait for one of the connections that are there.
        self._free = asyncio.Semaphore(CONNECTIONS)

    def _new_client(self) -> Any:
        """One that returns what a SET is answered: with GET, the value that stood there. redis-py would make
        a bool of it, unless each call says otherwise."""
        kind: Any = RedisCluster if self._is_cluster else Redis
        client = kind.from_url(self._url, **self._settings)
        client.response_callbacks.pop("SET")
        return client

    async def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = await self._bounded(self._values(keys)) if keys else []
        return [value[1:] if value and value[:1] == VERSION else None for value in values]

    async def _values(self, keys: Sequence[bytes]) -> list[Any]:
        if not self._is_cluster or len(keys) == 1:
            found: list[Any] = await self._do("MGET", *[_ENTRY + key for key in keys])
            return found
        values = await self._do_all([("GET", _ENTRY + key) for key in keys])
        if refusals := [value for value in values if isinstance(value, Exception)]:
            raise RefusedError(str(refusals[0]))
        return values

    async def claim(self, key: bytes, value: bytes, ttl_s: float) -> bytes:
        checked_size(key, value, ttl_s)
        there: bytes = await self._run(_CLAIM, _ENTRY + key, VERSION + value, _ms(ttl_s))
        return there[1:]

    async def exchange(self, origin: str, gauges: bytes, ttl_s: float) -> dict[str, bytes]:
        checked_size(b"", gauges, ttl_s)
        others = await self._run(_EXCHANGE, _GAUGES, origin, gauges, _ms(ttl_s))
        pairs = zip(others[::2], others[1::2], strict=True)
        return {name.decode(): theirs for name, theirs in pairs if name.isascii()}  # as those of gateways are

    async def add(
        self, key: bytes, more: Sequence[float], least: Sequence[float], ttl_s: float
    ) -> list[float]:
        checked_size(key, None, ttl_s)
        row = await self._run(_ADD, _ROW + key, _ms(ttl_s), *map(repr, (*more, *least)))
        return [float(each) for each in row]

    async def _write(self, batch: Sequence[Entry]) -> tuple[int, list[tuple[int, bytes]]]:
        results = await self._do_all([_command(entry) for entry in batch])
        refusals = [result for result in results if isinstance(result, exceptions.ResponseError)]
        if refusals:
            self.counters.failures += 1
            await self._follow_primary(refusals[0])
        replaced = [
            (at, there[1:])
            for at, there in enumerate(results)
            if type(there) is bytes and there[:1] == VERSION and there[1:] != batch[at].value
        ]
        return len(refusals), replaced

    async def _connect(self) -> None:
        try:
            nodes = [self._client]
            if self._is_cluster:
                await self._client.initialize()
                nodes = self._client.get_primaries()
            await asyncio.gather(
                *[node.execute_command("PING") for node in nodes for _ in range(CONNECTIONS)]
            )
        except BaseException:
            if self._is_cluster:
                # Its nodes may all be gone, or have other addresses: the next probe begins with the URL.
                old, self._client = self._client, self._new_client()
                await old.aclose()
            raise

    async def _ping(self) -> None:
        await self._client.execute_command("PING")

    async def _disconnect(self) -> None:
        await self._client.aclose()

    async def _do(self, *command: Any) -> Any:
        async with self._free:
            try:
                return await self._client.execute_command(*command)
            except exceptions.ResponseError as error:
                await self._follow_primary(error)
                raise RefusedError(str(error)) from error

    async def _run(self, script: _Script, key: bytes, *arguments: Any) -> Any:
        return await self._bounded(self._evaluate(script, key, *arguments))

    async def _evaluate(self, script: _Script, key: bytes, *arguments: Any) -> Any:
        try:
            return await self._do("EVALSHA", script.sha, 1, key, *arguments)
        except RefusedError as error:
            if not isinstance(error.__cause__, exceptions.NoScriptError):
                raise
            return await self._do("EVAL", script.text, 1, key, *arguments)

    async def _do_all(self, commands: Sequence[_Command]) -> list[Any]:
        async with self._free:
            pipeline = self._client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            results: list[Any] = await pipeline.execute(raise_on_error=False)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, exceptions.ResponseError):
                raise result
        return results

    async def _follow_primary(self, error: exceptions.ResponseError) -> None:
        if isinstance(error, exceptions.ReadOnlyError) and not self._is_cluster:
            # It became a replica. The next connections find who is the primary, where a name or a proxy says.
            await self._client.connection_pool.disconnect(inuse_connections=False)


def _command(entry: Entry) -> _Command:
    if entry.value is None:
        return ("DEL", _ENTRY + entry.key)
    put = ("SET", _ENTRY + entry.key, VERSION + entry.value, "PX", _ms(entry.ttl_s))
    return (*put, "GET") if entry.is_watched else put


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000.0))
