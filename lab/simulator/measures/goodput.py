"""Goodput: how many sessions end in time, where in time means not much later than alone?

Source: MARS (§2.1, Eq. 1–2; the text lacks them as typeset). By its prose the goodput over a time window
W is |{r : L_r ≤ α · T_iso(r)}| / |W|.

Symbols: L_r → `taken_s`; T_iso → `isolated_s`; α → the slack factors `ALPHAS`; |W| → given to `rate_per_h`.

Deviations: a request is a session here; W is the whole run, from the first arrival to the last end, drain
included. Beside the rate stands the share of all sessions, which does not depend on W. A session that failed
is not in time.

Invariants: what is in time for one α is in time for every larger one.
"""

from typing import Final

ALPHAS: Final = (1.5, 2.0, 4.0)
_ROUNDING: Final = 1e-9
"""A session that is alone is in time for α = 1, whatever order its seconds were added up in."""


def is_in_time(taken_s: float, limit_s: float) -> bool:
    return taken_s <= limit_s * (1 + _ROUNDING)


class Goodput:
    def __init__(self) -> None:
        self.sessions = 0
        self.in_time = dict.fromkeys(ALPHAS, 0)

    def add(self, taken_s: float, isolated_s: float, *, failed: bool) -> None:
        self.sessions += 1
        for alpha in ALPHAS:
            self.in_time[alpha] += not failed and is_in_time(taken_s, alpha * isolated_s)

    def share(self, alpha: float) -> float | None:
        return self.in_time[alpha] / self.sessions if self.sessions else None

    def rate_per_h(self, alpha: float, window_s: float) -> float | None:
        return self.in_time[alpha] * 3600 / window_s if window_s > 0 else None
