"""The model directory: deterministic, complete, and a chat template that mirrors the replies."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from lab.engine import tiny_model
from scripted_engine import script

pytestmark = pytest.mark.slow

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
TEXTS = ["plain words", "  indented\n\n\tcode(x)[1:2]\n", '{"a": "é 日本 🎉"}', "\x00\x01\x7f", "<tool_call>"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    pytest.MonkeyPatch().setenv("HF_HUB_OFFLINE", "1")
    transformers = importlib.import_module("transformers")  # takes seconds
    return transformers.AutoTokenizer.from_pretrained(directory)


def test_building_again_does_nothing(directory: Path) -> None:
    before = (directory / "tokenizer.json").stat().st_mtime_ns
    assert tiny_model.build(directory) == directory
    assert (directory / "tokenizer.json").stat().st_mtime_ns == before


def test_a_stale_model_is_built_anew_and_equal(directory: Path) -> None:
    before = (directory / "tokenizer.json").read_bytes()
    (directory / "turnpike-fingerprint").write_text("old")
    (directory / "tokenizer.json").write_text("old")
    tiny_model.build(directory)
    assert (directory / "tokenizer.json").read_bytes() == before
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]


def test_the_default_directory_is_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tiny_model.default_directory().is_relative_to(tmp_path / "turnpike")


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_survives(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_the_ids_in_the_configuration_are_the_tokenizers(directory: Path, tokenizer: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    assert config["eos_token_id"] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert config["pad_token_id"] == tokenizer.pad_token_id
    assert config["vocab_size"] == len(tokenizer)


def test_english_and_code_take_few_tokens(tokenizer: Any) -> None:
    source = Path(script.__file__).read_text()
    assert len(source) / len(tokenizer.encode(source)) > 3.2


def render(tokenizer: Any, messages: list[dict[str, Any]], **more: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **more))


def test_a_reply_comes_back_as_the_tokens_that_were_produced(tokenizer: Any) -> None:
    """Else the next turn's prompt would not extend the cached prefix."""
    call = script.ToolCall("bash", {"command": 'echo "é"', "n": [1, {"a": None}]})
    for turn in (
        script.Turn("Hi."),
        script.Turn("I look.", (call,)),
        script.Turn("", (call, call)),
        script.Turn("Two\n\nlines", (call, call)),
    ):
        said = script.render_hermes(turn)
        content = said[: said.find("<tool_call>")] if turn.tool_calls else said  # as the parser cuts it
        calls = [
            {"type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in turn.tool_calls
        ]
        user = {"role": "user", "content": "go"}
        prompt = render(tokenizer, [user], tools=TOOLS, add_generation_prompt=True)
        message = {"role": "assistant", "content": content, "tool_calls": calls}
        following = render(tokenizer, [user, message], tools=TOOLS)
        produced = tokenizer.encode(prompt) + tokenizer.encode(said) + [tokenizer.eos_token_id]
        assert following == f"{prompt}{said}<|im_end|>\n"
        assert tokenizer.encode(following)[: len(produced)] == produced


def test_the_template_takes_what_clients_send(tokenizer: Any) -> None:
    text = render(
        tokenizer,
        [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
            },
            {"role": "user", "content": ["go ", {"type": "text", "text": "on"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "one", "tool_call_id": "1"},
            {"role": "tool", "content": [{"type": "text", "text": "two"}], "tool_call_id": "2"},
            {"role": "system", "content": "late"},
            {"role": "assistant", "content": "Done."},
        ],
        add_generation_prompt=True,
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
        "<|im_end|>\n<|im_start|>system\nlate<|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tools_stand_in_the_system_message(tokenizer: Any) -> None:
    text = render(tokenizer, [{"role": "user", "content": "go"}], tools=TOOLS)
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>" in text
    assert text.endswith("<|im_start|>user\ngo<|im_end|>\n")
