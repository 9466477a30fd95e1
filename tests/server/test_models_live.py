"""Names of the operator's and LoRA adapters, with two real engines."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lab.engine import tiny_model
from scripted_engine.process import EngineOptions, ScriptedEngine
from tests.gateways import running_gateway

pytestmark = [pytest.mark.heavy, pytest.mark.engine]

SCRIPTS = {"scripts": {"talk": {"turns": [{"text": "Yes."}] * 4}}}
SETTINGS = """
[core]
no_replica_wait_s = 0
[upstream]
health_period_s = 0.2
[[models]]
name = "smart"
targets = [{ model = "left", weight = 50 }, { model = "right", weight = 50 }]
[[models]]
name = "safe"
targets = [{ model = "right" }]
fallbacks = ["left"]
"""
PROTOCOLS = ("chat/completions", "completions", "responses", "messages")


class Said(NamedTuple):
    status: int
    body: Any
    headers: Any


class Bench:
    def __init__(self, engines: list[ScriptedEngine], port: int) -> None:
        self.engines = engines
        self._url = f"http://127.0.0.1:{port}/v1/"

    def ask(self, model: str, session: str = "", protocol: str = PROTOCOLS[0], turn: int = 0) -> Said:
        said = [{"role": "user", "content": f"[[script:talk]] {session}"}]
        for _ in range(turn):
            said += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Sure?"}]
        body: dict[str, Any] = {"model": model, "max_tokens": 40, "messages": said}
        if protocol == "completions":
            body = {"model": model, "max_tokens": 40, "prompt": "[[script:talk]]"}
        elif protocol == "responses":
            body = {"model": model, "max_output_tokens": 40, "input": said, "store": False}
        return post(self._url + protocol, body, **({"x-turnpike-session": session} if session else {}))

    def listed(self) -> list[str]:
        with urllib.request.urlopen(self._url + "models", timeout=120) as answer:
            return [card["id"] for card in json.load(answer)["data"]]


def post(url: str, body: Any, **headers: str) -> Said:
    told = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), told)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Said(answer.status, json.loads(answer.read() or b"null"), answer.headers)
    except urllib.error.HTTPError as error:
        return Said(error.code, json.loads(error.read()), error.headers)


def tell(engine: ScriptedEngine, what: str, **adapter: str) -> None:
    url = f"{engine.url}/v1/{what}_lora_adapter"
    told = {"content-type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(adapter).encode(), told), timeout=120
    ).close()


def eventually(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def adapter(directory: Path, rank: int = 8) -> Path:
    import torch  # here, for it takes seconds
    from safetensors.torch import save_file

    config = json.loads((tiny_model.build() / "config.json").read_text())
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.zeros(rank, config["hidden_size"])
        size = config["head_dim"] * config["num_attention_heads"]
        tensors[f"{name}.lora_B.weight"] = torch.zeros(size, rank)
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps({**said, "task_type": "CAUSAL_LM"}))
    return directory


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    engines = [
        ScriptedEngine(
            SCRIPTS,
            EngineOptions(
                served_model_names=(name, "both"),
                extra_args=("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "4"),
                extra_env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
            ),
        )
        for name in ("left", "right")
    ]
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.stop)
            engine.launch()
        for engine in engines:
            engine.wait_healthy()
        at = tmp_path_factory.mktemp("models") / "gateway"
        port = stack.enter_context(
            running_gateway([engine.url for engine in engines], at, more_settings=SETTINGS)
        )
        yield Bench(engines, port)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_name_leads_to_its_model_in_every_protocol(bench: Bench, protocol: str) -> None:
    said = bench.ask("safe", protocol=protocol)
    assert said.status == 200 and said.body["model"] == "right", "the engine's own word"
    assert said.headers["x-turnpike-model"] == "right"
    assert bench.ask("gone", protocol=protocol).status == 404


def test_a_run_stays_on_the_model_that_it_drew(bench: Bench) -> None:
    drawn: list[str] = []
    for run in range(12):
        models = {bench.ask("smart", f"run-{run}", turn=turn).body["model"] for turn in range(3)}
        assert len(models) == 1
        drawn += models
    assert {"left", "right"} == set(drawn)


def test_adapters_are_asked_for_where_they_are_while_they_come_and_go(bench: Bench, tmp_path: Path) -> None:
    at = str(adapter(tmp_path))
    places = [f"default-{number}" for number in range(2)]
    for engine, place in zip(bench.engines, places, strict=True):
        assert bench.ask("sql").status == 404, "the engines' own answer"
        tell(engine, "load", lora_name="sql", lora_path=at)
        eventually(lambda: "sql" in bench.listed())
        asked = [bench.ask("sql", f"sql-{place}-{number}") for number in range(6)]
        assert {(said.status, said.headers["x-turnpike-replica"]) for said in asked} == {(200, place)}
        assert {said.body["model"] for said in asked} == {"sql"}
        tell(engine, "unload", lora_name="sql")
        eventually(lambda: "sql" not in bench.listed())
        assert bench.ask("sql").status == 404


def test_a_run_falls_back_when_its_engine_is_gone(bench: Bench) -> None:
    """The last one: an engine goes."""
    assert bench.ask("safe", "begun").body["model"] == "right"
    bench.engines[1].stop()
    first, second = (bench.ask("safe", "new", turn=turn) for turn in range(2))
    assert (first.status, first.body["model"]) == (200, "left")
    assert first.headers["x-turnpike-fallback"] == "outage"
    assert second.headers["x-turnpike-fallback"] == "earlier"
    assert bench.ask("safe", "begun", turn=1).status in (502, 503), "it began on another model"
