"""Tool servers: their addresses, connections to them, and the errors for one that fails."""

import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from gateway.config import Config
from gateway.config.load import read_api_key
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.upstream.errors import AnswerTimedOut, ConnectFailed, LocalFault, UpstreamError
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Address, Replica, Transport


class McpServer(NamedTuple):
    path: bytes
    """As it is written: servers distinguish `/mcp` and `/mcp/`."""
    link: Replica


def open_servers(
    config: Config, environ: Mapping[str, str], *, tls: ssl.SSLContext | None, local_faults: LocalFaults
) -> dict[str, McpServer]:
    """By name. Raises ConfigError or ValueError for what the settings point to."""
    servers = {}
    for each in config.mcp:
        address = Address.parse(each.url)
        link = Replica(
            ReplicaId(f"mcp:{each.name}"),
            PoolId("mcp"),
            address,
            config=msgspec.structs.replace(
                config.upstream,
                head_timeout_s=each.silence_s,
                stall_timeout_s=each.silence_s,
                tls_server_name=None,
            ),
            api_key=read_api_key(each.api_key_env, each.api_key_file, environ),
            transport=Transport(tls if address.is_tls else None, config.server.limits.tcp_keepalive_s),
            local_faults=local_faults,
        )
        servers[each.name] = McpServer((urlsplit(each.url).path or "/").encode("ascii"), link)
    return servers


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
