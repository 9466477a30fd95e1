"""Prompts that are computed ahead of their turns, while tools run: which, and their books (U1).

A conversation's next turn is expected under another system prompt, and what is known of it is computed where
it will run (`gateway/prefill_ahead/worth.py`).

Source: Sutradhara (§4.1).

Deviations: the paper's engine goes on with a part that it was sent. A stock server has no such door, but it
has a prefix cache: it is sent what is known of the prompt for one token that nobody reads, and the next turn
finds that. So it is no harm to stop one when its turn has come: what was computed by then is found. To a
stock server all requests are alike: one is sent there only while nothing else is in flight, and stopped as
soon as a turn is sent. It waits for that, as long as the pause lasts.

Invariants: a prefill is in its replica's books from its command until its end, however it ends; a
turn there is at most one at a time. It takes no place there, so that nobody waits for it. Of each that was
begun one has one outcome; at most `max_sessions` sessions that pause are remembered.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from gateway.core.brain_state import BrainState
from gateway.core.commands import Prefill, StopPrefill
from gateway.core.to_engines import ToEngines
from gateway.core.turns.lifecycle import LifecycleError
from gateway.core.turns.live import LiveRequest
from gateway.domain.decision import Edge
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.prefill_ahead.next_agents import NextAgents
from gateway.prefill_ahead.worth import Outcome, PrefillAheadConfig, outcome_of, pays
from gateway.routing.kv_ledger import Conversation
from gateway.workflow.aeg.graph import ToolSet
from gateway.workflow.conversations import StepPrediction

# How long tools are taken to run of which nothing is known.
_UNKNOWN_GAP_S: Final = 1.0
_STEPS: Final = 20_000
# Conversations of one session that are remembered, as in `workflow/conversations.py`.
_OF_SESSION: Final = 64


class Pause(msgspec.Struct, eq=False, kw_only=True):
    """A conversation whose tools run."""

    conversation: Conversation
    turn: RequestId
    replica: ReplicaId
    owner: TenantId
    agent_type: int
    """Of the conversation, as `AgentType.key`."""
    tools: ToolSet
    tokens: float = 0.0
    """Of that turn, and of its answer."""
    guess: int = 0
    """The agent of its next turn; 0: none is made."""
    probability: float = 0.0
    """That it comes, and under that one."""
    gap_s: float = 0.0
    """Until then, as expected."""
    ahead: "_Ahead | None" = None
    gave_way: bool = False


class _Ahead(msgspec.Struct, eq=False):
    pause: Pause
    began_s: float
    ended_s: float | None = None
    usage: Usage | None = None
    """None unless it came to its end."""
    is_off: bool = False
    is_right: bool | None = None
    """As the next turn shows."""


class PrefillsAhead:
    def __init__(self, config: PrefillAheadConfig, shared: BrainState, to_engines: ToEngines) -> None:
        self.config = config
        self._fleet = shared.fleet
        self._placement = shared.placement
        self._forecasts = shared.forecasts
        self._waiting_room = shared.waiting_room
        self._out, self._records = shared.out, shared.records
        self._to_engines = to_engines
        self._under_way: dict[RequestId, _Ahead] = {}
        # The longest silent session first.
        self._pauses: OrderedDict[SessionId, dict[ThreadId, Pause]] = OrderedDict()
        # By turn: those that wait for slack, or gave way; the longest first.
        self._wanted: dict[ReplicaId, dict[RequestId, Pause]] = {}
        # By the turn that was to find it, and is not over.
        self._awaited: dict[RequestId, _Ahead] = {}
        self.next_agents = NextAgents(_STEPS)

    def at(self, replica: ReplicaId) -> int:
        return sum(ahead.pause.replica == replica for ahead in self._under_way.values())

    # --- conversations that pause ------------------------------------------------------------------

    def paused(
        self, live: LiveRequest, usage: Usage, agent_type: int, behind: StepPrediction, *, now: float
    ) -> None:
        """A turn was answered, and its tools run. What is known of the next prompt may be computed meanwhile,
        if that will stand under another system prompt. `agent_type`: of its
        conversation; `behind`: what is expected behind it."""
        assert live.session is not None
        pause = Pause(
            conversation=(live.session.session, live.session.thread),
            turn=live.request,
            replica=live.tried[-1],
            owner=live.owner,
            agent_type=agent_type,
            tools=behind.tools,
        )
        self._remember(pause, now=now)
        expected = self.next_agents.expected(live.owner, agent_type, behind.tools)
        if (
            expected is None
            or expected.agent in (0, live.facts.transcript.agent)
            or expected.seen < self.config.min_seen
            or expected.share < self.config.least_share
            or usage.prompt_tokens is None
            or not live.facts.is_replayable
            or live.home is not None
        ):
            return
        pause.guess = expected.agent
        pause.probability = expected.share * (1.0 - behind.ends)
        pause.tokens = usage.prompt_tokens + (usage.output_tokens or 0)
        pause.gap_s = behind.pause.quantile_s(0.5) or _UNKNOWN_GAP_S
        self._want(pause)
        self.look_for_slack(pause.replica, now=now)

    def _remember(self, pause: Pause, *, now: float) -> None:
        session, thread = pause.conversation
        threads = self._pauses.setdefault(session, {})
        if thread in threads:
            self._give_up(threads.pop(thread), now=now)
        threads[thread] = pause
        self._pauses.move_to_end(session)
        if len(threads) > _OF_SESSION:
            self._give_up(threads.pop(next(iter(threads))), now=now)
        if len(self._pauses) > self.config.max_sessions:
            _, forgotten = self._pauses.popitem(last=False)
            for each in forgotten.values():
                self._give_up(each, now=now)

    def look_for_slack(self, replica: ReplicaId, *, now: float) -> None:
        for pause in tuple(self._wanted.get(replica, {}).values()):
            if not self._may_begin(replica):
                return
            ledger = self._placement.ledger
            if ledger.replicas[replica].horizon - ledger.sums(replica).held < pause.tokens:
                return
            if pause.turn in self._under_way:
                continue  # it gives way already, and has yet to end
            if self._pays(pause):
                self._begin(pause, now=now)
            else:
                self._unwant(pause)

    def _may_begin(self, replica: ReplicaId) -> bool:
        state = self._fleet.get(replica)
        if state is None or not state.is_up or state.is_draining or self._waiting_room.turns:
            return False
        prefills = self.at(replica)
        if prefills >= self.config.max_concurrent:
            return False
        # Else it would hold up others: those that decode share each step with it, and no step is stopped.
        return self._to_engines.displaces(replica) or state.running + state.elsewhere + prefills == 0

    def _pays(self, pause: Pause) -> bool:
        state = self._fleet.get(pause.replica)
        return state is not None and pays(
            self.config,
            prefill_s=self._forecasts.turn_s(pause.replica, pause.tokens, 0, 1),
            pause_s=pause.gap_s,
            probability=pause.probability,
            running=state.running,
        )

    def _want(self, pause: Pause) -> None:
        self._wanted.setdefault(pause.replica, {})[pause.turn] = pause

    def _unwant(self, pause: Pause) -> None:
        wanted = self._wanted.get(pause.replica)
        if wanted is not None and wanted.pop(pause.turn, None) is not None and not wanted:
            del self._wanted[pause.replica]

    def _begin(self, pause: Pause, *, now: float) -> None:
        session, thread = pause.conversation
        self._unwant(pause)
        pause.gave_way = False
        self._under_way[pause.turn] = pause.ahead = _Ahead(pause, now)
        self._fleet.submitted(pause.replica, is_light=True)
        self._out.append(
            Prefill(
                turn=pause.turn,
                session=session,
                thread=thread,
                replica=pause.replica,
                hint=self._to_engines.with_prefill(pause.conversation, pause.replica),
                agent=pause.guess,
            )
        )

    def _make_way(self, replica: ReplicaId) -> None:
        for ahead in self._under_way.values():
            if ahead.pause.replica == replica and not ahead.is_off:
                self._stop(ahead)
                ahead.pause.gave_way = True
                self._want(ahead.pause)

    # --- turns -------------------------------------------------------------------------------------

    def sent(self, live: LiveRequest, replica: ReplicaId) -> None:
        if live.session is not None:
            self._goes_on(live)
        if not self._to_engines.displaces(replica):
            self._make_way(replica)

    def _goes_on(self, live: LiveRequest) -> None:
        assert live.session is not None
        session, thread = live.session.session, live.session.thread
        threads = self._pauses.get(session)
        if threads is None or live.session.edge is Edge.SERVES:
            return
        pause = threads.pop(thread, None)
        if pause is None:
            return
        if not threads:
            del self._pauses[session]
        self._unwant(pause)
        pause.gave_way = False
        agent = live.facts.transcript.agent
        goes_on = live.session.edge is Edge.CONTINUES
        if goes_on:
            self.next_agents.learn(pause.owner, pause.agent_type, pause.tools, agent)
        ahead = pause.ahead
        if ahead is not None:
            ahead.is_right = goes_on and agent == pause.guess
            self._awaited[live.request] = ahead
            self._stop(ahead)

    def turn_over(self, request: RequestId, usage: Usage | None, *, now: float) -> None:
        """Any turn is over. `usage`: None if it got no answer."""
        ahead = self._awaited.pop(request, None)
        if ahead is not None:
            outcome, used = outcome_of(ahead.usage, usage, is_right=bool(ahead.is_right))
            self._emit(ahead, outcome, used, now=now)

    def session_over(self, session: SessionId, *, now: float) -> None:
        for pause in self._pauses.pop(session, {}).values():
            self._give_up(pause, now=now)

    def _give_up(self, pause: Pause, *, now: float) -> None:
        self._unwant(pause)
        pause.gave_way = False
        if pause.ahead is not None:
            self._stop(pause.ahead)
            self._emit(pause.ahead, Outcome.CANCELLED, 0, now=now)

    # --- prefills ----------------------------------------------------------------------------------

    def ended(self, turn: RequestId, usage: Usage | None, *, now: float) -> ReplicaId:
        """Where it was. `usage`: None if it did not come to its end."""
        ahead = self._under_way.pop(turn, None)
        if ahead is None:
            raise LifecycleError(f"no prefill of {turn} is under way")
        self._fleet.ended(ahead.pause.replica, is_light=True)
        self._ahead_ended(ahead, usage, now=now)
        return ahead.pause.replica

    def _ahead_ended(self, ahead: _Ahead, usage: Usage | None, *, now: float) -> None:
        pause = ahead.pause
        ahead.ended_s, ahead.usage = now, usage
        if usage is not None:
            self._placement.ledger.turn_over(pause.conversation, pause.replica, usage)
            self._unwant(pause)
            pause.gave_way = False
        elif pause.gave_way or not ahead.is_off:
            # Its next turn has yet to come; what was computed by then is found, if it gave way.
            pause.ahead = None
            self._emit(ahead, Outcome.GAVE_WAY if pause.gave_way else Outcome.FAILED, 0, now=now)

    def _stop(self, ahead: _Ahead) -> None:
        if ahead.ended_s is None and not ahead.is_off:
            ahead.is_off = True
            self._out.append(StopPrefill(turn=ahead.pause.turn))

    def _emit(self, ahead: _Ahead, outcome: Outcome, used: int, *, now: float) -> None:
        took_s = (ahead.ended_s if ahead.ended_s is not None else now) - ahead.began_s
        self._records.prefilled_ahead(
            ahead.pause.conversation,
            ahead.pause.turn,
            ahead.pause.replica,
            outcome.value,
            ahead.usage or Usage(),
            used_tokens=used,
            took_s=took_s,
            now=now,
        )
