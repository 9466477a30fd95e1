"""What is counted of a tenant over a day or a month: words for the brain, the shared store and the file."""

from typing import Final

import msgspec

from gateway.domain.ids import TenantId


class Amounts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    turns: float = 0.0
    tokens: float = 0.0
    """Of prompts and outputs, those from the cache included."""
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
    """Whose use is added up, and over which time."""

    tenant: TenantId
    agent: int
    """An agent type of the tenant's; `ALL_AGENTS` for all of them together."""
    period: str
    """A day (`2026-11-25`) or a month (`2026-11`), in UTC."""


ALL_AGENTS: Final = 0
OTHER_AGENTS: Final = 1
"""Those for which a tenant has no account of their own left."""


class Reserved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For a request, in the shared store."""

    spent: "tuple[Spent, ...]"
    """Of each account that pays for it, with what is reserved."""
    amounts: Amounts
    """That were reserved, in each."""


class Spent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was used of an account, with what is reserved for turns that run."""

    account: Account
    amounts: Amounts
