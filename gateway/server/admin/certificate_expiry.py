"""When the certificates end that this gateway shows, for the metrics and the log."""

import logging
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gateway.config import Config
from gateway.telemetry.log_lines import log_event

_DAY_S: Final = 86_400.0
SERVER: Final = "server.tls_certificate"


def read_expiry(config: Config) -> dict[str, float]:
    """By the setting that names its file, as Unix time. Blocks."""
    server, picker, peers = config.server, config.picker, config.shared
    files = {
        SERVER: server.tls_certificate,
        "picker.tls_certificate": picker.tls_certificate,
        "shared.peer_tls_certificate": peers.peer_tls_certificate,
    }
    decode: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other
    found = ((name, decode(file)["notAfter"]) for name, file in files.items() if file is not None)
    return {name: float(ssl.cert_time_to_seconds(end)) for name, end in found}


class CertificateExpiry:
    def __init__(self, ends: dict[str, float]) -> None:
        self.ends = ends
        self._warns_at_s = 0.0

    def apply_config(self, ends: dict[str, float]) -> None:
        self.ends.update((name, end) for name, end in ends.items() if name == SERVER)
        self._warns_at_s = 0.0

    def warn(self, *, now: float) -> None:
        if now < self._warns_at_s:
            return
        self._warns_at_s = now + _DAY_S
        for name, at, notice in expiring_soon(self.ends, now=now):
            log_event(logging.WARNING, "certificate_expires", notice, setting=name, at=at)


def expiring_soon(ends: Mapping[str, float], *, now: float) -> Iterator[tuple[str, str, str]]:
    for name, end in ends.items():
        if end - now < 14 * _DAY_S:
            at = datetime.fromtimestamp(end, UTC).isoformat()
            does = "expires" if end > now else "expired"
            yield name, at, f"{name} {does} at {at}; renew the file, then reload"
