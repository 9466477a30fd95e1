"""`turnpike probe`: runs beside the tools, and reports to the gateway how busy their host is."""

import argparse
import logging
import platform
import time
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from gateway.config.no_redirects import open_straight
from gateway.domain.engine import HostSignals
from gateway.telemetry.log_lines import log_event
from gateway.tool_probe.host import HostMeter, Sample

_LOOKS: Final = 10
_CGROUP: Final = Path("/sys/fs/cgroup")


def add_probe(commands: Any) -> None:
    probe = commands.add_parser("probe", help="report to a gateway how busy this host of tools is")
    probe.add_argument("gateway", metavar="URL", help="the control plane, such as http://gateway:8081")
    probe.add_argument("--name", default=platform.node() or "host", help="of this host (default: its own)")
    probe.add_argument("--period", type=float, default=1.0, metavar="S", help="between reports (default 1)")
    probe.add_argument("--key-file", type=Path, metavar="FILE", help="with the control key")
    probe.set_defaults(command=_probe)


def look() -> Sample:
    return Sample(
        at_s=time.monotonic(),
        stat=_read(Path("/proc/stat")),
        cpu_max=_read(_CGROUP / "cpu.max"),
        cpu_stat=_read(_CGROUP / "cpu.stat"),
        pressure=_read(_CGROUP / "cpu.pressure"),
    )


def send_report(gateway: str, name: str, signals: HostSignals, *, key: str | None) -> None:
    """Raises OSError if the gateway does not take it."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    url = f"{gateway.rstrip('/')}/turnpike/hosts/{quote(name, safe='')}"
    request = urllib.request.Request(url, msgspec.json.encode(signals), headers, method="POST")
    with open_straight(request, timeout=5):
        pass


def _probe(arguments: argparse.Namespace) -> int:
    if not arguments.gateway.startswith(("http://", "https://")):
        raise ValueError(f"the control plane is a URL, not {arguments.gateway!r}")
    key = arguments.key_file.read_text(encoding="ascii").strip() if arguments.key_file else None
    meter, complained = HostMeter(), False
    try:
        while True:
            for _ in range(_LOOKS):
                meter.look(look())
                time.sleep(arguments.period / _LOOKS)
            signals = meter.report()
            if signals is None:
                raise OSError("this system does not say how busy it is")
            try:
                send_report(arguments.gateway, arguments.name, signals, key=key)
                complained = False
            except OSError as error:
                if not complained:
                    log_event(logging.WARNING, "host_report_failed", cause=error)
                complained = True
    except KeyboardInterrupt:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
