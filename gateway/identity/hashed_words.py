"""Utterances in recordings: hashes alone."""

from typing import Any

import msgspec

from gateway.domain.request import NO_TOOL_CALL_STYLE, ToolCallStyle, Utterance


class UtteranceHashes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: int = 0
    chars: int = 0
    tool_call_style: ToolCallStyle = NO_TOOL_CALL_STYLE


class HashedUtterance(Utterance):
    __slots__ = ("tool_call_style",)
    tool_call_style: ToolCallStyle

    def __init__(self, hashes: UtteranceHashes) -> None:
        super().__init__(text=hashes.text, chars=hashes.chars)
        self.tool_call_style = hashes.tool_call_style


def hash_words(value: Any) -> Any:
    """An `enc_hook` of msgspec."""
    if isinstance(value, Utterance):
        return UtteranceHashes(text=value.text, chars=value.chars, tool_call_style=value.tool_call_style)
    raise NotImplementedError(f"{type(value).__name__} is not recorded")


def words_of_hashes(kind: type, value: Any) -> Any:
    """A `dec_hook` of msgspec."""
    if kind is Utterance:
        return HashedUtterance(msgspec.convert(value, UtteranceHashes))
    raise NotImplementedError(f"{kind.__name__} is not recorded")
