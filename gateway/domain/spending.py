"""A tenant's use over a day or a month: types of the brain, the shared store and the file."""

from typing import Final

import msgspec

from gateway.domain.ids import TenantId


class Amounts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    turns: float = 0.0
    tokens: float = 0.0
    """Of prompts and outputs, cached ones included."""
    cost: float = 0.0

    def plus(self, other: "Amounts") -> "Amounts":
        return Amounts(self.turns + other.turns, self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, other: "Amounts") -> "Amounts":
        return Amounts(self.turns - other.turns, self.tokens - other.tokens, self.cost - other.cost)

    def most(self, other: "Amounts") -> "Amounts":
        return Amounts(
            max(self.turns, other.turns), max(self.tokens, other.tokens), max(self.cost, other.cost)
        )


NOTHING: Final = Amounts()


class Account(msgspec.Struct, frozen=True, array_like=True, gc=False):
    tenant: TenantId
    agent: int
    """An agent type, or `ALL_AGENTS` together."""
    period: str
    """A day (`2026-11-25`) or a month (`2026-11`), in UTC."""


ALL_AGENTS: Final = 0
# Types beyond the tenant's number of accounts.
OTHER_AGENTS: Final = 1


class Reserved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For a request, in the shared store."""

    spent: "tuple[Spent, ...]"
    """Of each of its accounts, with the reservation."""
    amounts: Amounts
    """Reserved in each."""


class Spent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An account's use, with reservations of live turns."""

    account: Account
    amounts: Amounts
