"""Service classes: does a person wait for this session, or does it run in the background?

Source: Agent.xpu (arXiv 2506.24045), §4.4 (dual queues) and §4.5 (starvation prevention).

Symbols: *real-time queue* → `ServiceClass.REACTIVE`; *best-effort queue* → `ServiceClass.PROACTIVE`;
*threshold age* → `age_s`; *bypasses the batch size cap* → `Entry.is_aged`.

Deviations: the paper's application states the class. Ours follows a trusted client's statement, then the key,
a trusted `service_tier`, a background request; the default is reactive, since a person's turn in the
background costs more than the reverse. The paper's aged requests have privileges inside the engine (a prefill
unit, the batch cap); at the gate they move to the reactive queue, and may take one place above the window. A
class is the whole session's: one reactive turn makes it reactive.

Invariants: a client's statement counts only if its tenant is trusted, also for the lower class (ageing is a
privilege); at most one aged session at a time is above the window.
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.request import Claims


class ServiceClass(enum.Enum):
    REACTIVE = "reactive"
    PROACTIVE = "proactive"
    """Starts when no reactive session waits, or once it has aged."""


# By `quota.service_class`.
_CLASS_OF_KEY: Final = {"interactive": ServiceClass.REACTIVE, "background": ServiceClass.PROACTIVE}
_BACKGROUND_TIERS: Final = ("flex", "batch", "low")


class ClassesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    age_s: Annotated[float, Meta(gt=0)] = 20.0
    """A proactive session that waited so long waits among the reactive ones, and may exceed the window."""


def classify(stated: Claims | None, of_key: str | None, *, is_background: bool) -> ServiceClass:
    """`stated`: by a client of a trusted tenant; `of_key`: the key's setting; `is_background`: by the
    protocol. The first evidence counts."""
    if stated is not None and stated.service_class is not None:
        return ServiceClass(stated.service_class)
    if of_key is not None:
        return _CLASS_OF_KEY[of_key]
    if stated is not None and stated.service_tier is not None:
        is_background = stated.service_tier in _BACKGROUND_TIERS
    return ServiceClass.PROACTIVE if is_background else ServiceClass.REACTIVE
