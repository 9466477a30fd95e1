"""vLLM's own classes around the adapters under test, imported late because that takes seconds.

vLLM's V2 model runner needs Triton and so does not run on a plain CPU; its request state and its
step context do, with the buffers that vLLM itself uses on a CPU.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VOCABULARY, END = 256, 3


class Host:
    """vLLM's classes, imported late, and a voice with three scripts."""

    def __init__(self, script: Path) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.np: Any = importlib.import_module("numpy")
        self.processor: Any = importlib.import_module("scripted_engine.processor")
        self.v1: Any = importlib.import_module("vllm.v1.sample.logits_processor")
        self.v2: Any = importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor")
        self.states: Any = importlib.import_module("vllm.v1.worker.gpu.states")
        self.sampling: Any = importlib.import_module("vllm.sampling_params")
        buffers: Any = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
        buffers.UvaBuffer = importlib.import_module("vllm.v1.worker.cpu.buffer_utils").UvaBuffer
        voice: Any = importlib.import_module("scripted_engine.voice")
        self.voice = voice.Voice(voice.ScriptFile(script), CharacterTokenizer())

    def params(self, *, grammar: bool = False) -> Any:
        structured = self.sampling.StructuredOutputsParams(json={}) if grammar else None
        return self.sampling.SamplingParams(structured_outputs=structured)

    def logits(self, rows: int) -> Any:
        return self.torch.randn(rows, VOCABULARY, generator=self.torch.Generator().manual_seed(0))


class CharacterTokenizer:
    eos_token_id: int | None = END

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        assert not skip_special_tokens, "the chat marks are special tokens"
        return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def sure_of(logits: Any, row: int) -> str | None:
    """The only token the row leaves possible, or None where the model still chooses."""
    possible = (logits[row] > float("-inf")).nonzero().flatten().tolist()
    return chr(possible[0]) if len(possible) == 1 else None
