"""What a picker cannot do, said before it starts."""

from gateway.config import Config
from gateway.config.load import ConfigError


def check_picker(config: Config) -> None:
    """Raises ConfigError."""
    for what, is_set in (
        ("shared.url: several pickers do not know each other's sessions yet", config.shared.url is not None),
        ("pools.transfer: prompts are sent by the proxy alone", any(pool.transfer for pool in config.pools)),
        ("prefill_ahead.enabled: prompts are sent by the proxy alone", config.prefill_ahead.enabled),
        ("mcp: calls pass through the proxy alone", bool(config.mcp)),
    ):
        if is_set:
            raise ConfigError(f"picker: cannot go with {what}")
