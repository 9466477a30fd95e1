"""An answer whose text and arguments are at hand: how it calls its tools is read when somebody asks."""

from collections.abc import Sequence

from gateway.domain.request import Manner, Utterance
from gateway.identity.tool_call_style import read_manner


class Spoken(Utterance):
    __slots__ = ("_arguments", "_manner", "_text")

    def __init__(self, text: int, spoken: str, arguments: Sequence[bytes]) -> None:
        self.text, self.chars = text, len(spoken)
        self._text = spoken
        self._arguments = arguments
        self._manner: Manner | None = None

    @property
    def manner(self) -> Manner:
        if self._manner is None:
            self._manner = read_manner(self._text, self._arguments)
            self._text, self._arguments = "", ()
        return self._manner
