"""When the certificates end that this gateway shows, for the metrics and the log."""

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.config import Config
from gateway.telemetry.log_lines import log_event

_WARNS_S: Final = 14 * 86_400.0
_PERIOD_S: Final = 86_400.0
SERVER: Final = "server.tls_certificate"


def read_ends(config: Config) -> dict[str, float]:
    """By the setting that names its file, as Unix time. Blocks."""
    picker, shared = config.picker, config.shared
    files = {
        SERVER: config.server.tls_certificate,
        "picker.tls_certificate": picker.tls_certificate,
        "shared.peer_tls_certificate": shared.peer_tls_certificate,
    }
    decode: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other
    return {
        name: float(ssl.cert_time_to_seconds(decode(Path(file))["notAfter"]))
        for name, file in files.items()
        if file is not None
    }


class CertificateEnds:
    def __init__(self, ends: dict[str, float]) -> None:
        self.ends = ends
        self._warns_at_s = 0.0

    def follow(self, ends: dict[str, float]) -> None:
        """Of the others a reload shows none anew."""
        if SERVER in ends:
            self.ends[SERVER], self._warns_at_s = ends[SERVER], 0.0

    def warn(self, *, now: float) -> None:
        """In the log, once a day, of those that end soon or have ended. `now`: Unix time."""
        if now < self._warns_at_s:
            return
        self._warns_at_s = now + _PERIOD_S
        for name, end in self.ends.items():
            if end - now < _WARNS_S:
                at = datetime.fromtimestamp(end, UTC).isoformat()
                told = f"{name} {'expires' if end > now else 'expired'} at {at}; renew the file, then reload"
                log_event(logging.WARNING, "certificate_expires", told, setting=name, at=at)
