"""Promises: how much may a tenant hold beyond its share while others are late?

Source: SAGA, §6: tasks end within α times their time alone, for tenants with no more demand than their share
(Theorem 2), and work of others in their way yields (§6.2 (4)).

Symbols: α → `FairShareConfig.alpha`; *service that falls behind* → `slowdown`.

Deviations: SAGA preempts. Here a level limits the tenants with the most demand, by additive increase and
multiplicative decrease: beyond their share they enter only up to it, and sessions above it wait at their next
turn. It binds no tenant with less than half of the largest demand for its weight (`FairShare.is_heavy`): a
busy hour would be cut as deep as a flood, and never end. The evidence are turns, with the tools before them,
of tenants within their share: as a whole they may take half of what α allows, since single turns vary. So
that little is lost, `_LEAST_FILL` of the KV budget stays in use, and `fair_share.SHARE_GRACE` times a share
is safe. Without a KV budget there is no level.

Theory of operation. Engine steps serve all rows, so each further row slows the others, long before memory is
full: a tenant's excess costs the others time. There is no level where a tenant is alone, where all hold
alike, or where tenants within their share are quick enough.

Invariants: the level never binds tenants within their share or with little demand; at most one change in a
feedback time.
"""

import math
from typing import Final

# Why the level changes.
LATE, IN_TIME = "others_late", "others_in_time"
# Of α's allowance, for all turns together.
_ALLOWED: Final = 0.5
# Of that: below it the level rises.
_RESTS: Final = 0.75
_DECREASE: Final = 0.8
# Turns late by the whole allowance; later ones count for more.
_EVIDENCE_TURNS: Final = 20.0
# Feedback times that a turn counts.
_LASTS: Final = 10.0
# Of the KV budget, which stays in use.
_LEAST_FILL: Final = 0.7


class Promises:
    def __init__(self, alpha: float) -> None:
        self._allowed = _ALLOWED * (alpha - 1.0)
        # Sessions, for a weight of 1.
        self.level = math.inf
        self._taken_s = self._alone_s = self._turns = 0.0
        self._faded_s = self._changed_s = -math.inf

    def saw(self, *, gap_s: float, taken_s: float, alone_s: float) -> None:
        self._turns += 1
        self._taken_s += gap_s + taken_s
        self._alone_s += gap_s + min(alone_s, taken_s)

    def update(
        self,
        most_charged: float,
        *,
        is_far_beyond: bool,
        least: float,
        are_waiting: bool,
        fill: float,
        feedback_s: float,
        now: float,
    ) -> str | None:
        """Call once a second. Returns the reason of a change.

        `most_charged`: of heavy tenants, for a weight of 1; `is_far_beyond`: their share. `least`: the lowest
        level. `fill`: expected share of the KV budget."""
        keep = math.exp(min(0.0, self._faded_s - now) / (_LASTS * feedback_s))
        self._turns *= keep
        self._taken_s *= keep
        self._alone_s *= keep
        self._faded_s = now
        passed_s = now - self._changed_s
        if passed_s < feedback_s:
            return None
        slowdown = self._taken_s / self._alone_s if self._alone_s > 0 else 1.0
        late = (slowdown - 1.0) / self._allowed
        is_known = self._turns * max(1.0, late) >= _EVIDENCE_TURNS
        if is_far_beyond and is_known and late >= 1.0 and fill >= _LEAST_FILL:
            self.level = max(1.0, least, _DECREASE * min(self.level, most_charged))
            return self._changed(LATE, now=now)
        is_calm = late < _RESTS if is_known else passed_s >= _LASTS * feedback_s
        is_binding = are_waiting and self.level <= most_charged + 1.0
        if math.isfinite(self.level) and (is_calm or fill < _LEAST_FILL) and (is_binding or not are_waiting):
            self.level = self.level + 1.0 if is_binding else math.inf
            return self._changed(IN_TIME, now=now)
        return None

    def _changed(self, reason: str, *, now: float) -> str:
        self._taken_s = self._alone_s = self._turns = 0.0
        self._changed_s = now
        return reason
