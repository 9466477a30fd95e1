"""The seam: what admission is asked, what it is told, and what it answers.

A policy is told of everything that happens to turns and engines, and asked only when something may start.
It finds who is next among thousands without looking at them all.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from gateway.admission.classes import ServiceClass
from gateway.cost.estimator import Alone
from gateway.domain.by_agent import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Admission, Edge, Refusal
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.host import HostSignals
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.records import Record
from gateway.domain.request import Claims, Usage


class Applicant(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of a session, or a request of none, and what it wants."""

    request: RequestId
    pool: PoolId
    tenant: TenantId
    body_bytes: int = 0
    session: SessionId | None = None
    """None for a request that belongs to no session: it is never counted as one."""
    thread: ThreadId | None = None
    edge: Edge = Edge.OPENS
    parent: SessionId | None = None
    """The session on whose behalf this one runs."""
    agent: AgentKey = UNKNOWN_AGENT
    """What kind of agent asks."""
    task_arrived_s: float = 0.0
    """When the session's first turn came."""
    claims: Claims | None = None
    """What the client says of how urgent it is (`classes.py`)."""
    is_background: bool = False
    """The protocol says that nobody waits for the answer."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What there is for an applicant."""

    candidates: Sequence[ReplicaLoad]
    """Healthy replicas that may run it; empty if there is none."""
    must_queue: bool
    """Others wait for the same replicas, so this one may not overtake them."""
    waiting: int
    """Turns in the waiting room now."""
    waiting_bytes: int


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended that had been let in."""

    was_answered: bool
    """The client got an answer, to its end."""
    has_calls: bool = False
    """Tools run next."""
    replica: ReplicaId | None = None
    ran_s: float = 0.0
    """On that replica."""
    launch_s: float | None = None
    """Until the first token."""
    usage: Usage = Usage()
    prefill_s: float | None = None
    """What computing its prompt takes, as far as that was not cached, on that replica alone."""
    alone: Alone | None = None
    """What all of it takes on that replica alone, where nothing is lost that turns before it left; None if
    that is not known."""


class Displaced(msgspec.Struct, frozen=True):
    """A turn that waited has to leave, because somebody who is entitled to more needs its place."""

    request: RequestId
    refusal: Refusal


class AdmissionPolicy(Protocol):
    """Which turn may start now, and who of those that wait is next?"""

    said: list[Record]
    """What readers of the information stream should know; whoever passes it on empties it."""

    # --- questions -----------------------------------------------------------------------------------

    def ask(self, applicant: Applicant, room: Room, *, now: float) -> Admission:
        """May this turn start now, must it wait, or is it turned away?

        Asked again about a turn whose attempt failed; it keeps what it has.
        """
        ...

    def has_room(self, load: ReplicaLoad) -> bool:
        """Whether one more turn may run on this replica. Never changes anything."""
        ...

    def let_in(self, *, now: float) -> Sequence[RequestId]:
        """Turns that were told to wait for their session's place, and have it now, in order."""
        ...

    def displaced(self) -> Sequence[Displaced]:
        """Turns that have to leave the waiting room, each told once. `turn_over` follows for each."""
        ...

    def next_deadline_s(self) -> float | None:
        """When `let_in` is to be asked even if nothing happens; None for never."""
        ...

    def class_of(self, session: SessionId, pool: PoolId) -> ServiceClass | None:
        """How engines should treat it now: as it stated, as was inferred, or behind those who hold less.

        None if it is not known here."""
        ...

    # --- notifications -------------------------------------------------------------------------------

    def may_learn(self, request: RequestId, *, now: float) -> bool:
        """Whether it is of use what a turn took that was answered, and ends now. To be asked once, before
        `turn_over`: working it out costs, and a bounded number a second teaches enough."""
        ...

    def turn_over(self, request: RequestId, outcome: TurnOutcome | None, *, now: float) -> None:
        """The turn ended; `outcome` is None if it was never let in. Unknown requests are no error."""
        ...

    def session_over(self, session: SessionId, *, now: float) -> None:
        """No further turn will come; none is live."""
        ...

    def tools_run(self, sessions: int) -> None:
        """Of so many sessions, in all pools together, tools run now."""
        ...

    def tools_ran(self, session: SessionId, names: tuple[str, ...], duration_s: float) -> None:
        """A session's tools came back."""
        ...

    def host_reported(self, host: str, signals: HostSignals, *, now: float) -> None:
        """Of a host on which tools run."""
        ...

    def engine_reported(
        self, pool: PoolId, replica: ReplicaId, signals: EngineSignals, *, now: float
    ) -> None: ...

    def fleet_changed(self, pool: PoolId, up: Collection[ReplicaId], *, now: float) -> None: ...
