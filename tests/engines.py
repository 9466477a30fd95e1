"""Real engines for the tests that need them: started once a run, side by side, and shared.

Two scripted vLLM servers of one model, the second of which runs requests in the order of their priority, if
they state one; and one that embeds. A test that needs its own script gives it to
the engines with `Fleet.play`.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from scripted_engine.process import EngineOptions, ScriptedEngine

MODEL, EMBEDDER = "scripted", "embedder"


@dataclass(frozen=True)
class Fleet:
    scripted: tuple[ScriptedEngine, ...]
    embedder: ScriptedEngine

    def play(self, scripts: Mapping[str, Any]) -> None:
        for engine in self.scripted:
            engine.play(scripts)


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    scripted = [
        ScriptedEngine({"scripts": {}}, EngineOptions(served_model_names=(MODEL,), extra_args=more))
        for more in ((), ("--scheduling-policy", "priority"))
    ]
    embedder = ScriptedEngine(
        {"scripts": {}},
        EngineOptions(
            served_model_names=(EMBEDDER,),
            max_model_len=4096,
            is_scripted=False,
            extra_args=("--runner", "pooling", "--convert", "embed"),
        ),
    )
    with ExitStack() as stack:
        engines = [*scripted, embedder]
        for engine in engines:
            stack.callback(engine.stop)
            engine.launch()
        for engine in engines:
            engine.wait_healthy()
        yield Fleet(tuple(scripted), embedder)
