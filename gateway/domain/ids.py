"""Identifiers. All are opaque: nobody parses them, none contains an address."""

import re
from typing import Final, NewType

TenantId = NewType("TenantId", str)
"""Who pays; from the authenticated key, else the anonymous tenant."""

_ANONYMOUS: Final = re.compile("anonymous-[0-9a-f]{12}")
NOBODYS: Final = TenantId("")
"""Whose everything is that all tenants share."""

SessionId = NewType("SessionId", str)
"""One agent run, as the brain names it (`s-…`). Unique within a gateway process group."""

ThreadId = NewType("ThreadId", str)
"""One conversation of a session (`s-….1`): a main agent, a sub-agent, a task."""

RequestId = NewType("RequestId", str)
"""One proxied HTTP request (`r-…`). A generating request is a *turn* of its session."""

PoolId = NewType("PoolId", str)
"""Replicas that serve the same models."""

ReplicaId = NewType("ReplicaId", str)
"""One serving engine process. Its URL is known to the I/O shell only."""

Body = tuple[TenantId, int, str]
"""What a request says: whose it is, a hash (0: unknown), and the model."""

MAX_ID_CHARS = 256


def clean_name(text: str) -> str:
    """A name that somebody else gave, of a model or a tool, as it is kept and shown: at most 256 characters,
    all of them printable. Two that differ in what is left out are taken for the same."""
    text = text[:MAX_ID_CHARS]
    return text if text.isprintable() else "".join([each if each.isprintable() else "?" for each in text])


def is_well_formed_id(text: str) -> bool:
    return 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def shown_tenant(tenant: str) -> str:
    """Without what differs after each start."""
    return "anonymous" if _ANONYMOUS.fullmatch(tenant) else tenant
