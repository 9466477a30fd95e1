"""How a response calls its tools: their names, if only its text has them, and the calls' first words.

Applications without native calls use protocols of their own inside the text: ReAct (`Action: NAME` and
`Action Input:`), tags (`<function=NAME>`, `<invoke name="NAME">`, `<tool_call>{"name": …}`), or a single code
block. A code block may as well be an example for a person; `gateway/tool_probe/text_calls.py` learns which.

Invariants: a text without calls costs a few searches; at most `_MAX_NAMES` names of at most
`_MAX_NAME` characters.
"""

import re
from collections.abc import Sequence
from typing import Final

from gateway.domain.request import NO_TOOL_CALL_STYLE, ToolCallStyle
from gateway.wire.hashing import digest

_MAX_NAMES: Final = 16
_MAX_NAME: Final = 64
_MAX_WORD: Final = 16
_NEAR_END: Final = 40
# Characters of a call that are looked at.
_NEAR: Final = 200
# Characters in which the first word is looked for.
_MAX_SKIPPED: Final = 4096

_ACTION: Final = re.compile(r"^[ \t>*]*Action:(.*)$", re.MULTILINE)
_ACTION_NAME: Final = re.compile(r"[\w.\- ]{1,64}")
_INPUT: Final = "Action Input:"
_TAGS: Final = (
    ("<function=", re.compile(r"<function=([\w.\-]{1,64})>")),
    ("<invoke ", re.compile(r"<invoke\s+name=[\"']([\w.\-]{1,64})[\"']")),
    ("<tool_call>", re.compile(r"<tool_call>\s*\{[^{}]{0,80}\"name\"\s*:\s*\"([\w.\-]{1,64})\"")),
)
_FENCE: Final = "```"
_SHELLS: Final = frozenset(("bash", "sh", "shell", "mswea_bash_command", "console"))
_CODE: Final = frozenset(("python", "py"))
# What stands before the command that a shell is to run.
_SKIPPED: Final = re.compile(
    r"(?:\s|\\n|cd\s+[^\s;&]+\s*(?:&&|;)|[A-Za-z_]\w*=[^\s\"]*\s|source\s+\S+\s*&&)+"
)
_WORD: Final = re.compile(r"[A-Za-z_][\w.\-]*|[/~.]")
_WORD_AND_NEXT: Final = re.compile(r"(\w+)(\W?)")
_VALUE: Final = re.compile(r"\s*\{\s*\"[^\"]*\"\s*:\s*\"?")


def read_tool_call_style(response_text: str, arguments: Sequence[bytes]) -> ToolCallStyle:
    if not response_text and not arguments:
        return NO_TOOL_CALL_STYLE
    if arguments:
        texts = [each[:_NEAR].decode("utf-8", "replace") for each in arguments[:_MAX_NAMES]]
        return ToolCallStyle(opening=_hash([_word(text, is_object=True) for text in texts]))
    names, words = _tagged(response_text) or _actions(response_text) or ([], [])
    if names:
        return ToolCallStyle(names=tuple(names), opening=_hash(words))
    block, close = _only_block(response_text), _close(response_text)
    if block is None:
        return ToolCallStyle(close=close)
    name, code = block
    return ToolCallStyle(names=(name,), is_code=True, opening=_hash([_word(code)]), close=close)


def _close(response_text: str) -> int:
    found = _WORD_AND_NEXT.findall(response_text[-_NEAR_END:])
    if not found:
        return 0
    word, following = found[-1]
    return _hash([word.lower()[-_MAX_WORD:] + following])


def _tagged(response_text: str) -> tuple[list[str], list[str]] | None:
    for tag, pattern in _TAGS:
        if tag in response_text:
            names = list(dict.fromkeys(pattern.findall(response_text)))[:_MAX_NAMES]
            if names:
                return names, names
    return None


def _actions(response_text: str) -> tuple[list[str], list[str]] | None:
    if _INPUT not in response_text:
        return None
    for line in _ACTION.finditer(response_text):
        name = line[1].strip(" \t").lstrip('`*["').rstrip('`*]"').strip(" ")
        if _ACTION_NAME.fullmatch(name) is None:
            continue
        at = response_text.find(_INPUT, line.end())
        if at < 0:
            return None
        return [name[:_MAX_NAME]], [_word(response_text[at + len(_INPUT) :][:_NEAR], is_object=True)]
    return None


def _only_block(response_text: str) -> tuple[str, str] | None:
    """The name of a tool, and what it is to run: of an answer with exactly one code block."""
    parts = response_text.split(_FENCE, 3)
    if len(parts) != 3:
        return None
    kind, _, code = parts[1].partition("\n")
    kind = kind.strip().lower()
    if kind in _SHELLS:
        return "bash", code[:_NEAR]
    if kind in _CODE:
        return "python", code[:_NEAR]
    word = _word(code[:_NEAR]) if not kind else ""
    return (word, code[:_NEAR]) if word else None


def _word(text: str, *, is_object: bool = False) -> str:
    """The first one; `is_object`: of the first value of an object's text, unless it is none after all."""
    value = _VALUE.match(text) if is_object else None
    text = text[value.end() if value is not None else 0 :][:_MAX_SKIPPED]
    skipped = _SKIPPED.match(text)
    found = _WORD.match(text, skipped.end() if skipped is not None else 0)
    return found[0][:_MAX_WORD] if found is not None else ""


def _hash(words: Sequence[str]) -> int:
    joined = words[0] if len(words) == 1 else ",".join(sorted(set(words)))
    return digest(joined.encode("utf-8", "replace")) if joined else 0
