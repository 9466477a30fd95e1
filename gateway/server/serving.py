"""The handlers of requests: for tool servers, and for all others, by the settings."""

from collections.abc import Mapping

import msgspec

from gateway.config import Config
from gateway.server.auth.client_keys import CREDENTIAL_HEADERS
from gateway.server.disaggregation.remote_prefills import RemotePrefills
from gateway.server.http.client_connection import Handler
from gateway.server.mcp.calls import McpCalls
from gateway.server.mcp.proxy import McpProxy
from gateway.server.mcp.servers import McpServer
from gateway.server.proxy.handler import ProxyHandler
from gateway.server.proxy.open_ticket import Tickets
from gateway.server.proxy.prepare import RequestPreparation
from gateway.server.proxy.relay import ContentListeners, ResponseRelay
from gateway.server.proxy.send import UpstreamSender
from gateway.server.proxy.upstream_request import Outbound
from gateway.server.proxy.websockets import Tunnels
from gateway.server.replicas.replica_watch import ReplicaWatch
from gateway.telemetry.mcp_counts import McpCounts
from gateway.telemetry.metrics import Metrics


class ProxyParts(msgspec.Struct, frozen=True):
    """The steps of a request that HTTP and Envoy's picker share."""

    preparation: RequestPreparation
    tickets: Tickets
    outbound: Outbound
    listeners: ContentListeners


class Serving:
    def __init__(
        self,
        config: Config,
        parts: ProxyParts,
        watch: ReplicaWatch,
        metrics: Metrics,
        tool_servers: Mapping[str, McpServer],
    ) -> None:
        preparation, tickets, outbound = parts.preparation, parts.tickets, parts.outbound
        driver, replicas, health = preparation.driver, watch.replicas, watch.health
        self.tunnels = Tunnels(replicas, preparation, config, metrics.tunnels)
        remote_prefills = None
        if any(pool.transfer is not None for pool in config.pools):
            remote_prefills = RemotePrefills(config, driver, replicas, health, outbound)
        sender = UpstreamSender(
            *(driver, replicas, health, outbound, tickets, config.server),
            remote_prefills=remote_prefills,
            overhead=metrics.overhead,
        )
        relay = ResponseRelay(health, parts.listeners)
        self.handlers = ProxyHandler(preparation, tickets, sender, relay, self.tunnels)
        # None if there is no tool server.
        self.mcp: McpProxy | None = None
        if tool_servers:
            counts = metrics.mcp = McpCounts()
            dropped = CREDENTIAL_HEADERS if preparation.are_keys_required else frozenset()
            calls = McpCalls(driver, counts, config)
            self.mcp = McpProxy(tool_servers, self.handlers, calls, dropped=dropped)
        self.handler: Handler = self.mcp or self.handlers

    def apply_config(self, config: Config) -> None:
        self.handlers.sender.server = config.server
        self.tunnels.config = config

    def sweep(self, now: float) -> None:
        if self.mcp is not None:
            self.mcp.sweep(now)

    def close(self) -> None:
        if self.mcp is not None:
            self.mcp.close()
