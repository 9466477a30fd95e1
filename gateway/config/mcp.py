"""MCP servers whose traffic passes through the gateway."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE

McpName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\Z"), PRIVATE]


class McpServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool server; agents reach it at `/mcp/NAME` (docs/design/mcp.md)."""

    name: McpName
    """Its path at the gateway is `/mcp/NAME`; it appears in metrics."""
    url: Annotated[str, Meta(pattern=r"^https?://"), PRIVATE]
    """Its MCP endpoint, for example `http://tools:9000/mcp`."""
    api_key_env: Annotated[str, PRIVATE] | None = None
    """The environment variable that holds the key to send to it, instead of what the client sends."""
    api_key_file: Annotated[str, PRIVATE] | None = None
    """The file that holds it."""
    max_concurrent_calls: Annotated[int, Meta(ge=0)] = 0
    """Tool calls that it gets at a time, from each gateway; more wait, and those of sessions
    that somebody waits for go first. 0: as many as come."""
    max_waiting_calls: Annotated[int, Meta(ge=0)] = 256
    """Tool calls that wait for that; more are refused."""
    max_wait_s: Annotated[float, Meta(gt=0)] = 240.0
    """How long one may wait before it is refused. Most agents give up sooner."""
    silence_s: Annotated[float, Meta(gt=0)] = 1800.0
    """How long it may send nothing while a client waits for its answer. A stream that a client only listens
    to may be silent for ever."""

    def __post_init__(self) -> None:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("of api_key_env and api_key_file only one can be meant")
