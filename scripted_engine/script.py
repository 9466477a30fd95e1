"""The script: what an engine says, written down before it is asked.

A script file is JSON (comments are not)::

    {
      "default": {"turns": [{"text": "This conversation has no script."}]},
      "scripts": {
        "fix-bug": {
          "turns": [
            {"text": "I look first.",
             "tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]},
            {"text": "Fixed."}
          ],
          "without_tools": "Fix the bug",
          "final": "Nothing is left to do."
        }
      }
    }

Which reply a prompt gets (``ScriptBook.reply``), from the prompt alone and never from a hash of
it, because tool output varies:

* The first ``[[script:NAME]]`` in the user's texts names the script. No marker, or a name the
  file lacks: ``default``. ``"default": null`` leaves such conversations to the model (noise);
  a file that does not mention ``default`` gets a short built-in one.
* The number of assistant turns already in the prompt picks the turn. Neighbouring assistant
  messages are one turn (the Responses and Messages routes split text and calls).
* Past the last turn the reply is ``final``; without it the last turn's text if that turn calls
  nothing, else ``"Done."``.
* A script that calls tools, asked in a chat that offers none (a title, a compaction): its
  ``without_tools``; without that the turn's text, then the final text. The turn is not used up:
  only what the prompt shows counts.
* A raw completion (no chat template) gets turn 0 as written, tool calls included.

Standard library only: usable where vLLM is not installed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted_engine.chatml import Prompt

MARKER = re.compile(r"\[\[script:([A-Za-z0-9._-]+)\]\]")
"""What a user text must contain to choose a script."""

_DONE = "Done."


class ScriptError(ValueError):
    """The script file is not one; the message says where and why."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a turn. Under ``tool_choice: required`` the arguments must be in the order of
    the tool's schema, because the engine's grammar insists on it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One assistant turn: text, calls, or text and then calls."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Script:
    """The turns of one conversation."""

    turns: tuple[Turn, ...]
    without_tools: str | None = None
    final: str | None = None

    @property
    def calls_tools(self) -> bool:
        return any(turn.tool_calls for turn in self.turns)

    @property
    def last_words(self) -> str:
        """What is said once the turns are used up, however often it is asked."""
        if self.final is not None:
            return self.final
        last = self.turns[-1]
        return _DONE if last.tool_calls else last.text

    def turn_for(self, prompt: Prompt) -> Turn:
        """The turn this prompt asks for; see the module docstring for the rules."""
        past_end = prompt.assistant_turns >= len(self.turns)
        turn = Turn(self.last_words) if past_end else self.turns[prompt.assistant_turns]
        if prompt.is_chat and not prompt.offers_tools and self.calls_tools:
            if self.without_tools is not None:
                return Turn(self.without_tools)
            return Turn(turn.text or self.last_words)
        return turn


BUILT_IN_DEFAULT = Script((Turn("This conversation names no script."),))


@dataclass(frozen=True)
class ScriptBook:
    """All scripts of a file, and what to say where none applies."""

    scripts: Mapping[str, Script]
    default: Script | None = BUILT_IN_DEFAULT

    def reply(self, prompt: Prompt) -> tuple[str, ...] | None:
        """The reply's renderings, the wanted one first; None leaves the prompt to the model.

        The later renderings say the same in the forms a grammar may insist on (``renderings``).
        """
        script = self._script_for(prompt)
        return None if script is None else renderings(script.turn_for(prompt))

    def _script_for(self, prompt: Prompt) -> Script | None:
        for text in prompt.user_texts:
            if found := MARKER.search(text):
                return self.scripts.get(found[1], self.default)
        return self.default


def render_hermes(turn: Turn) -> str:
    """The turn as a hermes model writes it: the text, then a ``<tool_call>`` block per call."""
    blocks = [turn.text] if turn.text else []
    for call in turn.tool_calls:
        body = _json({"name": call.name, "arguments": dict(call.arguments)})
        blocks.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(blocks)


def renderings(turn: Turn) -> tuple[str, ...]:
    """The turn as hermes text, then the forms that constrained decoding may ask for instead.

    In order: the calls without the text, the same with nothing between them (how vLLM spells
    ``tool_choice: "required"`` for hermes), the JSON array it asks of other parsers, each call
    alone and each call's bare arguments (a named tool choice), the bare text.
    """
    forms = [render_hermes(turn)]
    if turn.tool_calls:
        calls = turn.tool_calls
        alone = [render_hermes(Turn(tool_calls=(call,))) for call in calls]
        forms += ["\n".join(alone), "".join(alone)]
        forms.append(_json([{"name": c.name, "parameters": dict(c.arguments)} for c in calls]))
        forms += alone
        forms += [_json(dict(call.arguments)) for call in calls]
        forms.append(turn.text)
    return tuple(dict.fromkeys(form for form in forms if form))


def load(path: Path) -> ScriptBook:
    """Read a script file. Raises ``ScriptError`` if it cannot be read or is not a script."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScriptError(f"{path}: {error}") from error
    try:
        return parse(document)
    except ScriptError as error:
        raise ScriptError(f"{path}: {error}") from error


def parse(document: object) -> ScriptBook:
    """Check a decoded script file. Raises ``ScriptError`` that names the offending place."""
    top = _object(document, "the file", {"default", "scripts"})
    entries = _object(top.get("scripts", {}), "scripts", None)
    for name in entries:
        if not MARKER.fullmatch(f"[[script:{name}]]"):
            raise ScriptError(f"scripts: the name {name!r} does not fit [[script:NAME]]")
    scripts = {name: _script(entry, f"scripts.{name}") for name, entry in entries.items()}
    default: Script | None = BUILT_IN_DEFAULT
    if "default" in top:
        default = None if top["default"] is None else _script(top["default"], "default")
    return ScriptBook(scripts, default)


def _script(value: object, where: str) -> Script:
    entry = _object(value, where, {"turns", "without_tools", "final"})
    turns = entry.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ScriptError(f"{where}.turns: must be a list of at least one turn")
    return Script(
        tuple(_turn(turn, f"{where}.turns[{index}]") for index, turn in enumerate(turns)),
        _text(entry, "without_tools", where),
        _text(entry, "final", where),
    )


def _turn(value: object, where: str) -> Turn:
    entry = _object(value, where, {"text", "tool_calls"})
    calls = entry.get("tool_calls", [])
    if not isinstance(calls, list):
        raise ScriptError(f"{where}.tool_calls: must be a list")
    turn = Turn(
        _text(entry, "text", where) or "",
        tuple(_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)),
    )
    if not turn.text and not turn.tool_calls:
        raise ScriptError(f"{where}: needs a text or a tool call")
    return turn


def _tool_call(value: object, where: str) -> ToolCall:
    entry = _object(value, where, {"name", "arguments"})
    name = _text(entry, "name", where)
    if not name:
        raise ScriptError(f"{where}.name: missing")
    return ToolCall(name, _object(entry.get("arguments", {}), f"{where}.arguments", None))


def _object(value: object, where: str, known: set[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScriptError(f"{where}: must be an object, not {type(value).__name__}")
    if known is not None and (unknown := sorted(set(value) - known)):
        raise ScriptError(f"{where}: unknown {', '.join(unknown)} (known: {sorted(known)})")
    return value


def _text(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, str):
        raise ScriptError(f"{where}.{key}: must be a string")
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
