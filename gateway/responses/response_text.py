"""A response's utterance with its text: the style of its tool calls is read on first use."""

from collections.abc import Sequence

from gateway.domain.request import ToolCallStyle, Utterance
from gateway.identity.tool_call_style import read_tool_call_style


class ResponseText(Utterance):
    __slots__ = ("_arguments", "_text", "_tool_call_style")

    def __init__(self, text: int, response_text: str, arguments: Sequence[bytes]) -> None:
        self.text, self.chars = text, len(response_text)
        self._text = response_text
        self._arguments = arguments
        self._tool_call_style: ToolCallStyle | None = None

    @property
    def tool_call_style(self) -> ToolCallStyle:
        if self._tool_call_style is None:
            self._tool_call_style = read_tool_call_style(self._text, self._arguments)
            self._text, self._arguments = "", ()
        return self._tool_call_style
