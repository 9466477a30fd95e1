"""Tool servers: their addresses, connections to them, and the errors for one that fails."""

import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from gateway.config import Config
from gateway.config.load import read_api_key
from gateway.config.mcp import McpServerConfig
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.server.http.request_head import RequestHead
from gateway.upstream.errors import AnswerTimedOut, ConnectFailed, LocalFault, UpstreamError
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Address, Replica, Transport


class McpServer:
    """A tool server: its address, and connections to it."""

    def __init__(
        self,
        config: McpServerConfig,
        gateway: Config,
        *,
        api_key: str | None,
        tls: ssl.SSLContext | None,
        local_faults: LocalFaults,
    ) -> None:
        """Raises ValueError if its URL is none."""
        address = Address.parse(config.url)
        # As it is written: servers distinguish `/mcp` and `/mcp/`.
        self.path = (urlsplit(config.url).path or "/").encode("ascii")
        patience = msgspec.structs.replace(
            gateway.upstream,
            head_timeout_s=config.silence_s,
            stall_timeout_s=config.silence_s,
            tls_server_name=None,
        )
        self.link = Replica(
            ReplicaId(f"mcp:{config.name}"),
            PoolId("mcp"),
            address,
            config=patience,
            api_key=api_key,
            transport=Transport(tls if address.is_tls else None, gateway.server.limits.tcp_keepalive_s),
            local_faults=local_faults,
        )

    def target(self, head: RequestHead) -> bytes:
        _, mark, query = head.target.partition(b"?")
        return self.path + mark + query


def open_servers(
    config: Config,
    environ: Mapping[str, str],
    *,
    tls: ssl.SSLContext | None,
    local_faults: LocalFaults,
) -> dict[str, McpServer]:
    """By name. Raises ConfigError or ValueError for what the settings point to."""
    return {
        each.name: McpServer(
            each,
            config,
            api_key=read_api_key(each.api_key_env, each.api_key_file, environ),
            tls=tls,
            local_faults=local_faults,
        )
        for each in config.mcp
    }


def refusal_for(error: UpstreamError) -> Refusal:
    if isinstance(error, LocalFault):
        message = "The gateway cannot open connections at the moment; the request may be sent again."
        return Refusal(reason=RefusalReason.LOCAL_FAULT, message=message, retry_after_s=2)
    if isinstance(error, ConnectFailed):
        reason, what = RefusalReason.UPSTREAM_UNREACHABLE, "could not be reached"
    elif isinstance(error, AnswerTimedOut):
        reason, what = RefusalReason.UPSTREAM_TIMEOUT, "did not answer in time"
    else:
        reason, what = RefusalReason.UPSTREAM_BROKEN, "failed before it answered"
    return Refusal(reason=reason, message=f"The MCP server {what}.")
