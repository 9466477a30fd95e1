"""Sutradhara: turns by arrival of their task, what is cached by what it is, next prompts while tools run.

Source: Sutradhara (arXiv 2601.12967), §4.1: prompt splitting; §4.3: order by the task's arrival; eviction by
tags, RESPONSE first, then TOOL_OUTPUT, USER_QUERY, SYSTEM_PROMPT, PARTIAL_PREFILL.

Symbols: the tags → `_TAGS`, of what a conversation ends with; `submit_partial_prefill` → `Splits`.

Deviations: of a conversation the last blocks go first, which is the tags' order within it. A partial prefill
is sent where the next prompt stands under another system prompt; where it does not, all that is known of it
was computed before. Sessions with sub-agents have none. It is a request of its own, with its task's priority:
it is stopped when the rest comes, and what it computed is found. Streaming dispatch (§4.2) is the clients'
and a recipe of its own: `sutradhara+dispatch`.

Invariants: what was said last to nobody goes before what waits for a tool, and that before what was computed
for it ahead; of a conversation one prefill is under way at most.
"""

from collections.abc import Mapping
from typing import Final

from gateway.core import events as ev
from gateway.core.commands import Command, Prefill, StopPrefill
from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from lab.simulator.agents import agent_of
from lab.simulator.baselines.by_order import OldestFirst
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.router import Affinity, Router
from lab.simulator.brain import Brain
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.fleet import FleetSpec
from lab.workload.trace.format import Session, TurnRef

_TAGS: Final = {"response": 0.0, "tool_output": 1.0, "partial_prefill": 2.0}
_LONGEST_S: Final = 1e9
"""No simulation takes as long: recency only decides among equals."""


class Sutradhara(OldestFirst):
    keeps_openings = True

    def eviction_rank(self, turn: EngineTurn, *, now: float) -> float:
        tag = "partial_prefill" if turn.is_prefill else "tool_output" if turn.turn.tools else "response"
        return _TAGS[tag] + turn.submitted_s / _LONGEST_S


class Splits(Router):
    """The paper's orchestrator: it knows how the next prompt begins when an answer has ended."""

    def __init__(self, kv_tokens: Mapping[str, int], sessions: Mapping[str, Session]) -> None:
        super().__init__(kv_tokens, Affinity(), None)
        self._sessions = sessions
        self._conversations: dict[RequestId, tuple[str, int]] = {}
        self._turns: dict[tuple[str, int], int] = {}
        """That were answered."""
        self._under_way: dict[tuple[str, int], RequestId] = {}

    def handle(self, event: ev.Event, *, now: float) -> list[Command]:
        ahead: list[Command] = []
        if isinstance(event, ev.RequestArrived):
            ahead = self._came(event)
        elif isinstance(event, ev.ResponseFinished):
            ahead = self._paused(event)
        elif isinstance(event, ev.PrefillEnded):
            self._under_way = {key: turn for key, turn in self._under_way.items() if turn != event.turn}
            return []
        return [*super().handle(event, now=now), *ahead]

    def _came(self, event: ev.RequestArrived) -> list[Command]:
        stated = event.facts.explicit
        assert stated is not None
        conversation = stated.session, int(stated.thread or 0)
        self._conversations[event.request] = conversation
        of = self._under_way.pop(conversation, None)
        return [StopPrefill(turn=of)] if of is not None else []

    def _paused(self, event: ev.ResponseFinished) -> list[Command]:
        conversation = name, thread = self._conversations.pop(event.request)
        at = self._turns.get(conversation, 0)
        self._turns[conversation] = at + 1
        turn = self.live[event.request]
        session, book = self._sessions[name], turn.book
        if at + 1 == len(session.threads[thread].turns):
            del self._turns[conversation]
            return []
        following = TurnRef(thread, at + 1)
        agent = agent_of(session, following)
        is_other = agent != agent_of(session, TurnRef(thread, at)) and len(session.threads) == 1
        if not is_other or not event.answer.tool_calls or book is None:
            return []
        self._under_way[conversation] = event.request
        return [
            Prefill(
                turn=event.request,
                session=SessionId(name),
                thread=ThreadId(turn.thread),
                replica=ReplicaId(book.replica),
                agent=agent,
            )
        ]


def _sutradhara(plan: Plan, values: Values) -> Plan:
    policy = Sutradhara if values["cache"] else OldestFirst
    plan = plan.with_policy(policy, by_priority=True)
    if not values["split"]:
        return plan
    sessions: dict[str, Session] = {}

    def brain(fleet: FleetSpec) -> Brain:
        return Splits(plan.kv_tokens(fleet), sessions)

    return plan.with_brain(brain, foresee=lambda session: sessions.__setitem__(session.id, session))


SUTRADHARA = Recipe(
    name="sutradhara",
    summary="turns of the oldest task first; next prompts while tools run; answers are evicted first",
    source="arXiv 2601.12967",
    apply=_sutradhara,
    knobs=(
        Knob(name="split", default=1, sweep=(1,), meaning="0: without prompt splitting"),
        Knob(name="cache", default=1, sweep=(1,), meaning="0: the oldest blocks are evicted first"),
    ),
)
