"""Replays recorded exchanges through the brain, as the server would have seen them happen.

Every exchange becomes the events that a driver sends: it arrives at `t`, its head comes at `t_first_byte`,
its calls and its end at `t_end`. Exchanges interleave as they did. All of them are one tenant's, which is
the hardest case: nothing but identity keeps them apart.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.commands import Command, Dispatch
from gateway.core.coordinator import Coordinator
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.records import Record, TurnArrived
from gateway.domain.request import Answer, RequestFacts
from gateway.domain.session_ids import numbered_ids
from gateway.requests.facts import read_facts
from lab.evaluation.guesses import Guesses
from lab.evaluation.recording import Exchange

_TENANT: Final = TenantId("recorded")
REPLICAS: Final = 4
"""To see where turns are placed; who belongs together does not hang on it."""
_SETTINGS: Final = {
    "pools": [{"name": "pool", "replicas": [{"url": f"http://recorded-{at}"} for at in range(REPLICAS)]}],
    "admission": {"shadow": True, "max_running_per_replica": 100_000},  # what was recorded was not held
}

_FLEET: Final = [
    ReplicaFacts(id=ReplicaId(f"r{at}"), pool=PoolId("pool"), models=()) for at in range(REPLICAS)
]
_ARRIVES, _ENDS = 1, 0


class Placed(msgspec.Struct, frozen=True):
    """Where inference put one exchange."""

    number: int
    exchange: Exchange
    session: str
    """If every guess is right."""
    thread: str
    edge: str
    source: str
    confidence: float
    parent: int | None
    """The number of the exchange that it follows."""
    acts_as: str
    """The session that it was treated as a part of."""
    replica: str = ""
    """Where it ran, of `REPLICAS`."""


def replay(exchanges: Sequence[Exchange], *, without_ids: bool) -> list[Placed]:
    """Where every turn was put, in order of arrival."""
    return Replay(exchanges, without_ids=without_ids).run()


def recorded_brain(*, now: float, prefix: str = "", publishes: bool = False) -> Coordinator:
    """`prefix`: of the names of its sessions; `publishes`: it is one of several."""
    config = msgspec.convert(_SETTINGS, Config)
    brain = assemble(config, session_ids=numbered_ids(prefix), publishes=publishes)
    for replica in _FLEET:
        brain.handle(ev.ReplicaCameUp(replica), now=now)
    return brain


class Replay:
    def __init__(
        self,
        exchanges: Sequence[Exchange],
        *,
        without_ids: bool,
        tenant: TenantId = _TENANT,
        on_record: Callable[[Record], None] | None = None,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        """`on_end`: told the number of each exchange that is over."""
        self._exchanges = exchanges
        self._without_ids = without_ids
        self.tenant = tenant
        self._on_record = on_record
        self._on_end = on_end
        self.brain = recorded_brain(now=exchanges[0].t if exchanges else 0.0)
        self._placed: dict[int, Placed] = {}
        self._guesses = Guesses()

    def run(self) -> list[Placed]:
        moments = []
        for number, exchange in enumerate(self._exchanges):
            end = exchange.t_end if exchange.t_end is not None else exchange.t
            moments.append((exchange.t, _ARRIVES, number))
            moments.append((max(exchange.t, end), _ENDS if end > exchange.t else _ARRIVES + 1, number))
        for now, kind, number in sorted(moments):
            if kind == _ARRIVES:
                self._arrive(number, now)
            else:
                self._end(number, now)
                if self._on_end is not None:
                    self._on_end(number)
        return [self._placed[number] for number in sorted(self._placed)]

    def _arrive(self, number: int, now: float) -> None:
        self._send(ev.RequestArrived(request_of(number), self.tenant, self.facts_of(number)), now)

    def facts_of(self, number: int) -> RequestFacts:
        exchange = self._exchanges[number]
        headers = exchange.header_lines(without_ids=self._without_ids)
        body = exchange.body_bytes(without_ids=self._without_ids)
        return read_facts(exchange.endpoint, headers, body)

    def _end(self, number: int, now: float) -> None:
        exchange, request = self._exchanges[number], request_of(number)
        answer = exchange.answer()
        if exchange.has_left_early or exchange.status == 0:
            self._send(ev.ClientLeft(request, None), now)
            return
        self._send(ev.ResponseStarted(request, answer.status), now)
        if answer.status < 400:
            for call in answer.tool_calls:
                self._send(ev.ToolCallSeen(request, call), now)
            for state in answer.state_ids:
                self._send(ev.StateMinted(request, state), now)
        self._send(_last_event(exchange, request, answer), now)
        if exchange.cut_after:  # what broke is checked at once, and here it was well
            for replica in _FLEET:
                self._send(ev.ReplicaCameUp(replica), now + 1e-3)

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        return self.brain.handle(event, now=now)

    def _send(self, event: ev.Event, now: float) -> None:
        for command in self.handle(event, now=now):
            if self._on_record is not None and isinstance(command, Record):
                self._on_record(command)
            if isinstance(command, TurnArrived) and command.session is not None:
                number = int(command.turn)
                found = self._guesses.follow(command)
                self._placed[number] = Placed(
                    number=number,
                    exchange=self._exchanges[number],
                    session=found.session or "",
                    thread=found.thread or "",
                    edge=found.edge.value,
                    source=found.source.value,
                    confidence=found.confidence,
                    parent=int(found.parent) if found.parent is not None else None,
                    acts_as=command.session,
                )
            if isinstance(command, Dispatch) and (number := int(command.request)) in self._placed:
                self._placed[number] = msgspec.structs.replace(
                    self._placed[number], replica=command.placement.replica
                )


def _last_event(exchange: Exchange, request: RequestId, answer: Answer) -> ev.Event:
    if exchange.cut_after:
        return ev.ResponseCut(request, answer, "recorded")
    return ev.ResponseFinished(request, answer)


def request_of(number: int) -> RequestId:
    return RequestId(str(number))
