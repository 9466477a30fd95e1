"""Agent types: sessions of one program, prompt and tools; and the tiers of what is known of them.

Source: SAGA (§3.3): three tiers of what is known.

Symbols: *explicit hints* → `Tier.STATED`; *implicit traces* → `Tier.INFERRED`; *cold start* → `Tier.UNKNOWN`.

Invariants: a type belongs to one tenant, and so does its family.
"""

import enum

import msgspec

from gateway.domain.ids import NOBODYS, TenantId


class Tier(enum.Enum):
    STATED = "stated"
    """The client says what follows."""
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    """Too little was seen; requests are taken one by one."""


class AgentType(msgspec.Struct, frozen=True, gc=False):
    """By what a type is known."""

    kind: int
    """Hash of the prompt's skeleton and the tools (`gateway/wire/agent_skeleton.py`)."""
    client: int
    is_child: bool = False
    """It works for another conversation of its session."""
    owner: TenantId = NOBODYS
    """The tenant whose sessions teach it."""

    @property
    def key(self) -> int:
        return hash((self.kind, self.client, self.is_child))

    @property
    def family(self) -> tuple[TenantId, int, bool]:
        return self.owner, self.client, self.is_child
