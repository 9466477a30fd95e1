"""vLLM's own API servers on the CPU, as they come, with a tiny model and a small KV cache."""

import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.live import launch
from benchmarks.processes import BenchmarkError
from lab.engine import tiny_model
from scripted_engine.process import EngineOptions, ScriptedEngine

MODEL: Final = "tiny"
KV_BLOCKS: Final = 1_000
BLOCK: Final = 32
LONGEST: Final = 8_192
_EMPTY_WITHIN_S: Final = 60.0
_WARM_UP_WORDS: Final = (400, 2_000, 5_000)


@dataclass(frozen=True, kw_only=True)
class StockOptions(EngineOptions):
    """Without what scripted engines add, and started as vLLM starts itself."""

    def command(self, model: Path, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--load-format", "dummy", "--enforce-eager"),
            *("--served-model-name", *self.served_model_names),
            *("--host", self.host, "--port", str(port)),
            *("--max-model-len", str(self.max_model_len), "--block-size", str(self.block_size)),
            *self.extra_args,
        ]


def stock_engines(
    stack: ExitStack,
    replicas: int,
    *,
    kv_blocks: int = KV_BLOCKS,
    name: str = MODEL,
    flags: Sequence[str] = (),
) -> tuple[list[str], Path]:
    """Started side by side, each on a core of its own as far as there are as many, and warmed up.

    Their URLs, and the directory of the model, which is the tokenizer's too. They end with `stack`.
    """
    model = tiny_model.build()
    options = StockOptions(
        model=model,
        served_model_names=(name,),
        max_model_len=LONGEST,
        block_size=BLOCK,
        extra_args=("--num-gpu-blocks-override", str(kv_blocks), *flags),
        extra_env={"VLLM_SERVER_DEV_MODE": "1"},  # for `/reset_prefix_cache`
    )
    engines = [ScriptedEngine({"scripts": {}}, options) for _ in range(replicas)]
    launch(stack, engines)
    for engine in engines:
        warm_up(engine.url, name)
    return [engine.url for engine in engines], model


def empty(engines: Sequence[str]) -> None:
    """Their prefix caches; waits for requests that still run."""
    until = time.monotonic() + _EMPTY_WITHIN_S
    for url in engines:
        while not _reset(url):
            if time.monotonic() > until:
                raise BenchmarkError(f"the prefix cache of {url} cannot be emptied: requests still run")
            time.sleep(0.2)


class PrefixCache(msgspec.Struct, frozen=True):
    """What engines have counted since they started, in tokens, all together."""

    queries: float
    hits: float

    @classmethod
    def of(cls, engines: Sequence[str]) -> "PrefixCache":
        return cls.read(metrics(engines))

    @classmethod
    def read(cls, texts: Sequence[str]) -> "PrefixCache":
        return cls(
            total(texts, "vllm:prefix_cache_queries_total"), total(texts, "vllm:prefix_cache_hits_total")
        )

    def hit_rate_since(self, before: "PrefixCache") -> float:
        return (self.hits - before.hits) / max(1.0, self.queries - before.queries)


def metrics(engines: Sequence[str]) -> list[str]:
    """What each tells, as text."""
    return [_get(f"{url}/metrics") for url in engines]


def total(texts: Sequence[str], name: str) -> float:
    """Of all samples of this name."""
    lines = [line for text in texts for line in text.splitlines() if line.startswith(f"{name}{{")]
    if not lines:
        raise BenchmarkError(f"an engine's metrics lack {name}")
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def warm_up(url: str, model: str = MODEL) -> None:
    """The first prompts of a server take longer; none of them is measured."""
    for words in _WARM_UP_WORDS:
        messages = [{"role": "user", "content": " and" * words}]
        body = {"model": model, "messages": messages, "max_tokens": 30, "ignore_eos": True}
        _post(f"{url}/v1/chat/completions", json.dumps(body).encode())


def _reset(url: str) -> bool:
    """Whether it was emptied."""
    return bool(json.loads(_post(f"{url}/reset_prefix_cache", b""))["success"])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read()).decode()


def _post(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())
