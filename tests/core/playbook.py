"""Scripts for the brain: `play >> event << command`, no sockets, no sleeps.

    play = Playbook(replicas="a b", max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1") >> finished("r1") << nothing

`>>` sends an event, `<<` names the decision that must be next. A decision that nobody expected fails at
the following event. After every event the brain's books are checked.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.commands import (
    Cancel,
    Dispatch,
    Prefill,
    Publish,
    Refuse,
    RemotePrefill,
    SendHint,
    Spend,
    StopPrefill,
)
from gateway.core.coordinator import Coordinator
from gateway.domain.decision import Placement, PlacementReason, RefusalReason, SessionRef
from gateway.domain.fleet import Abilities, ReplicaFacts, ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.records import Record
from gateway.domain.request import Answer, ExplicitId, Protocol, RequestFacts, ToolCall, Work
from gateway.domain.session_ids import numbered_ids
from gateway.routing.placement_policy import NOTHING_KNOWN, PlacementPolicy, Query
from lab.simulator.invariants import check_books
from tests.given_ids import given

_HASH = "sha256:" + "0" * 64
nothing = None


class ByLoad(PlacementPolicy):
    """Placement that tests can foretell: no session has a home."""

    def place(
        self, candidates: Sequence[ReplicaLoad], session: SessionRef | None, query: Query = NOTHING_KNOWN
    ) -> Placement:
        return self._by_load.place(candidates)


class Playbook:
    def __init__(
        self,
        *,
        replicas: str = "a",
        pools: tuple[dict[str, Any], ...] = ({"name": "pool"},),
        tenants_have_keys: bool = False,
        max_running_per_replica: int = 256,
        max_waiting: int = 4096,
        have_homes: bool = False,
        **sections: Any,
    ) -> None:
        """`have_homes`: sessions are placed as the settings say, and not `ByLoad`."""
        limits = {"max_running_per_replica": max_running_per_replica, "max_waiting": max_waiting}
        settings: dict[str, Any] = {
            "pools": [
                {"replicas": [{"url": f"http://{number}"}], **pool} for number, pool in enumerate(pools)
            ],
            "admission": limits | sections.pop("admission", {}),
            **sections,
        }
        if tenants_have_keys:
            settings["tenants"] = [{"name": "t", "key_hashes": [_HASH]}]
        config = msgspec.convert(settings, Config)
        self.brain: Coordinator = assemble(
            config, session_ids=numbered_ids(), placement=None if have_homes else ByLoad()
        )
        self.now = 1000.0
        self.records: list[Record] = []
        self.hints: list[SendHint] = []
        self.prefills: list[Prefill] = []
        self.legs: list[RemotePrefill] = []
        self.stopped: list[RequestId] = []
        self.decisions: list[Dispatch | Refuse] = []
        for name in replicas.split():
            _ = self >> up(name, pool=pools[0]["name"])

    def __rshift__(self, event: ev.Event) -> "Playbook":
        assert not self.decisions, f"nobody expected {self.decisions}"
        for command in self.brain.handle(event, now=self.now):
            if isinstance(command, Dispatch | Refuse):
                self.decisions.append(command)
            elif isinstance(command, SendHint):
                self.hints.append(command)
            elif isinstance(command, Prefill):
                self.prefills.append(command)
            elif isinstance(command, RemotePrefill):
                self.legs.append(command)
            elif isinstance(command, StopPrefill):
                self.stopped.append(command.turn)
            elif not isinstance(command, Publish | Cancel | Spend):
                self.records.append(command)
        check_books(self.brain)
        return self

    def __lshift__(self, expected: tuple[Any, ...] | None) -> "Playbook":
        if expected is None:
            assert not self.decisions, f"nobody expected {self.decisions}"
            return self
        assert self.decisions, f"no decision came, expected {expected}"
        told = _told(self.decisions.pop(0))
        assert told == expected, f"{told} came, expected {expected}"
        return self

    def later(self, seconds: float) -> "Playbook":
        self.now += seconds
        due = self.brain.next_deadline_s()
        return self >> ev.TimerFired() if due is not None and due <= self.now else self

    def take(self) -> Dispatch | Refuse:
        return self.decisions.pop(0)

    def arrives(self, request: str, tenant: str = "t", **fields: Any) -> Dispatch | Refuse:
        return (self >> arrived(request, tenant, **fields)).take()

    def begins(self, request: str, tenant: str = "t", **fields: Any) -> "Playbook":
        self.arrives(request, tenant, **fields)
        return self >> started(request)

    def seen(self, kind: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def session(self) -> Any:
        return next(iter(self.brain.sessions.sessions.newest_first()))


def _told(command: Dispatch | Refuse) -> tuple[Any, ...]:
    if isinstance(command, Dispatch):
        return (command.request, command.placement.replica, command.placement.reason)
    return (command.request, command.refusal.reason)


def dispatch(request: str, *, to: str, because: PlacementReason = PlacementReason.LEAST_LOADED) -> Any:
    return (request, to, because)


def refuse(request: str, reason: RefusalReason) -> Any:
    return (request, reason)


def facts(**fields: Any) -> RequestFacts:
    fields.setdefault("protocol", Protocol.CHAT)
    fields.setdefault("work", Work.GENERATE)
    for ids in ("echoed_ids", "tool_result_ids"):
        fields[ids] = tuple(map(given, fields.get(ids, ())))
    return RequestFacts(**fields)


def stated(session: str, *, schema: str = "codex", **fields: Any) -> ExplicitId:
    return ExplicitId(schema=schema, session=session, **fields)


def arrived(request: str, tenant: str = "t", **fields: Any) -> ev.RequestArrived:
    return ev.RequestArrived(RequestId(request), TenantId(tenant), facts(**fields))


def started(request: str, status: int = 200) -> ev.ResponseStarted:
    return ev.ResponseStarted(RequestId(request), status)


def first_token(request: str) -> ev.FirstTokenSeen:
    return ev.FirstTokenSeen(RequestId(request))


def call_seen(request: str, call_id: str, name: str = "bash") -> ev.ToolCallSeen:
    return ev.ToolCallSeen(RequestId(request), ToolCall(given(call_id), name))


def call_closed(request: str, call_id: str, name: str = "bash") -> ev.ToolCallClosed:
    return ev.ToolCallClosed(RequestId(request), ToolCall(given(call_id), name))


def state_minted(request: str, state_id: str) -> ev.StateMinted:
    return ev.StateMinted(RequestId(request), state_id)


def answer(*calls: str, status: int = 200, **fields: Any) -> Answer:
    """A complete one, unless it says otherwise. Calls are named, and get ids that no other gets."""
    fields.setdefault("has_terminal", True)
    return Answer(status=status, tool_calls=tuple(ToolCall(given(call), "bash") for call in calls), **fields)


def finished(request: str, *calls: str, status: int = 200, **fields: Any) -> ev.ResponseFinished:
    return ev.ResponseFinished(RequestId(request), answer(*calls, status=status, **fields))


def at_once(request: str, *calls: str, status: int = 200, **fields: Any) -> ev.AnsweredAtOnce:
    seen = answer(*calls, status=status, **fields)
    return ev.AnsweredAtOnce(RequestId(request), seen, has_first_token=status < 400)


def cut(request: str, *calls: str) -> ev.ResponseCut:
    return ev.ResponseCut(RequestId(request), answer(*calls, has_terminal=False), "reset by peer")


def left(request: str, seen: Answer | None = None) -> ev.ClientLeft:
    return ev.ClientLeft(RequestId(request), seen)


def failed(
    request: str, *, was_sent: bool = False, timed_out: bool = False, resends: int = 0
) -> ev.AttemptFailed:
    return ev.AttemptFailed(RequestId(request), "refused", was_sent, timed_out, resends)


def up(
    replica: str,
    *,
    pool: str = "pool",
    models: tuple[str, ...] = (),
    follows_hints: bool = False,
    knows_envelopes: bool = False,
) -> ev.ReplicaCameUp:
    abilities = Abilities(turnpike_hints=follows_hints, kv_hints=knows_envelopes)
    facts = ReplicaFacts(id=ReplicaId(replica), pool=PoolId(pool), models=models, abilities=abilities)
    return ev.ReplicaCameUp(facts)


def down(replica: str) -> ev.ReplicaWentDown:
    return ev.ReplicaWentDown(ReplicaId(replica), "does not answer")


def session_finished(session: str) -> ev.SessionFinished:
    return ev.SessionFinished(SessionId(session))
