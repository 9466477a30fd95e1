"""LoRA adapters that come and go, with two real engines."""

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

pytestmark = [pytest.mark.alone, pytest.mark.engine]

SCRIPTS = {"scripts": {"talk": {"turns": [{"text": "Yes."}] * 4}}}
SETTINGS = "[upstream]\nhealth_period_s = 0.2\n"


class Said(NamedTuple):
    status: int
    body: Any
    headers: Any


class Bench:
    def __init__(self, engines: list[ScriptedEngine], port: int) -> None:
        self.engines = engines
        self._url = f"http://127.0.0.1:{port}/v1/"

    def ask(self, model: str, session: str = "") -> Said:
        said = [{"role": "user", "content": f"[[script:talk]] {session}"}]
        body = {"model": model, "max_tokens": 40, "messages": said}
        of = {"x-turnpike-session": session} if session else {}
        return post(self._url + "chat/completions", body, **of)

    def listed(self) -> list[str]:
        """By the gateway."""
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
    """Engines answer in words."""
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
    """One that changes nothing."""
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
