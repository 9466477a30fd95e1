"""The whole brain at one moment, as values."""

import msgspec

from gateway.core.coordinator import Coordinator
from gateway.core.snapshot import Gauges, SessionView, SessionViews, take_gauges


class Snapshot(Gauges, frozen=True, kw_only=True):
    sessions: tuple[SessionView, ...]


def take_snapshot(brain: Coordinator, *, now: float) -> Snapshot:
    views = SessionViews(brain)
    sessions = tuple(views.view(each, now=now) for each in brain.sessions.sessions.newest_first())
    return Snapshot(**msgspec.structs.asdict(take_gauges(brain, now=now)), sessions=sessions)
