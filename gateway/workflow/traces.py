"""The traces that turns leave, by which later turns find them: one index per tenant.

Invariants: a key leads to at most `MAX_HOLDERS` turns, the newest; a trace that more turns share leads to
those, and that it is shared can be seen; removing a turn removes every way to it. Marks are read when
somebody searches: until then, a bounded number of turns keep their words.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gateway.domain.ids import SessionId, TenantId
from gateway.domain.request import NO_WORDS, Utterance, Words
from gateway.wire.memory import Memory
from gateway.workflow import evidence
from gateway.workflow.turns import Handed, Turn

MAX_HOLDERS: Final = 8
MAX_TITLES: Final = 32
MAX_PROBES: Final = 2**14
"""Marks of titles that are kept, over all tenants; each takes about a hundred bytes."""
MAX_UNREAD: Final = 2**20
"""Bytes of words that wait for somebody to search, over all tenants."""
MAX_WAITING: Final = 128
"""Turns of one tenant whose words wait; reading them all at once takes two milliseconds."""
AT_ONCE: Final = 16
"""Of these, so many are read together when there are too many: each takes half as long as between two turns,
when other code has filled the processor's caches. From 8 to 32 it makes no difference."""
MAX_KEPT: Final = 4096
"""Bytes of words that one turn keeps; of more, marks are made at once."""
WORN: Final = 32
"""A body that opened so many conversations in vain quotes nobody."""
_MAX_FRUITLESS: Final = 1024
_MAX_ANSWERS: Final = 2**14
MAX_TWINS: Final = 2**17
"""Names of what two gateways gave that are remembered, over all tenants: at least the newer half, two minutes
of 500 twins a second. They matter until the twins have gone on, and take 16 MB at most."""
MIN_SECRET_CHARS: Final = 64
"""A shorter answer may be one that any model gives to anybody (`Hello! How can I help you today?`)."""

Holders = dict[int, Turn | list[Turn]]


_NOBODY: Final = SessionId("")


class _Waiting(msgspec.Struct, eq=False):
    """A turn with words that nobody needed yet."""

    turn: Turn
    words: Words | None = None
    utterance: Utterance | None = None
    size: int = 0


class Unread:
    """What is kept until somebody searches, of all tenants together."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of words."""
        self.probes = 0
        """Marks that titles could carry."""
        self.titles: dict[int, tuple[Traces, Turn]] = {}


