"""A replica as the I/O shell knows it: its address, its credentials, and a pool of connections to it."""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from gateway.config.addresses import meant_url
from gateway.config.upstream import UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.telemetry.log_lines import log_event
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.connection_states import State
from gateway.upstream.errors import (
    AnswerMissing,
    AnswerTimedOut,
    ConnectFailed,
    ConnectTimedOut,
    LocalFault,
    UpstreamError,
    local_kind,
)
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.resolver import Resolver
from gateway.upstream.tcp_keepalive import keep_alive
from gateway.wire.splice import Chunk

_MAX_URL: Final = 2048
_PRINTED: Final = re.compile(r"[!-~]*")
_ENDPOINT: Final = re.compile(r"/v1(/(chat/completions|completions|responses|messages|embeddings|models))?$")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[A-Fa-f0-9:.]+(%[A-Za-z0-9._-]+)?")


class Address(msgspec.Struct, frozen=True):
    """Where a replica listens, from its URL."""

    url: str
    host: str
    port: int
    authority: bytes
    prefix: bytes
    """The URL's path, put before every request's path; without a trailing slash."""
    is_tls: bool

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Raises ValueError, with a sentence for a person, if it is not an http(s) URL of a server."""
        parts = urlsplit(url)
        try:
            _ = parts.port
        except ValueError:
            raise ValueError(f"{_shown(url)!r}: a port is a number up to 65535") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{_shown(url)!r} is not a URL such as http://host:8000{meant_url(url)}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(f"{_shown(url)!r} may hold a scheme, host, port and path only")
        if len(url) > _MAX_URL or not _PRINTED.fullmatch(parts.path):
            raise ValueError(f"{_shown(url)[:80]!r} is too long, or its path is not visible ASCII alone")
        hostname = parts.hostname.replace("%25", "%")  # a zone, as RFC 6874 writes it
        try:
            ascii_host = hostname if ":" in hostname else hostname.encode("idna").decode()
        except UnicodeError:
            ascii_host = ""
        if not _HOST.fullmatch(ascii_host):
            raise ValueError(f"{_shown(url)[:80]!r} names no host")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        # Whose zone it is nobody else knows: it leaves in no header.
        host = f"[{hostname.partition('%')[0]}]" if ":" in hostname else hostname
        authority = host if parts.port is None else f"{host}:{parts.port}"
        return cls(
            url=url.rstrip("/"),
            host=hostname,
            port=port,
            authority=authority.encode("idna" if not host.isascii() else "ascii"),
            prefix=parts.path.rstrip("/").encode("ascii"),
            is_tls=is_tls,
        )

    @classmethod
    def of_backend(cls, url: str) -> "Address":
        """Without the `/v1` of the URL that clients are given, and an endpoint behind it: every request's
        path has them. Raises as `parse` does."""
        address = cls.parse(url)
        found = _ENDPOINT.search(address.url)
        if found is None:
            return address
        _warn_of_v1(_shown(url), found[0])
        return cls.parse(address.url[: found.start()])


class Transport(NamedTuple):
    tls: ssl.SSLContext | None = None
    keepalive_s: int | None = None
    """Of TCP; None for never."""
    may_connect_to: Callable[[str], bool] = lambda _: True
    """Of the addresses that the replica's name has."""


PLAIN: Final = Transport()


