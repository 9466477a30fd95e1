"""What is known of how clients send answers back, and how often that was right.

Invariants: at most `MAX_CLIENTS` are remembered, those seen last; of a client whose echoes were mostly
foreseen wrongly nothing is worth sending, until they are foreseen rightly again; what happened lately counts
more.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from gateway.domain.ids import TenantId
from gateway.domain.request import Protocol
from gateway.prefill_ahead.history_rewrite import EchoManner, plain_manner
from gateway.prefill_ahead.next_prompt import Foreseen

MAX_CLIENTS: Final = 4_096
# What an older guess counts, of the next one.
_FORGETS: Final = 0.875


class Client(NamedTuple):
    """Who sends answers back in one way: a program of a tenant, as an agent of one type."""

    tenant: TenantId
    protocol: Protocol
    software: int
    agent_type: int


class _Known(msgspec.Struct):
    manner: EchoManner
    right: float = 0.0
    wrong: float = 0.0


class Echoing:
    def __init__(self) -> None:
        self._clients: OrderedDict[Client, _Known] = OrderedDict()

    def manner(self, client: Client) -> EchoManner:
        known = self._clients.get(client)
        return plain_manner(client.protocol) if known is None else known.manner

    def is_worth_it(self, client: Client) -> bool:
        known = self._clients.get(client)
        return known is None or known.right >= known.wrong

    def learn(self, client: Client, found: Foreseen) -> None:
        known = self._of(client)
        if found.manner is not None:
            known.manner = found.manner
        self._count(known, was_right=found.was_right)

    def refused(self, client: Client) -> None:
        self._count(self._of(client), was_right=False)

    def _of(self, client: Client) -> _Known:
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = _Known(plain_manner(client.protocol))
        self._clients.move_to_end(client)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return known

    @staticmethod
    def _count(known: _Known, *, was_right: bool) -> None:
        known.right = known.right * _FORGETS + was_right
        known.wrong = known.wrong * _FORGETS + (not was_right)