class Traces:
    """Of one tenant. What two tenants say alike never meets."""

    def __init__(self, unread: Unread | None = None, twins: Memory[bool] | None = None) -> None:
        """`twins`: names of what two gateways gave to sessions of their own, of all tenants."""
        self.sessions = 0
        self.tails: Holders = {}
        self.bodies: Holders = {}
        self.minted: Holders = {}
        self.texts: Holders = {}
        self.prompts: Holders = {}
        """Of what agents with tools were asked: side requests may be made of it."""
        self.asked: Holders = {}
        self.marks: Holders = {}
        """Of answers, and of what was handed to tools. These three are complete after `read_words`."""
        self.counting: set[int] = set()
        """Client software whose transport says how often it asked."""
        self.titles: list[tuple[Turn, frozenset[int]]] = []
        """Conversations that may be side requests of sessions yet to come, with all that they say."""
        self._fruitless: Memory[int] = Memory(_MAX_FRUITLESS)
        self._given: Memory[SessionId] = Memory(_MAX_ANSWERS)
        """Long answers, and whose they are: nobody's, once several sessions were given one."""
        self._unread = unread or Unread()
        self._twins = twins if twins is not None else Memory(MAX_TWINS)
        self._waiting: dict[int, _Waiting] = {}

    def add_arrival(self, turn: Turn, words: Words) -> None:
        """`words`: what it says, as long as it is not known whether anybody needs the marks of it."""
        _add(self.tails, turn.tail, turn)
        _add(self.bodies, turn.body, turn)
        if words is not NO_WORDS:
            self._keep(turn, words.size, words=words)

    def add_answer(self, turn: Turn, utterance: Utterance) -> None:
        """What was answered can only be repeated by a new request; what failed may be asked again."""
        if not turn.has_failed:
            _remove(self.bodies, turn.body, turn)
        if utterance.chars >= MIN_SECRET_CHARS:
            known = self._given.get(turn.text)
            self._given.put(turn.text, turn.session.id if known in (None, turn.session.id) else _NOBODY)
        if turn.text and not turn.calls:  # calls are recognised by their ids
            _add(self.texts, turn.text, turn)
        self._keep(turn, utterance.size, utterance=utterance)

    def adopt(self, turn: Turn, *, is_secret: bool) -> None:
        """A turn of another gateway's, which is over; `is_secret`: nobody else was given its answer."""
        _add(self.tails, turn.tail, turn)
        if turn.has_failed:
            _add(self.bodies, turn.body, turn)
        if is_secret:
            self._given.put(turn.text, turn.session.id)
        if turn.text and not turn.calls:
            _add(self.texts, turn.text, turn)
        for minted in turn.minted:
            self.add_minted(turn, minted)

    def has_twin(self, turn: Turn) -> bool:
        session = turn.session
        for minted in turn.minted:
            for other in holders(self.minted, minted):
                if other.session is not session:
                    return True
        if not turn.minted:
            for other in holders(self.tails, turn.tail):
                if other.session is not session and other.text == turn.text:
                    return True
        return False

    def is_secret(self, turn: Turn) -> bool:
        """Whether nobody knows its answer but who was given it: it is long, and was given to one session.

        Of an answer that was forgotten because many others followed, nobody knows that; so it is no secret.
        """
        return turn.chars >= MIN_SECRET_CHARS and self._given.get(turn.text) == turn.session.id

    def is_twin_by_id(self, turn: Turn) -> bool:
        return len(self._twins) > 0 and any(
            self._twins.get(evidence.of_minted(turn.session.tenant, minted)) for minted in turn.minted
        )

    def is_twin_by_answer(self, tenant: TenantId, tail: int, text: int) -> bool:
        return len(self._twins) > 0 and bool(self._twins.get(evidence.of_answer(tenant, tail, text)))

    def add_minted(self, turn: Turn, minted: int) -> None:
        _add(self.minted, minted, turn)

    def add_title(self, turn: Turn, probes: frozenset[int]) -> None:
        self.titles.append((turn, probes))
        self._unread.titles[id(turn)] = self, turn
        self._unread.probes += len(probes)
        if len(self.titles) > MAX_TITLES:
            self.drop_title(self.titles[0][0])
        while self._unread.probes > MAX_PROBES:
            traces, oldest = next(iter(self._unread.titles.values()))
            traces.drop_title(oldest)

    def drop_titles(self, *, before_s: float) -> None:
        while self.titles and self.titles[0][0].arrived_s < before_s:
            self.drop_title(self.titles[0][0])

    def drop_title(self, turn: Turn) -> None:
        if self._unread.titles.pop(id(turn), None) is not None:
            at = next(at for at, title in enumerate(self.titles) if title[0] is turn)
            self._unread.probes -= len(self.titles.pop(at)[1])

    def add_fruitless(self, body: int) -> None:
        self._fruitless.put(body, (self._fruitless.get(body) or 0) + 1)

    def is_worn(self, body: int) -> bool:
        return (self._fruitless.get(body) or 0) >= WORN

    def read_words(self) -> None:
        while self._waiting:
            self._read_oldest()

    def remove_marks(self, turn: Turn) -> None:
        known = self._waiting.pop(id(turn), None)
        if known is not None:
            self._unread.size -= known.size
        if turn.asked:
            for mark in turn.asked:
                _remove(self.prompts if turn.offers_tools else self.asked, mark, turn)
            turn.asked = ()
        if turn.said or turn.handed:
            for mark in _answer_marks(turn):
                _remove(self.marks, mark, turn)
            turn.said = turn.handed = ()

    def remove(self, turn: Turn) -> None:
        if self.titles:
            self.drop_title(turn)
        self.remove_marks(turn)
        _remove(self.tails, turn.tail, turn)
        _remove(self.bodies, turn.body, turn)
        if turn.text:
            _remove(self.texts, turn.text, turn)
        if turn.minted:
            self.remove_minted(turn, turn.minted)

    def remove_minted(self, turn: Turn, ids: Iterable[int]) -> None:
        for minted in ids:
            _remove(self.minted, minted, turn)

    def _keep(
        self, turn: Turn, size: int, *, words: Words | None = None, utterance: Utterance | None = None
    ) -> None:
        if not 0 < size <= MAX_KEPT:
            self._read(turn, words, utterance)
            return
        known = self._waiting.get(id(turn))
        if known is None:
            known = self._waiting[id(turn)] = _Waiting(turn)
        known.words = words or known.words
        known.utterance = utterance or known.utterance
        known.size += size
        self._unread.size += size
        if len(self._waiting) > MAX_WAITING:
            for _ in range(min(AT_ONCE, len(self._waiting))):
                self._read_oldest(drops_worn=True)
        while self._waiting and self._unread.size > MAX_UNREAD:
            self._read_oldest(drops_worn=True)

    def _read_oldest(self, *, drops_worn: bool = False) -> None:
        oldest = self._waiting.pop(next(iter(self._waiting)))
        self._unread.size -= oldest.size
        # Of what so many say, nobody could tell which one is quoted.
        if not (drops_worn and self.is_worn(oldest.turn.body)):
            self._read(oldest.turn, oldest.words, oldest.utterance)

    def _read(self, turn: Turn, words: Words | None, utterance: Utterance | None) -> None:
        if words is not None:
            turn.asked = words.asked
            for mark in turn.asked:
                _add(self.prompts if turn.offers_tools else self.asked, mark, turn)
        if utterance is not None:
            # What stands beside calls is a remark; what others quote is an answer, or what a call hands over.
            turn.said = () if turn.calls else utterance.said
            turn.handed = tuple(map(Handed, utterance.handed, utterance.handed_sizes))
            for mark in _answer_marks(turn):
                _add(self.marks, mark, turn)


def holders(index: Holders, key: int) -> tuple[Turn, ...] | list[Turn]:
    found = index.get(key)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def _answer_marks(turn: Turn) -> Iterator[int]:
    yield from turn.said
    for text in turn.handed:
        yield from text.marks


def _add(index: Holders, key: int, turn: Turn) -> None:
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


def _remove(index: Holders, key: int, turn: Turn) -> None:
    found = index.get(key)
    if found is turn:
        del index[key]
    elif type(found) is list and turn in found:
        found.remove(turn)
        if len(found) == 1:
            index[key] = found[0]
