"""A static split: some replicas compute prompts, the others decode, and a threshold decides which prompts.

Source: what llm-d (its decider for prefill and decode) and Dynamo (`max_local_prefill_length`) do. The
replica that decodes is chosen first. A prompt of which more than so many tokens are not cached there is
computed by another one, of those that are for it.

Symbols: llm-d's non-cached tokens, Dynamo's `max_local_prefill_length` → `threshold`.

Deviations: a session decodes where it began, as with affinity, the stronger baseline; what is cached there is
known exactly as far as nothing was evicted; where no replica is for prompts all are computed where they are
decoded; of the replicas that compute prompts a session has one, too, so that what it computed
is found; Dynamo has a queue that all of them take from. A leg that fails is computed where it is
decoded.

Invariants: those of `Router`; no turn runs on a replica that is for prompts; a turn has at most one leg.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Command, RemotePrefill
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.roles import PREFILL_REPLICAS, roles_of, with_roles
from lab.simulator.baselines.router import BYTES_PER_TOKEN, Affinity, Router
from lab.simulator.fleet import FleetSpec

_NO_LIMIT_S: Final = 1e9


class SplitRouter(Router):
    def __init__(
        self, kv_tokens: Mapping[str, int], for_prompts: Collection[ReplicaId], threshold: int
    ) -> None:
        super().__init__(kv_tokens, Affinity(), None)
        self._for_prompts = for_prompts
        self._threshold = threshold
        self._sessions: dict[ReplicaId, int] = {}
        """Of the replicas that compute prompts and are up: for how many sessions each does."""
        self._prompts_at: dict[str, ReplicaId] = {}
        """By session."""
        self._new_tokens: dict[RequestId, int] = {}
        """Of turns that have had no leg: what has to be computed of their prompts."""

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        if isinstance(event, ev.ReplicaCameUp) and event.facts.id in self._for_prompts:
            self._sessions[event.facts.id] = 0
            return []
        if isinstance(event, ev.ReplicaWentDown):
            self._sessions.pop(event.replica, None)
        if isinstance(event, ev.PrefillLegEnded):
            self._waiting[event.request] = self.live[event.request]
            return list(self._let_in(now=now))
        return super().handle(event, now=now)

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        stated = event.facts.explicit
        member = self._members.get(stated.session) if stated is not None else None
        known = member.threads.get((stated.thread if stated is not None else None) or "", 0) if member else 0
        self._new_tokens[event.request] = event.facts.body_bytes // BYTES_PER_TOKEN - known
        super()._arrived(event, now=now)

    def _over(self, name: str) -> None:
        super()._over(name)
        replica = self._prompts_at.pop(name, None)
        if replica in self._sessions:
            self._sessions[replica] -= 1

    def _let_in(self, *, now: float) -> Iterable[Command]:
        for turn in self._ready():
            new_tokens = self._new_tokens.pop(turn.request, 0)
            if new_tokens <= self._threshold or not self._sessions:
                yield self._dispatch(turn, now=now)
                continue
            name = turn.member.name
            replica = self._prompts_at.get(name)
            if replica not in self._sessions:
                replica = min(self._sessions, key=self._sessions.__getitem__)
                self._prompts_at[name] = replica
                self._sessions[replica] += 1
            del self._waiting[turn.request]
            yield RemotePrefill(
                request=turn.request,
                session=SessionId(name),
                replica=replica,
                limit_s=_NO_LIMIT_S,
            )


def _split(plan: Plan, values: Values) -> Plan:
    fleet = with_roles(plan.fleet, str(values["prefill"]))
    for_prompts = roles_of(fleet, "prefill")
    plan = msgspec.structs.replace(plan, fleet=fleet)
    kv_tokens, threshold = plan.kv_tokens(fleet), int(values["threshold"])

    def brain(fleet: FleetSpec) -> SplitRouter:
        return SplitRouter(kv_tokens, for_prompts, threshold)

    return plan.with_brain(brain)


SPLIT = Recipe(
    name="split",
    summary="some replicas compute prompts longer than a threshold, the others decode them",
    source="llm-d, Dynamo",
    apply=_split,
    knobs=(
        PREFILL_REPLICAS,
        Knob(
            name="threshold",
            default=1000,
            sweep=(250, 1000, 4000, 16000),
            meaning="tokens that are not cached, above which a prompt is computed elsewhere",
        ),
    ),
)
