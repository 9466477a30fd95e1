"""Traces of turns, an index per tenant.

Invariants: a key leads to at most `MAX_HOLDERS` turns, the newest, so a shared trace is recognised as one;
removing a turn removes every way to it.
"""

from collections import OrderedDict
from typing import Final

from gateway.domain.ids import SessionId, TenantId
from gateway.identity import evidence
from gateway.identity.memory import Memory
from gateway.workflow.turns import Outcome, Session, Turn

MAX_HOLDERS: Final = 8
_MAX_ANSWERS: Final = 2**14
# Names of evidence that two gateways minted, over all tenants: at least the newer half, two minutes of 500
# twins a second. They matter until the twins go on, and take 16 MB at most.
MAX_TWINS: Final = 2**17
# Shorter answers may be common (`Hello! How can I help you today?`).
MIN_SECRET_CHARS: Final = 64

_NOBODY: Final = SessionId("")

Holders = dict[int, Turn | list[Turn]]


class Traces:
    """Of one tenant, with its sessions."""

    def __init__(self, twins: Memory[bool]) -> None:
        """`twins`: evidence that two gateways minted, of all tenants."""
        # The longest unseen first.
        self.sessions: OrderedDict[SessionId, Session] = OrderedDict()
        self.tails: Holders = {}
        self.bodies: Holders = {}
        self.minted: Holders = {}
        self.texts: Holders = {}
        # Client software whose transport numbers its attempts.
        self.counting: set[int] = set()
        # Long answers, with their session; `_NOBODY` after a second one.
        self._given: Memory[SessionId] = Memory(_MAX_ANSWERS)
        self._twins = twins

    def add_arrival(self, turn: Turn) -> None:
        if self.tails.setdefault(turn.tail, turn) is not turn:
            add(self.tails, turn.tail, turn)
        if self.bodies.setdefault(turn.body, turn) is not turn:
            add(self.bodies, turn.body, turn)

    def add_answer(self, turn: Turn) -> None:
        """Only failed requests can be retried."""
        if turn.outcome is Outcome.ANSWERED:
            drop(self.bodies, turn.body, turn)
        if turn.chars >= MIN_SECRET_CHARS:
            known = self._given.get(turn.text)
            self._given.put(turn.text, turn.session.id if known in (None, turn.session.id) else _NOBODY)
        if turn.text and not turn.calls:  # calls are recognised by their ids
            add(self.texts, turn.text, turn)

    def adopt(self, turn: Turn, *, is_secret: bool) -> None:
        """`turn`: another gateway's, with its end; `is_secret`: its answer went to no other session."""
        add(self.tails, turn.tail, turn)
        if turn.has_failed:
            add(self.bodies, turn.body, turn)
        if is_secret:
            self._given.put(turn.text, turn.session.id)
        if turn.text and not turn.calls:
            add(self.texts, turn.text, turn)
        for minted in turn.minted:
            add(self.minted, minted, turn)

    def has_twin(self, turn: Turn) -> bool:
        alike = [other for minted in turn.minted for other in holders(self.minted, minted)]
        if not turn.minted:
            alike = [other for other in holders(self.tails, turn.tail) if other.text == turn.text]
        return any(other.session is not turn.session for other in alike)

    def is_secret(self, turn: Turn) -> bool:
        """A long answer to a single session. A forgotten answer is no secret: another session may have it."""
        return turn.chars >= MIN_SECRET_CHARS and self._given.get(turn.text) == turn.session.id

    def is_twin_by_id(self, turn: Turn) -> bool:
        twins = self._twins
        if not (twins.newer or twins.older):
            return False
        tenant = turn.session.tenant
        return any(twins.get(evidence.of_minted(tenant, each)) for each in turn.minted)

    def is_twin_by_answer(self, tenant: TenantId, tail: int, text: int) -> bool:
        return len(self._twins) > 0 and bool(self._twins.get(evidence.of_answer(tenant, tail, text)))

    def remove(self, turn: Turn) -> None:
        drop(self.tails, turn.tail, turn)
        drop(self.bodies, turn.body, turn)
        if turn.text:
            drop(self.texts, turn.text, turn)
        for minted in turn.minted:
            drop(self.minted, minted, turn)


def holders(index: Holders, key: int) -> tuple[Turn, ...] | list[Turn]:
    found = index.get(key)
    if found is None:
        return ()
    return found if isinstance(found, list) else (found,)


def add(index: Holders, key: int, turn: Turn) -> None:
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


def drop(index: Holders, key: int, turn: Turn) -> None:
    found = index.get(key)
    if found is turn:
        del index[key]
    elif type(found) is list and turn in found:
        found.remove(turn)
        if len(found) == 1:
            index[key] = found[0]
