"""The state that the brain's mechanisms share: what is known, and what is to be done about it.

A mechanism takes it and the mechanisms that it calls; nothing is handed back to it later. The order in which
the coordinator makes them is the order in which they call one another.
"""

from dataclasses import dataclass, field

from gateway.admission.session_admission import SessionAdmission
from gateway.core.commands import Command
from gateway.core.fleet import Fleet
from gateway.core.forecasts import Forecasts
from gateway.core.sessions.session_book import SessionBook
from gateway.core.sessions.session_limits import SessionLimits
from gateway.core.settings import CoordinatorConfig
from gateway.core.turn_records import TurnRecords
from gateway.core.turns.live import LiveRequest
from gateway.core.turns.waiting_room import WaitingRoom
from gateway.domain.ids import RequestId
from gateway.fleet.migration_limiter import MigrationLimiter
from gateway.routing.placement_policy import PlacementPolicy
from gateway.routing.ranks import Ranks


@dataclass(eq=False, kw_only=True, slots=True)
class BrainState:
    config: CoordinatorConfig
    fleet: Fleet
    admission: SessionAdmission
    placement: PlacementPolicy
    sessions: SessionBook
    forecasts: Forecasts
    migrations: MigrationLimiter
    session_limits: SessionLimits
    out: list[Command]
    """Commands of the event at hand, in order; records among them."""
    live: dict[RequestId, LiveRequest] = field(default_factory=dict)
    waiting_room: WaitingRoom = field(init=False)
    ranks: Ranks = field(default_factory=Ranks)
    records: TurnRecords = field(init=False)

    def __post_init__(self) -> None:
        limits = self.admission.config
        self.waiting_room = WaitingRoom(limits.max_waiting, limits.max_waiting_bytes)
        self.records = TurnRecords(self.out)
