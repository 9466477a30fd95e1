"""A gateway on real engines, with a hop between them that can misbehave, and its books."""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.faults import Faults
from tests.engines import Fleet
from tests.gateways import running_gateway

_BALANCED_WITHIN_S = 10.0
# One health check at the start and none later: what the hop sees is what a client sent.
_SETTINGS = "[upstream]\nhealth_period_s = 86400\n"


@dataclass(frozen=True, kw_only=True)
class Site:
    url: str
    control_url: str
    log: Path
    faults: Faults

    def snapshot(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.control_url}/turnpike/snapshot", timeout=5) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.control_url}/metrics", timeout=5) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def assert_books_balance(self) -> None:
        """Nothing runs, nothing waits, here or on a replica; and nothing went wrong within the gateway."""
        deadline = time.monotonic() + _BALANCED_WITHIN_S
        while (left := _left(self.snapshot())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, left
        text = self.log.read_text()
        assert "Traceback" not in text and "failed" not in text, text


def _left(snapshot: dict[str, Any]) -> dict[str, int]:
    counts = {name: snapshot[name] for name in ("running", "waiting")}
    counts |= {replica["id"]: replica["running"] for replica in snapshot["replicas"]}
    return {name: count for name, count in counts.items() if count}


@contextmanager
def opened(fleet: Fleet, directory: Path, *, more_settings: str = "") -> Iterator[Site]:
    with (
        Faults(engine.url for engine in fleet.scripted) as faults,
        running_gateway(faults.urls, directory, more_settings=_SETTINGS + more_settings) as port,
    ):
        log = directory / "log"
        control_port = log.read_text().partition("control on port ")[2].split()[0]
        url, control_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control_port}"
        site = Site(url=url, control_url=control_url, log=log, faults=faults)
        yield site
        site.assert_books_balance()
