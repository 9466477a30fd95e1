"""What a picker cannot do, reported before it starts."""

from importlib.util import find_spec

from gateway.config import Config
from gateway.config.load import ConfigError


def check_picker(config: Config) -> None:
    """Raises ConfigError."""
    if find_spec("grpc") is None:
        raise ConfigError("picker: needs gRPC: pip install 'turnpike-gateway[picker]'")
    for what, is_set in (
        ("pools.transfer: prompts are sent by the proxy alone", any(pool.transfer for pool in config.pools)),
        ("prefill_ahead.enabled: prompts are sent by the proxy alone", config.prefill_ahead.enabled),
        ("server.access_log: Envoy has its own", config.server.access_log is not None),
        ("mcp: calls pass through the proxy alone", bool(config.mcp)),
    ):
        if is_set:
            raise ConfigError(f"picker: cannot go with {what}")
