"""Calls in the text of an answer: is a code block a tool call, or meant for a person?

Source: ours. ReAct's `Action:` and tags in angle brackets are always calls. A code block is one if its
agent's program runs it; the evidence is the next message: programs begin or end all observations alike
(`<returncode>`, `Observation:`, a shell's prompt), people do not.

Deviations: the look of one agent type's observations is also recognised after another's. Until a type is
known to run its code, its blocks are calls in doubt; then those with observations are reported late, with
their durations.

Invariants: an agent type's code blocks count after two observations in a row with the same look, each after a
code block of the same thread; state is per tenant: at most `_MAX_TYPES` types, each with at most
`_MAX_WAITING` calls in doubt. An agent with native tools makes no calls in text.
"""

from collections import OrderedDict, deque
from typing import Any, Final

import msgspec

from gateway.domain.ids import RequestId, SessionId
from gateway.domain.request import Answer, NewItems, RequestFacts

_MAX_TYPES: Final = 64
_MAX_LOOKS: Final = 256
_MAX_WAITING: Final = 32
_MAX_OPEN: Final = 512


class Block(msgspec.Struct, frozen=True):
    """A code block of an answer, perhaps a call."""

    agent: int
    session: SessionId
    names: tuple[str, ...]
    ended_s: float


class LateCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls recognised by their observations."""

    agent: int
    session: SessionId
    names: tuple[str, ...]
    made_by: RequestId
    """The turn with the calls."""
    came: RequestId
    came_s: float
    duration_s: float
    new: NewItems


class TextCalls:
    def __init__(self) -> None:
        # Agent types.
        self._runs_code: OrderedDict[int, None] = OrderedDict()
        # Of their observations.
        self._looks: OrderedDict[int, None] = OrderedDict()
        # Calls in doubt without an observation.
        self.doubts: OrderedDict[RequestId, Block] = OrderedDict()
        # Calls in doubt with one, by agent type.
        self._in_doubt: OrderedDict[int, deque[LateCalls]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs_code)

    def names(self, agent: int, facts: RequestFacts, answer: Answer) -> tuple[str, ...]:
        if facts.tool_count or answer.tool_calls:
            return ()
        style = answer.utterance.tool_call_style
        if style.is_code and agent not in self._runs_code:
            return ()
        return style.names

    def observed(self, agent: int, before: tuple[int, ...], now: tuple[int, ...]) -> bool:
        """`before`, `now`: looks of the texts after two code blocks in a row. Returns whether the type is
        known to run code."""
        if agent in self._runs_code:
            self._runs_code.move_to_end(agent)
            return True
        alike = [one for one, other in zip(now, before, strict=False) if one == other]
        if not alike and not any(look in self._looks for look in now):
            return False
        _remember(self._looks, alike, _MAX_LOOKS)
        _remember(self._runs_code, [agent], _MAX_TYPES)
        return True

    def doubted(self, turn: RequestId, block: Block) -> None:
        self.doubts[turn] = block
        if len(self.doubts) > _MAX_OPEN:
            self.doubts.popitem(last=False)

    def came(self, went_on: RequestId, turn: RequestId, new: NewItems, *, now: float) -> list[LateCalls]:
        block = self.doubts.pop(went_on, None)
        if block is None:
            return []
        waiting = self._in_doubt.setdefault(block.agent, deque(maxlen=_MAX_WAITING))
        waiting.append(
            LateCalls(
                agent=block.agent,
                session=block.session,
                names=block.names,
                made_by=went_on,
                came=turn,
                came_s=now,
                duration_s=now - block.ended_s,
                new=new,
            )
        )
        if block.agent in self._runs_code:
            return list(self._in_doubt.pop(block.agent))
        _trim(self._in_doubt, _MAX_TYPES)
        return []


def _remember(among: OrderedDict[int, None], new: list[int], most: int) -> None:
    for each in new:
        among[each] = None
    _trim(among, most)


def _trim(among: OrderedDict[int, Any], most: int) -> None:
    while len(among) > most:
        among.popitem(last=False)
