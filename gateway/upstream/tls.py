"""TLS towards backends."""

import ssl

from gateway.config import Config


def upstream_tls(config: Config) -> ssl.SSLContext | None:
    """None if nobody is reached by https. Blocks; raises OSError."""
    is_needed = any(r.url.startswith("https://") for pool in config.pools for r in pool.replicas)
    is_needed = is_needed or any(pool.discovery is not None for pool in config.pools)
    is_needed = is_needed or any(each.url.startswith("https://") for each in config.mcp)
    return ssl.create_default_context(cafile=config.upstream.ca_file) if is_needed else None
