"""A gateway as a user starts it, in front of a real scripted engine and a real embedding engine."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import EMBEDDER, MODEL, Fleet
from tests.gateways import running_gateway
from tests.transparency.tee import Tee

SCRIPTS = {
    "scripts": {
        "talk": {"turns": [{"text": "Good evening. This is a reply of some length, so that it has deltas."}]},
        "tools": {
            "turns": [
                {
                    "text": "I look first.",
                    "tool_calls": [
                        {"name": "bash", "arguments": {"command": "ls -la"}},
                        {"name": "bash", "arguments": {"command": 'echo "naïve ✓"'}},
                    ],
                },
                {"text": "Done, both of them."},
            ]
        },
    }
}


@dataclass(frozen=True)
class Route:
    """From the client to an engine: directly, or through the gateway and a tee."""

    gateway_port: int
    engine_port: int
    tee: Tee


@pytest.fixture(scope="session")
def paths(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Route]]:
    """By model: the scripted engine and the embedding one, each behind a gateway of its own."""
    fleet.play(SCRIPTS)
    engines = {MODEL: fleet.scripted[0].port, EMBEDDER: fleet.embedder.port}
    directory = tmp_path_factory.mktemp("gateways")
    with (
        Tee(engines[MODEL]) as scripted,
        Tee(engines[EMBEDDER]) as embedder,
        _gateway(scripted, directory / "scripted") as scripted_port,
        _gateway(embedder, directory / "embedder") as embedder_port,
    ):
        yield {
            MODEL: Route(scripted_port, engines[MODEL], scripted),
            EMBEDDER: Route(embedder_port, engines[EMBEDDER], embedder),
        }


# Replicas are looked at once at the start and never later: the tee keeps only what a test sends.
_ONE_HEALTH_CHECK = "[upstream]\nhealth_period_s = 86400\nengine_period_s = 86400\n"


def _gateway(tee: Tee, directory: Path) -> AbstractContextManager[int]:
    backends = [f"http://127.0.0.1:{tee.port}"]
    return running_gateway(backends, directory, more_settings=_ONE_HEALTH_CHECK)
