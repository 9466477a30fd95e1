"""Who serves requests: those for tool servers, and all others; made as the settings say."""

from collections.abc import Mapping

from gateway.config import Config
from gateway.server.auth.tenants import CREDENTIAL_HEADERS
from gateway.server.disaggregation.remote_prefills import RemotePrefills
from gateway.server.fleet.replica_watch import ReplicaWatch
from gateway.server.http.client_connection import Handler
from gateway.server.mcp.calls import McpCalls
from gateway.server.mcp.proxy import McpProxy
from gateway.server.mcp.servers import McpServer
from gateway.server.proxy.handler import ProxyHandler
from gateway.server.proxy.prepare import RequestPreparation
from gateway.server.proxy.websockets import Tunnels
from gateway.telemetry.mcp_counts import McpCounts
from gateway.telemetry.metrics import Metrics


class Serving:
    def __init__(
        self,
        config: Config,
        asking: RequestPreparation,
        watch: ReplicaWatch,
        metrics: Metrics,
        tool_servers: Mapping[str, McpServer],
    ) -> None:
        driver, replicas, health = asking.driver, watch.replicas, watch.health
        self.tunnels = Tunnels(replicas, asking, config, metrics.tunnels)
        self.handlers = ProxyHandler(
            driver,
            replicas,
            health,
            asking,
            server=config.server,
            overhead=metrics.overhead,
            tunnels=self.tunnels,
            legs=RemotePrefills.of(config, driver, replicas, health, asking.outbound),
        )
        self.mcp: McpProxy | None = None
        """None if there is no tool server."""
        if tool_servers:
            counts = metrics.mcp = McpCounts()
            dropped = CREDENTIAL_HEADERS if asking.are_keys_required else frozenset()
            calls = McpCalls(driver, counts, config)
            self.mcp = McpProxy(tool_servers, self.handlers, calls, dropped=dropped)
        self.handler: Handler = self.mcp or self.handlers

    def apply_config(self, config: Config) -> None:
        self.handlers.apply_config(config.server)
        self.tunnels.config = config

    def sweep(self, now: float) -> None:
        if self.mcp is not None:
            self.mcp.sweep(now)

    def close(self) -> None:
        if self.mcp is not None:
            self.mcp.close()
