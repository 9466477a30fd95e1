"""Turns a request's prompt tokens into the playback of its scripted reply.

The one place where the script file, the tokenizer and the request meet. It runs in the process
that samples, once per request; both model runners' adapters use it.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from scripted_engine.chatml import read_prompt
from scripted_engine.playback import Playback, Vocabulary
from scripted_engine.script import ScriptBook, ScriptError, load

SCRIPT_VARIABLE = "TURNPIKE_SCRIPT"
"""Environment variable: the path of the script file. The processor does not start without it."""

_CLOSERS = ('"', "}", "]", "</tool_call>", ":", "0", ",", "\n")
_log = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What a tokenizer must offer; Hugging Face's do."""

    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


class ScriptFile:
    """A script file that is read again when it has changed.

    So a running engine can be given new scripts. A changed file that is not a valid script is
    logged and the last good one stays in force; the first read raises ``ScriptError``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._stat()
        self._book = load(path)

    def book(self) -> ScriptBook:
        version = self._stat()
        if version != self._version:
            self._version = version
            try:
                self._book = load(self._path)
            except ScriptError as error:
                _log.error("kept the previous script: %s", error)
        return self._book

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class Voice:
    """Answers "what does this request say?" for every request of one engine."""

    def __init__(self, script: ScriptFile, tokenizer: Tokenizer) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("a scripted engine needs a tokenizer with an end-of-turn token")
        self._script = script
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_token_id
        self._closers = tuple(ids[0] for text in _CLOSERS if len(ids := self._encode(text)) == 1)
        self._blank = self._encode(" ")[0]
        self._encoded: dict[str, list[int]] = {}

    @classmethod
    def from_config(cls, vllm_config: Any) -> "Voice":
        """The voice of an engine: script from ``TURNPIKE_SCRIPT``, tokenizer from the model."""
        from vllm.tokenizers import cached_tokenizer_from_config

        path = os.environ.get(SCRIPT_VARIABLE)
        if not path:
            raise ScriptError(f"the scripted processor is on, but {SCRIPT_VARIABLE} is not set")
        tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        return cls(ScriptFile(Path(path)), tokenizer)

    def playback(
        self, prompt_ids: Sequence[int] | None, produced: Sequence[int], params: Any
    ) -> Playback | None:
        """The request's playback; None leaves the request to the model.

        ``produced`` are the tokens of a request that is taken up again after a preemption.
        """
        if prompt_ids is None:
            return None
        text = self._tokenizer.decode(prompt_ids, skip_special_tokens=False)
        reply = self._script.book().reply(read_prompt(text))
        if reply is None:
            return None
        end = getattr(params, "eos_token_id", None)
        end = self._end if end is None else end
        constrained = params.structured_outputs is not None
        playback = Playback(
            [self._encode_once(form) for form in (reply if constrained else reply[:1])],
            Vocabulary(end, self._blank, (end, *self._closers)),
            constrained,
        )
        if constrained:
            playback.resume(produced)
        return playback

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _encode_once(self, text: str) -> list[int]:
        if text not in self._encoded:
            if len(self._encoded) >= 1024:
                self._encoded.clear()
            self._encoded[text] = self._encode(text)
        return self._encoded[text]
