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
    """Environment variable with the key for it, instead of the client's."""
    api_key_file: Annotated[str, PRIVATE] | None = None
    """File with the same."""
    max_concurrent_calls: Annotated[int, Meta(ge=0)] = 0
    """Most concurrent tool calls from each gateway; more wait, those of reactive sessions first. 0: no
    limit."""
    max_waiting_calls: Annotated[int, Meta(ge=0)] = 256
    """Most waiting tool calls; more are refused."""
    max_wait_s: Annotated[float, Meta(gt=0)] = 240.0
    """Longest wait before a refusal. Most agents give up sooner."""
    silence_s: Annotated[float, Meta(gt=0)] = 1800.0
    """Longest silence during an answer. A stream of notifications has no limit."""

    def __post_init__(self) -> None:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("of api_key_env and api_key_file only one can be meant")
