"""The traces that turns leave, by which later turns find them: one index per tenant.

Invariants: a key leads to at most `MAX_HOLDERS` turns, the newest; a trace that more turns share leads to
those, and that it is shared can be seen; removing a turn removes every way to it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gateway.workflow.turns import Turn

MAX_HOLDERS: Final = 8
MAX_TITLES: Final = 32

_Holders = dict[int, Turn | list[Turn]]


class Traces:
    """Of one tenant. What two tenants say alike never meets."""

    def __init__(self) -> None:
        self.sessions = 0
        """Those that leave traces here."""
        self.tails: _Holders = {}
        self.bodies: _Holders = {}
        self.minted: _Holders = {}
        self.texts: _Holders = {}
        self.marks: _Holders = {}
        self.counting: set[int] = set()
        """Client software whose transport says how often it asked."""
        self.titles: list[tuple[Turn, frozenset[int]]] = []
        """Conversations that may be side requests of sessions yet to come, with all that they say."""

    def add_arrival(self, turn: Turn) -> None:
        _add(self.tails, turn.tail, turn)
        _add(self.bodies, turn.body, turn)
        for mark in turn.asked:
            _add(self.marks, mark, turn)

    def add_answer(self, turn: Turn) -> None:
        """What was answered can only be repeated by a new request; what failed may be asked again."""
        if not turn.has_failed:
            _remove(self.bodies, turn.body, turn)
        if turn.text and not turn.calls:  # calls are recognised by their ids
            _add(self.texts, turn.text, turn)
        for mark in _answer_marks(turn):
            _add(self.marks, mark, turn)

    def add_minted(self, turn: Turn, minted: int) -> None:
        _add(self.minted, minted, turn)

    def add_title(self, turn: Turn, probes: frozenset[int]) -> None:
        self.titles.append((turn, probes))
        if len(self.titles) > MAX_TITLES:
            del self.titles[0]

    def drop_titles(self, *, before_s: float) -> None:
        while self.titles and self.titles[0][0].arrived_s < before_s:
            del self.titles[0]

    def remove_marks(self, turn: Turn) -> None:
        """The turn can no longer be recognised by a quote; forgets what it said, too."""
        for mark in {*turn.asked, *_answer_marks(turn)}:
            _remove(self.marks, mark, turn)
        turn.asked = turn.said = ()
        turn.handed = ()

    def remove(self, turn: Turn) -> None:
        self.titles = [title for title in self.titles if title[0] is not turn]
        self.remove_marks(turn)
        _remove(self.tails, turn.tail, turn)
        _remove(self.bodies, turn.body, turn)
        _remove(self.texts, turn.text, turn)
        self.remove_minted(turn, turn.minted)

    def remove_minted(self, turn: Turn, ids: Iterable[int]) -> None:
        for minted in ids:
            _remove(self.minted, minted, turn)


def holders(index: _Holders, key: int) -> tuple[Turn, ...] | list[Turn]:
    """The turns that left this trace, oldest first."""
    found = index.get(key)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _answer_marks(turn: Turn) -> Iterator[int]:
    yield from turn.said
    for marks in turn.handed:
        yield from marks


def _add(index: _Holders, key: int, turn: Turn) -> None:
    found = index.get(key)
    if found is None:
        index[key] = turn
    elif isinstance(found, list):
        if turn not in found:
            found.append(turn)
            if len(found) > MAX_HOLDERS:
                del found[0]
    elif found is not turn:
        index[key] = [found, turn]


def _remove(index: _Holders, key: int, turn: Turn) -> None:
    found = index.get(key)
    if found is turn:
        del index[key]
    elif isinstance(found, list) and turn in found:
        found.remove(turn)
        if len(found) == 1:
            index[key] = found[0]
