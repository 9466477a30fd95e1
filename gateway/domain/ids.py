"""Identifiers, all opaque: never parsed, without addresses."""

import re
from typing import Final, NewType

# Of the authenticated key, else the anonymous one.
TenantId = NewType("TenantId", str)

_ANONYMOUS: Final = re.compile("anonymous-[0-9a-f]{12}")
# The owner of what all tenants share.
NOBODYS: Final = TenantId("")

# One agent run (`s-…`). Unique within a gateway process group.
SessionId = NewType("SessionId", str)

# One conversation of a session (`s-….1`): a main agent, a sub-agent, a task.
ThreadId = NewType("ThreadId", str)

# One proxied HTTP request (`r-…`). A generating request is a *turn* of its session.
RequestId = NewType("RequestId", str)

# Replicas that serve the same models.
PoolId = NewType("PoolId", str)

# One engine process. Only the I/O shell has its URL.
ReplicaId = NewType("ReplicaId", str)

# Tenant, hash (0: unknown) and model.
Body = tuple[TenantId, int, str]

MAX_ID_CHARS = 256


def clean_name(text: str) -> str:
    """For untrusted names of models and tools: at most 256 printable characters. Two that differ in the rest
    are the same."""
    text = text[:MAX_ID_CHARS]
    return text if text.isprintable() else "".join([each if each.isprintable() else "?" for each in text])


def is_well_formed_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def shown_tenant(tenant: str) -> str:
    """Without the part that differs after each start."""
    return "anonymous" if _ANONYMOUS.fullmatch(tenant) else tenant
