"""Calls in the text of an answer: is a code block a tool call, or meant for a person?

Source: ours. ReAct's `Action:` and tags in angle brackets are calls wherever they stand. A code block is one
if its agent's program runs it, and that shows in what comes back: programs begin or end all of their
observations alike (`<returncode>`, `Observation:`, a shell's prompt), people do not.

Symbols: —

Deviations: how the observations of one agent type look is remembered, and recognised behind another's.

Invariants: an agent type's code blocks count from the moment that two observations in a row, each behind a
code block of the same thread, looked alike; at most `_MAX_TYPES` types are remembered. An agent that offers
native tools makes no calls in text.
"""

from collections import OrderedDict
from typing import Final

from gateway.domain.request import Answer, RequestFacts

_MAX_TYPES: Final = 1024
_MAX_LOOKS: Final = 256


class TextCalls:
    def __init__(self) -> None:
        self._runs_code: OrderedDict[int, None] = OrderedDict()
        """Agent types whose code blocks are run."""
        self._looks: OrderedDict[int, None] = OrderedDict()
        """How what comes back from them looks."""

    def __len__(self) -> int:
        return len(self._runs_code)

    def names(self, agent: int, facts: RequestFacts, answer: Answer) -> tuple[str, ...]:
        """Of the tools that the answer's text asks for."""
        if facts.tool_count or answer.tool_calls:
            return ()
        manner = answer.utterance.manner
        if manner.is_code and agent not in self._runs_code:
            return ()
        return manner.names

    def observed(self, agent: int, before: tuple[int, ...], now: tuple[int, ...]) -> bool:
        """Behind two code blocks in a row stood texts that look like this. Whether the type is known to run
        code."""
        if agent in self._runs_code:
            self._runs_code.move_to_end(agent)
            return True
        alike = [one for one, other in zip(now, before, strict=False) if one == other]
        if not alike and not any(look in self._looks for look in now):
            return False
        _remember(self._looks, alike, _MAX_LOOKS)
        _remember(self._runs_code, [agent], _MAX_TYPES)
        return True


def _remember(among: OrderedDict[int, None], new: list[int], most: int) -> None:
    for each in new:
        among[each] = None
    while len(among) > most:
        among.popitem(last=False)
