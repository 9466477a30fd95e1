"""Reactive and proactive: does somebody wait for this session, or does it run in the background?

Source: Agent.xpu (arXiv 2506.24045), §4.4 (dual queues) and §4.5 (starvation prevention).

Symbols: *real-time queue* → `ServiceClass.REACTIVE`; *best-effort queue* → `ServiceClass.PROACTIVE`;
*threshold age* → `age_s`; *bypasses the batch size cap* → `Entry.is_aged`.

Deviations: the paper's classes are given by the application; ours by what a trusted client states, else by
its key, a trusted `service_tier`, a background request, and else reactive: to treat a person's turn as
background costs more than the reverse. The paper's privileges of the aged hold inside the engine (a prefill
unit, the batch cap); at the gate they are the head of the reactive queue, and one place above the window. A
class counts for the whole session: one that ever spoke for a person stays reactive.

Invariants: what a client states counts only if its tenant is trusted to state it, even to ask for less (the
aged have a privilege); at most one aged session at a time is above the window.
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.request import Claims


class ServiceClass(enum.Enum):
    REACTIVE = "reactive"
    """Somebody waits for it."""
    PROACTIVE = "proactive"
    """Background work; it starts when no reactive session waits, or when it has waited too long."""


CLASS_OF_KEY: Final = {"interactive": ServiceClass.REACTIVE, "background": ServiceClass.PROACTIVE}
"""By `quota.service_class`."""
_CLASS_OF_TIER: Final = {
    "priority": ServiceClass.REACTIVE,
    "default": ServiceClass.REACTIVE,
    "flex": ServiceClass.PROACTIVE,
    "batch": ServiceClass.PROACTIVE,
    "low": ServiceClass.PROACTIVE,
}


class ClassesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    age_s: Annotated[float, Meta(gt=0)] = 20.0
    """A proactive session that waited so long waits among the reactive ones, and may exceed the window."""


def classify(
    stated: Claims | None = None, key_class: ServiceClass | None = None, *, is_background: bool = False
) -> ServiceClass:
    """`stated`: by a client whose tenant is trusted to say so; `key_class`: as configured for its key;
    `is_background`: the protocol says that nobody waits for the answer. The first evidence counts."""
    if stated is not None and stated.service_class is not None:
        return ServiceClass(stated.service_class)
    if key_class is not None:
        return key_class
    if stated is not None and stated.service_tier is not None:
        return _CLASS_OF_TIER[stated.service_tier]
    return ServiceClass.PROACTIVE if is_background else ServiceClass.REACTIVE
