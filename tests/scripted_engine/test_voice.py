"""From prompt tokens to playback, with a tokenizer of one token a character."""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripted_engine.playback import Playback
from scripted_engine.script import ScriptError
from scripted_engine.voice import ScriptFile, Voice

END = 3


class CharacterTokenizer:
    eos_token_id: int | None = END

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        assert not skip_special_tokens, "the chat marks are special tokens"
        return "".join(map(chr, ids))


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


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def spoken(playback: Playback | None, length: int) -> list[int]:
    assert playback is not None
    return [playback.token_at(position) for position in range(length)]


def test_the_prompt_chooses_the_reply_and_the_tokenizer_ends_it(voice: Voice) -> None:
    assert spoken(voice.playback(ids("[[script:s]]"), [], params()), 4) == [*ids("Hi."), END]


def test_the_request_may_know_a_better_end(voice: Voice) -> None:
    assert spoken(voice.playback(ids("[[script:s]]"), [], params(end=0)), 4) == [*ids("Hi."), 0]


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


def test_a_preempted_request_under_a_grammar_is_taken_up_again(voice: Voice) -> None:
    on_script = voice.playback(ids("[[script:s]]"), ids("H"), params(grammar=True))
    off_script = voice.playback(ids("[[script:s]]"), ids("J"), params(grammar=True))
    assert on_script is not None
    assert off_script is not None
    assert on_script.constrained_token_at(1, lambda _: True) == ord("i")
    assert off_script.constrained_token_at(1, lambda token: token == ord("}")) == ord("}")


def test_a_changed_file_is_followed(path: Path, voice: Voice) -> None:
    write(path, "Ho.")
    assert spoken(voice.playback(ids("[[script:s]]"), [], params()), 3) == ids("Ho.")


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


def test_the_first_read_must_succeed(tmp_path: Path) -> None:
    with pytest.raises(ScriptError):
        ScriptFile(tmp_path / "nothing.json")


def test_a_tokenizer_without_an_end_is_refused(path: Path) -> None:
    tokenizer = CharacterTokenizer()
    tokenizer.eos_token_id = None
    with pytest.raises(ValueError, match="end-of-turn"):
        Voice(ScriptFile(path), tokenizer)


def test_many_different_replies_do_not_pile_up(path: Path, voice: Voice) -> None:
    for number in range(1100):
        write(path, f"reply {number}")
        voice.playback(ids("[[script:s]]"), [], params())
    assert len(voice._encoded) < 1100
