"""Responses over WebSocket: opened where a replica speaks it, refused with 426 at once where none does.

Which replica speaks it is found out by asking, on a client's behalf, and remembered. A client is agreed to
only after its replica has agreed. Whatever else the replica says, and if nobody may be asked, the client gets
426, by which it asks by HTTP and hears there what there is to hear.
"""

import base64
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

import msgspec

from gateway.config.server import ServerConfig
from gateway.core.connections import place_connection, pool_of_connection
from gateway.domain.ids import ReplicaId, TenantId
from gateway.server.asking import Asking
from gateway.server.connection import ClientConnection
from gateway.server.request_head import RequestHead, no_websocket
from gateway.server.websocket import WebSocket
from gateway.server.websocket_asking import Means
from gateway.upstream.errors import ConnectFailed, ConnectTimedOut, LocalFault, UpstreamError
from gateway.upstream.health import HealthChecks
from gateway.upstream.replica import Replica
from gateway.upstream.websocket import NoWebSocket, UpstreamWebSocket
from gateway.wire.endpoints import classify
from gateway.wire.explicit_ids import read_explicit_id
from gateway.wire.headers import get_header
from gateway.wire.websocket_frames import accepted

_log: Final = logging.getLogger(__name__)
_MOST_ASKED: Final = 3
"""Replicas, for one client, which waits meanwhile. The next client asks others."""


class WebSockets:
    """Called with every request for one."""

    def __init__(
        self,
        replicas: Mapping[ReplicaId, Replica],
        health: HealthChecks,
        asking: Asking,
        *,
        config: ServerConfig,
        counts: Counter[str],
    ) -> None:
        """`counts`: of those that were `opened`, `closed` and `refused`."""
        self._brain = asking.driver.coordinator
        self._replicas = replicas
        self._health = health
        self._asking = asking
        self._config = config
        self._open: set[WebSocket] = set()
        self._of_tenant: Counter[TenantId] = Counter()
        self._counts = counts

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def follow(self, config: ServerConfig) -> None:
        """For those that are opened from now on."""
        self._config = config

    def ask_anew(self, authenticate: Callable[[RequestHead], TenantId | None]) -> None:
        """Those whose credentials are not their tenant's any more are ended."""
        for each in tuple(self._open):
            if authenticate(each.head) != each.head.visitor.tenant.id:
                each.revoke()

    async def serve(self, client: ClientConnection, head: RequestHead) -> None:
        """Until the client is gone, or was refused."""
        tenant = head.visitor.tenant.id
        if (
            self._brain.is_draining
            or self._of_tenant[tenant] >= self._config.websocket.max_per_tenant
            or self._is_of_a_page(head)
        ):
            self._refuse(client, head)
            return
        self._of_tenant[tenant] += 1  # before anything is awaited
        try:
            found = await self._reach(head)
            if found is None:
                self._refuse(client, head)
            else:
                await self._pass(client, head, *found)
        finally:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    def _is_of_a_page(self, head: RequestHead) -> bool:
        """Any page in a browser may open one wherever its reader may, and hear the answers. It has no key."""
        return not self._asking.are_keys_required and get_header(head.headers, b"origin") is not None

    def _refuse(self, client: ClientConnection, head: RequestHead) -> None:
        self._counts["refused"] += 1
        client.refuse(head.visitor.endpoint.protocol, no_websocket())

    async def _reach(self, head: RequestHead) -> tuple[Replica, UpstreamWebSocket] | None:
        """A replica that has agreed; None if nobody does."""
        asked: set[ReplicaId] = set()
        for left in reversed(range(_MOST_ASKED)):
            replica = self._choose(head, asked, is_last=not left)
            if replica is None:
                return None
            asked.add(replica.id)
            key = base64.b64encode(secrets.token_bytes(16))
            try:
                return replica, await replica.upgrade(
                    self._asking.outbound.handshake(head, replica, key), key
                )
            except NoWebSocket as refusal:
                _log.debug("%s speaks no WebSocket: %s", replica.id, refusal)
            except LocalFault:
                return None
            except ConnectTimedOut:
                self._health.check_now(replica.id)
            except ConnectFailed as error:
                self._health.suspect(replica.id, str(error))
            except UpstreamError:
                self._health.check_now(replica.id)
        return None

    def _choose(self, head: RequestHead, asked: set[ReplicaId], *, is_last: bool) -> Replica | None:
        """`is_last`: if it does not agree, nobody is asked: better one that did before."""
        brain, replicas = self._brain, self._replicas
        pool = pool_of_connection(brain, _model_in(head.target))
        if pool is None:
            return None
        mute = {each.id for each in replicas.values() if each.speaks_websocket is False}
        if is_last and any(each.speaks_websocket and each.pool == pool for each in replicas.values()):
            mute |= {each.id for each in replicas.values() if not each.speaks_websocket}
        chosen = place_connection(
            brain,
            pool,
            head.visitor.tenant.id,
            read_explicit_id(head.facts.stated, None),
            without=mute | asked,
            connections=Counter(each.replica.id for each in self._open),
        )
        return replicas.get(chosen) if chosen is not None else None

    async def _pass(
        self, client: ClientConnection, head: RequestHead, replica: Replica, upstream: UpstreamWebSocket
    ) -> None:
        self._counts["opened"] += 1
        socket = WebSocket(client, upstream, replica, _head_of_messages(head), self._means())
        self._open.add(socket)
        try:
            client.switch(_answer(head, upstream, replica if self._config.has_receipts else None), socket)
            await socket.run()
        finally:
            self._open.discard(socket)
            self._counts["closed"] += 1
            replica.drop(upstream)

    def _means(self) -> Means:
        return Means(
            asking=self._asking,
            limits=self._config.limits,
            holding=self._config.holding,
            idle_s=self._config.websocket.idle_s,
            with_receipts=self._config.receipts,
            is_leaving=self._is_leaving,
            suspect=self._health.check_now,
        )

    def _is_leaving(self, replica: Replica) -> bool:
        """Its clients had better go elsewhere."""
        state = self._brain.fleet.get(replica.id)
        return self._replicas.get(replica.id) is not replica or state is None or state.is_draining


def _model_in(target: bytes) -> str | None:
    """Some clients say it there; the messages say it, too, but come later."""
    named = parse_qs(target.partition(b"?")[2].decode("latin-1"), max_num_fields=64).get("model")
    return named[0] if named else None


def _head_of_messages(head: RequestHead) -> RequestHead:
    """Each message is judged as a request with the headers of the handshake."""
    visitor, facts = head.visitor, head.facts
    return msgspec.structs.replace(
        head,
        method="POST",
        visitor=msgspec.structs.replace(visitor, endpoint=classify("POST", visitor.path)),
        facts=msgspec.structs.replace(facts, content_type="application/json", is_form=False, coding=""),
        passed_on={},
    )


def _answer(head: RequestHead, upstream: UpstreamWebSocket, replica: Replica | None) -> bytes:
    """As the replica answered, for the client's own handshake."""
    key = get_header(head.headers, b"sec-websocket-key") or ""
    told = b"x-turnpike-replica: %s\r\n" % replica.id.encode("ascii") if replica is not None else b""
    return b"%s%sUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n" % (
        upstream.head.start, told, accepted(key.encode("latin-1"))
    )  # fmt: skip
