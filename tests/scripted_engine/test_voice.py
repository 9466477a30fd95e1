"""From prompt tokens to playback, with a tokenizer of one token a character."""

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripted_engine.playback import Playback
from scripted_engine.voice import ScriptFile, Voice
from tests.scripted_engine.host import END, CharacterTokenizer, ids


def params(*, grammar: bool = False, end: int | None = None) -> Any:
    return SimpleNamespace(structured_outputs=object() if grammar else None, eos_token_id=end)


def write(path: Path, text: str, **script: Any) -> None:
    """Write a script file, with a modification time of its own however fast the test runs."""
    stamp = path.stat().st_mtime_ns + 1_000_000 if path.exists() else 1_000_000_000
    path.write_text(json.dumps({"scripts": {"s": {"turns": [{"text": text}]}}, **script}))
    os.utime(path, ns=(stamp, stamp))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    write(path, "Hi.")
    return path


@pytest.fixture
def voice(path: Path) -> Voice:
    return Voice(ScriptFile(path), CharacterTokenizer())


def spoken(playback: Playback | None, length: int) -> list[int]:
    assert playback is not None
    return [playback.token_at(position) for position in range(length)]


def test_the_prompt_chooses_the_reply_and_the_tokenizer_ends_it(voice: Voice) -> None:
    assert spoken(voice.playback(ids("[[script:s]]"), [], params()), 4) == [*ids("Hi."), END]


def test_prompts_without_ids_or_reply_are_left_alone(path: Path) -> None:
    write(path, "Hi.", default=None)
    voice = Voice(ScriptFile(path), CharacterTokenizer())
    assert voice.playback(None, [], params()) is None
    assert voice.playback(ids("hello"), [], params()) is None


def test_only_a_request_under_a_grammar_gets_all_renderings(path: Path) -> None:
    turn = {"text": "x", "tool_calls": [{"name": "f"}]}
    write(path, "", scripts={"s": {"turns": [turn]}})
    voice = Voice(ScriptFile(path), CharacterTokenizer())
    free = voice.playback(ids("[[script:s]]"), [], params())
    bound = voice.playback(ids("[[script:s]]"), [], params(grammar=True))
    assert free is not None
    assert bound is not None
    assert (free.constrained, len(free.renderings)) == (False, 1)
    assert (bound.constrained, len(bound.renderings)) == (True, 5)


@pytest.mark.parametrize("breakage", ["garbage", "gone"])
def test_a_broken_file_is_reported_and_not_followed(
    path: Path, voice: Voice, caplog: pytest.LogCaptureFixture, breakage: str
) -> None:
    if breakage == "gone":
        path.unlink()
    else:
        path.write_text("{")
    with caplog.at_level(logging.ERROR):
        assert spoken(voice.playback(ids("[[script:s]]"), [], params()), 3) == ids("Hi.")
        assert spoken(voice.playback(ids("[[script:s]]"), [], params()), 3) == ids("Hi.")
    assert len(caplog.records) == 1
    write(path, "Back.")
    assert spoken(voice.playback(ids("[[script:s]]"), [], params()), 5) == ids("Back.")
