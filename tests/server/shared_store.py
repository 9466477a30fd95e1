"""Real vLLM servers on the CPU that hand over KV caches, with a tiny model.

Through a store that they share (vLLM's `ExampleConnector`), which loads a prompt only as a whole, and stores
one only that was computed in a single step.
"""

import json
import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lab.engine import tiny_model
from scripted_engine.process import EngineOptions, ScriptedEngine

MODEL: Final = "attentive"
POOL: Final = "pool"


def attentive_model(at: Path) -> Path:
    """The tiny model with weights by which what it says depends on all of the prompt; with dummy ones it says
    the same behind any."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(tiny_model.build(), at)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(at))
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() < 2:
                weights.fill_(4.0 if "q_norm" in name else 1.0)
            else:
                weights.normal_(0.0, 0.2 if "embed" in name else weights.shape[1] ** -0.5)
    model.save_pretrained(at)
    return at


class StoreEngines:
    """The first is for prompts. All of one model and one store; they end with `stack`."""

    def __init__(self, stack: ExitStack, at: Path, *, replicas: int) -> None:
        self.store = at / "store"
        self.store.mkdir()
        model = attentive_model(at / "model")
        self._engines = [ScriptedEngine({"scripts": {}}, self._options(model)) for _ in range(replicas)]
        for engine in self._engines:
            stack.callback(engine.stop)
            engine.launch()
        for engine in self._engines:
            engine.wait_healthy()
        self.urls = [engine.url for engine in self._engines]

    def _options(self, model: Path) -> EngineOptions:
        transfer = {
            "kv_role": "kv_both",
            "kv_connector": "ExampleConnector",
            "kv_connector_extra_config": {"shared_storage_path": str(self.store)},
        }
        return EngineOptions(
            model=model,
            served_model_names=(MODEL,),
            max_model_len=8_192,
            is_scripted=False,
            extra_args=(
                *("--load-format", "auto", "--dtype", "float32", "--num-gpu-blocks-override", "4000"),
                *("--max-num-batched-tokens", "8192"),
                *("--kv-transfer-config", json.dumps(transfer)),
            ),
        )

    def forget(self) -> None:
        """What is in the store; what an engine has in its own cache stays there."""
        for each in self.store.iterdir():
            shutil.rmtree(each)

    def tell(self, number: int, what: signal.Signals) -> None:
        process = self._engines[number]._process
        assert process is not None
        os.killpg(process.pid, what)

    def pool(self, decode: int) -> str:
        """Of a gateway's settings: the first engine for prompts, and so many that decode."""
        roles = ["prefill", *["decode"] * decode]
        replicas = ", ".join(
            f'{{ url = "{url}", role = "{role}" }}' for url, role in zip(self.urls, roles, strict=False)
        )
        return f'[[pools]]\nname = "{POOL}"\ntransfer = "shared_storage"\nreplicas = [{replicas}]\n'
