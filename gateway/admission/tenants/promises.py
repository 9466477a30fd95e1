"""Promises: how much may a tenant hold beyond its share while others are late?

Source: SAGA, §6: tasks end within α times what they take alone, which holds for tenants that ask for no more
than their share (Theorem 2), and work of others that stands in their way gives way (§6.2 (4)).

Symbols: α → `FairShareConfig.alpha`; *service that falls behind* → `slowdown`.

Deviations: SAGA preempts. Here the tenants that ask for most hold less (`level`), by additive increase and
multiplicative decrease: whoever holds more than its share enters only up to that level, and sessions above it
wait at their next turn. It binds nobody who asks for less than half as much as the one that asks for most,
for its weight (`FairShare.is_heavy`): who has a busy hour would have to come down with whoever floods
the fleet, and could never be done with it. What is watched are the turns, with the tools before them, of the
tenants that hold no more than their share: as a whole they may take half of what α allows, since some take
far longer than others. So that little is given up, `_LEAST_FILL` of the KV budget stays in use, and one and a
half times one's share is nobody's to take back (`fair_share.SHARE_GRACE`). Where no KV budget is known nobody
is held back.

Theory of operation. Engines that share their steps among all rows are slower for everybody the more is in
them, long before their memory is full, so what one tenant has beyond its share the others pay for. Nobody
does where one tenant is alone, where all hold alike, or where those within their share are quick enough: then
there is no level.

Invariants: the level says nothing of tenants within their share, nor of those who ask for little; at most one
change in a feedback time.
"""

import math
from typing import Final

LATE, IN_TIME = "others_late", "others_in_time"
"""Why the level changes."""
_ALLOWED: Final = 0.5
"""Of what α allows beyond the time alone, for the turns as a whole."""
_RESTS: Final = 0.75
"""Of that: below it there is room for more."""
_DECREASE: Final = 0.8
_EVIDENCE_TURNS: Final = 20.0
"""Of turns that are late by all that is allowed; fewer do if they are far later."""
_LASTS: Final = 10.0
"""Feedback times that a turn counts."""
_LEAST_FILL: Final = 0.7
"""Of the KV budget: this much stays in use, whoever is late."""


class Promises:
    def __init__(self, alpha: float) -> None:
        self._allowed = _ALLOWED * (alpha - 1.0)
        self.level = math.inf
        """Sessions, for a weight of 1."""
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
        """To be asked once a second; why the level has changed, if it has.

        `most_charged`: of those who ask for much, for a weight of 1; `is_far_beyond`: their share. `least`:
        what nobody has to give back. `are_waiting`: somebody wants more than is there. `fill`: the share of
        the KV budget that all who are in are expected to need."""
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