class Replica:
    """Opens, reuses and bounds connections. One event loop only."""

    def __init__(
        self,
        replica: ReplicaId,
        pool: PoolId,
        address: Address,
        *,
        config: UpstreamConfig,
        api_key: str | None,
        transport: Transport = PLAIN,
        local_faults: LocalFaults | None = None,
        responses_websocket: bool = False,
    ) -> None:
        """`local_faults`: where to count them; by default apart."""
        self.id = replica
        self.pool = pool
        self.address = address
        self.api_key = api_key
        self.responses_websocket = responses_websocket
        # Signs hints to its engine; the engine makes a new one at each start.
        self.hint_key: str | None = None
        self._config = config
        self._transport = transport
        self.local_faults = local_faults if local_faults is not None else LocalFaults()
        self._resolver = Resolver(address.host, address.port)
        # Most recently used last.
        self._idle: list[UpstreamConnection] = []
        self._is_closed = False
        self._busy: set[UpstreamConnection] = set()

    async def endpoint(self) -> str:
        """IP address and port, for who connects there instead of us. Raises OSError if none is known."""
        (host, *_) = await self._resolver.addresses()
        return f"[{host}]:{self.address.port}" if ":" in host else f"{host}:{self.address.port}"

    def ask(
        self, client: aiohttp.ClientSession, method: str, path: str, *, content: bytes | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A request of the gateway's own, beside those that it passes on; `content`: JSON."""
        address = self.address
        host = f"[{address.host}]" if ":" in address.host else address.host
        headers = {"Host": address.authority.decode()}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return client.request(
            method,
            f"http{'s' if address.is_tls else ''}://{host}:{address.port}{address.prefix.decode()}{path}",
            data=content,
            headers=headers,
            ssl=self._transport.tls or True,
            server_hostname=self._tls_name if address.is_tls else None,
            allow_redirects=False,
        )

    @property
    def _tls_name(self) -> str:
        return self._config.tls_server_name or self.address.host.partition("%")[0].rstrip(".")

    def apply_config(self, config: UpstreamConfig, *, api_key: str | None) -> None:
        self._config = config
        self.api_key = api_key

    @property
    def busy_count(self) -> int:
        return len(self._busy)

    async def exchange(
        self,
        chunks: list[Chunk],
        *,
        is_head_request: bool,
        may_repeat: bool,
        websocket_key: bytes | None = None,
    ) -> UpstreamConnection:
        """Sends a request and waits for the response's head; then the connection's `head` is there.

        The request is sent at most twice: on a kept connection, and again on a fresh one if the replica
        closed the kept one without an answer. A request that must not run twice (not `may_repeat`) is sent on
        a fresh one only. Raises `LocalFault`, `ConnectFailed`, `AnswerMissing` or `AnswerTimedOut`. Whoever
        gets the connection gives it back with `release`. `websocket_key`: of the handshake, if it is one.
        """
        kept = self._take_idle() if may_repeat else None
        connection = kept
        while True:
            try:
                if connection is None:
                    connection = await self._connect()
                self._busy.add(connection)
                connection.send(chunks, is_head_request=is_head_request, websocket_key=websocket_key)
                await connection.head_came
                return connection
            except BaseException as error:
                is_kept = connection is not None and connection is kept
                if connection is not None:
                    self.release(connection, reuse=False)
                if is_kept and isinstance(error, AnswerMissing) and not isinstance(error, AnswerTimedOut):
                    connection = None
                    continue
                if not is_kept and kept is not None and isinstance(error, UpstreamError):
                    error.resends, error.was_sent = int(error.was_sent), True
                raise

    def release(self, connection: UpstreamConnection, *, reuse: bool) -> None:
        self._busy.discard(connection)
        is_kept = reuse and connection.is_reusable and not self._is_closed
        if is_kept and len(self._idle) < self._config.max_idle_connections:
            self._idle.append(connection)
        else:
            connection.abort()

    def sweep(self, *, now: float) -> None:
        """Gives up on heads that do not come and on answers that stop to, while their client reads; closes
        connections unused for too long. Once a second."""
        for connection in tuple(self._busy):
            is_handshake = connection.websocket_key is not None
            limit_s = self._config.connect_timeout_s if is_handshake else self._config.head_timeout_s
            sent_s = connection.sent_at
            if connection.head is None and now - sent_s > limit_s + self.local_faults.lost_s(sent_s, now=now):
                connection.give_up_on_head()
            elif self._is_stalled(connection, now=now):
                connection.give_up_on_rest()
        oldest_kept = now - self._config.idle_connection_s
        kept = [c for c in self._idle if c.is_reusable and c.last_read > oldest_kept]
        for connection in self._idle:
            if connection not in kept:
                connection.abort()
        self._idle = kept

    def _is_stalled(self, connection: UpstreamConnection, *, now: float) -> bool:
        if connection.state is not State.ANSWERING or connection.may_be_silent:
            return False
        silent_s = now - connection.last_read
        lost_s = self.local_faults.lost_s(connection.last_read, now=now)
        return silent_s > self._config.stall_timeout_s + lost_s

    def close(self, *, lets_answers_end: bool = False) -> None:
        """Breaks what is under way, but for answers that have begun if these may end; from then on there are
        no other connections."""
        self._is_closed = True
        begun = [each for each in self._busy if each.head is not None] if lets_answers_end else ()
        for connection in (*self._idle, *self._busy):
            if connection not in begun:
                connection.abort()
        self._idle = []
        self._resolver.close()

    def _take_idle(self) -> UpstreamConnection | None:
        oldest = asyncio.get_running_loop().time() - self._config.idle_connection_s
        while self._idle:
            connection = self._idle.pop()
            if connection.last_read > oldest and connection.is_reusable:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> UpstreamConnection:
        connecting = asyncio.get_running_loop().create_task(self._open())
        try:
            fresh = await connecting
            if self._is_closed:
                fresh.abort()
                raise ConnectFailed("it is no member any more")
            return fresh
        except asyncio.CancelledError:
            connecting.add_done_callback(_drop)
            connecting.cancel()
            raise

    async def _open(self) -> UpstreamConnection:
        now = asyncio.get_running_loop().time
        while True:
            addresses: tuple[str, ...] = ()
            began_s = now()
            if self._is_closed:
                raise ConnectFailed("it is no member any more")
            try:
                async with asyncio.timeout(self._config.connect_timeout_s):
                    addresses = await self._resolver.addresses()
                    try:
                        return await self._open_any(addresses)
                    except ConnectFailed:
                        others = await self._resolver.others(addresses)
                        if not others:
                            raise
                        return await self._open_any(others)
            except TimeoutError:
                if self.local_faults.lost_s(began_s, now=now()):
                    continue  # it was we who took so long
                if addresses:
                    raise ConnectTimedOut("no connection in time") from None
                no_answer = socket.gaierror(socket.EAI_AGAIN, "DNS did not answer in time")
                raise self._failure(no_answer) from None
            except OSError as error:
                raise self._failure(error) from error

    async def _open_any(self, addresses: tuple[str, ...]) -> UpstreamConnection:
        failed: OSError | None = None
        for address in addresses:
            try:
                connection = await self._open_one(address)
            except OSError as error:
                # The replica's fault is the better cause.
                if failed is None or local_kind(failed) is not None:
                    failed = error
            else:
                self.local_faults.connected()
                if self._transport.keepalive_s is not None:
                    keep_alive(connection.transport, idle_s=self._transport.keepalive_s)
                return connection
        assert failed is not None
        raise self._failure(failed) from failed

    async def _open_one(self, address: str) -> UpstreamConnection:
        if not self._transport.may_connect_to(address):
            raise ConnectFailed(f"nothing is sent to {address} in clear")
        loop = asyncio.get_running_loop()
        tcp, connection = await loop.create_connection(UpstreamConnection, address, self.address.port)
        if self._transport.tls is not None:
            # Not by `create_connection`, which would hide what TCP has not sent yet.
            tls = await loop.start_tls(tcp, connection, self._transport.tls, server_hostname=self._tls_name)
            if tls is None:
                raise ConnectionResetError("it closed the connection after the TLS handshake")
            connection.encrypted(tls)
        return connection

    def _failure(self, error: OSError) -> UpstreamError:
        kind = local_kind(error)
        if kind is None:
            return ConnectFailed(f"no connection: {error}")
        self.local_faults.saw(kind, now=asyncio.get_running_loop().time())
        return LocalFault(f"no connection: {error}")


@lru_cache(256)  # once for each
def _warn_of_v1(url: str, end: str) -> None:
    notice = f"{url}: {end} at its end is left out, since the paths of requests begin with it"
    log_event(logging.WARNING, "url_shortened", notice, url=url)


def _shown(url: str) -> str:
    """Without what may be a secret: before an @, and behind ? or #. It is logged."""
    scheme, found, rest = url.rpartition("://")
    return scheme + found + re.split(r"[?#]", rest.rpartition("@")[2])[0]


def _drop(connecting: asyncio.Task[UpstreamConnection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().abort()


def open_session(timeout_s: float, connector: aiohttp.TCPConnector | None = None) -> aiohttp.ClientSession:
    """For our own requests. Nothing is decompressed, so a small answer cannot become a large one."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )
