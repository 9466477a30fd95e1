"""The same sessions twice, to one gateway: first it learns, then it is measured."""

from collections.abc import Sequence

import msgspec

from lab.workload.trace.format import Session

_FIRST = "before/"
_LATER_S = 4 * 3600.0
"""So long after the last arrival of the first time the second one begins. All should be over by then."""


def twice(sessions: Sequence[Session]) -> list[Session]:
    """These sessions, and behind them, when all should be over, the same ones again under their own ids."""
    later_s = sessions[-1].arrival_s + _LATER_S
    first = [msgspec.structs.replace(each, id=_FIRST + each.id) for each in sessions]
    again = [msgspec.structs.replace(each, arrival_s=each.arrival_s + later_s) for each in sessions]
    return first + again
