"""Fixtures of the engine plugin's tests."""

import json

import pytest

from tests.scripted_engine.host import Host


@pytest.fixture(scope="session")
def vllm_host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """vLLM's classes and a voice that knows the scripts hi ("Hi."), x ("xyz") and call (a tool call)."""
    path = tmp_path_factory.mktemp("script") / "script.json"
    turns = {
        "hi": {"text": "Hi."},
        "x": {"text": "xyz"},
        "call": {"text": "Hi.", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
    }
    scripts = {name: {"turns": [turn]} for name, turn in turns.items()}
    path.write_text(json.dumps({"default": None, "scripts": scripts}))
    return Host(path)
