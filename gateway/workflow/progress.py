"""How far every conversation has come, and what follows: the workflow view of live traffic.

Source: SAGA (§3), at the granularity of one conversation of a session: a sub-agent's is a graph of its own,
entered by the tool call of its parent.

Symbols: v_s → `Thread.walk`; the prediction for its successor → `Pause`.

Deviations: nobody says when a conversation is over. Behind an answer without calls it counts as over until it
goes on; behind calls, when its session ends or it has been silent for longer than such pauses last. Should it
come back after all, that is taken back. What predictions are worth is learned later, when it is certain.

Invariants: a step is learned at most once, when its answer ends; of one conversation one prediction stands at
most; at most `max_threads` conversations are remembered, `MAX_OF_SESSION` of a session; one event takes leave
of a bounded number.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import NOBODYS, SessionId, TenantId, ThreadId
from gateway.domain.request import NO_MANNER, Answer, RequestFacts
from gateway.tool_probe.durations import DurationsConfig
from gateway.workflow.agent_types import AgentType, AgentTypes, AgentTypesConfig, Tier
from gateway.workflow.calibration import CalibrationConfig
from gateway.workflow.graph import Forecast, Graph
from gateway.workflow.learned import Learned, LearnedByTenant
from gateway.workflow.nodes import END, ToolSet, tool_set
from gateway.workflow.walk import Walk

MAX_OF_SESSION: Final = 64
"""Conversations of one session that are remembered."""
_MOST_AT_ONCE: Final = 16
_BYTES_PER_TOKEN: Final = 4.0
_LONG: Final = 0.98
_LONGER: Final = 2.0
_LEAST_SILENCE_S: Final = 10.0
_CERTAIN: Final = 6.0
_SILENT_AT_FIRST_S: Final = 60.0
"""While it is not known how long such pauses last: it is taken back easily."""
_ENOUGH: Final = 12.0
"""Pauses after a step, from which on it is known how long they last."""
_ASIDE: Final = (Edge.SERVES,)
_NEW: Final = (Edge.OPENS,)
"""Together with another prompt: a client may begin with a title, and under one id."""
_CHILD: Final = (Edge.SPAWNED,)
_UNSURE: Final = (Edge.RETRIES,)


class ProgressConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_threads: Annotated[int, Meta(ge=1)] = 100_000
    """Conversations whose place in their graph is remembered."""
    gone_after_s: Annotated[float, Meta(gt=0)] = 300.0
    """A conversation that is silent for so long is over for certain."""
    types: AgentTypesConfig = AgentTypesConfig()
    calibration: CalibrationConfig = CalibrationConfig()


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected at the end of an answer."""

    tier: Tier
    tools: ToolSet
    """What the answer asks for."""
    node: int
    next: ToolSet | None
    """What the next one is expected to ask for; None for the end."""
    probability: float
    """Of that, as the graph has it."""
    confidence: float
    """The same, corrected by how often such predictions were right."""
    is_confident: bool
    """It is above the threshold, and enough was seen of the type."""
    ends: float
    """Probability that the conversation is over."""
    steps_left: float
    new_tokens_left: float
    output_tokens_left: float


class Thread:
    """A conversation, as far as it has come."""

    __slots__ = (
        "agent",
        "due_s",
        "ended_s",
        "forecast",
        "gone",
        "graph",
        "is_code",
        "is_due",
        "is_live",
        "is_over",
        "late",
        "learned",
        "looks",
        "parent",
        "prompt_bytes",
        "prompt_tokens",
        "session",
        "supposed",
        "tools",
        "walk",
    )

    def __init__(self, session: SessionId, agent: AgentType, graph: Graph, learned: Learned) -> None:
        self.session = session
        self.agent = agent
        self.graph = graph
        self.learned = learned
        """Of its tenant."""
        self.walk = Walk()
        self.is_live = False
        """A request of it is on its way."""
        self.due_s = 0.0
        """When it counts as over."""
        self.is_due = False
        """It is in the heap of those that are looked at."""
        self.ended_s = 0.0
        """When its last answer did."""
        self.forecast: Forecast | None = None
        self.gone: Forecast | None = None
        """What was said when it began to count as over."""
        self.supposed: tuple[float, bool] | None = None
        """What calibration was told of that: the prediction's probability, and whether it was the end."""
        self.is_over = False
        """And that is what was learned."""
        self.late: int | None = None
        """The kind of agent whose conversation it took the place of, while its answer is on its way."""
        self.is_code = False
        """Its last answer was a code block, and perhaps a call."""
        self.looks: tuple[int, ...] = ()
        """How what came behind its last code block looked."""
        self.tools: ToolSet = ()
        self.parent: ThreadId | None = None
        self.prompt_bytes = 0
        self.prompt_tokens = 0.0


class Progress:
    def __init__(self, config: ProgressConfig, durations: DurationsConfig | None = None) -> None:
        self._config = config
        self.types = AgentTypes(config.types)
        self.learned = LearnedByTenant(
            config.calibration, durations or DurationsConfig(), max_tenants=config.types.max_tenants
        )
        self._threads: OrderedDict[ThreadId, Thread] = OrderedDict()
        """The longest silent first."""
        self._due: list[tuple[float, ThreadId]] = []
        """A heap: when to look whether a conversation is over."""
        self._sessions: dict[SessionId, list[ThreadId]] = {}
        self.predicted = self.mispredicted = 0
        """Predictions that were acted on, and those of them that turned out wrong."""

    def __len__(self) -> int:
        return len(self._threads)

    def thread(self, thread: ThreadId) -> Thread | None:
        return self._threads.get(thread)

    # --- what happens ------------------------------------------------------------------------------

    def arrived(
        self, ref: SessionRef, facts: RequestFacts, owner: TenantId = NOBODYS, *, now: float
    ) -> Thread | None:
        """A turn came. None if it is no step: a side request. `owner`: whose what it teaches is."""
        if ref.edge in _ASIDE:
            return None
        known = self._threads.get(ref.thread)
        if known is None:
            known = self._start(ref, facts, owner)
        elif ref.edge in _NEW and known.walk.steps and known.agent.kind != facts.transcript.agent_type:
            known = self._begin_anew(ref, facts, known)
        else:
            self._threads.move_to_end(ref.thread)
            self._came_back(known, facts, now=now)
        known.is_live = True
        self._leave_silent(now=now)
        return known

    def answered(
        self,
        ref: SessionRef,
        facts: RequestFacts,
        answer: Answer | None,
        *,
        may_look: bool = True,
        now: float,
    ) -> Pause | None:
        """The turn is over. None if that was no step, or one that there was no time to look at."""
        known = self._threads.get(ref.thread) if ref.edge not in _ASIDE else None
        if known is None:
            return None
        if known.late is not None and known.late == facts.transcript.agent_type:
            known.late = None
            return None
        known.is_live = False
        if answer is None or answer.status >= 400 or not (answer.has_terminal or answer.tool_calls):
            return None
        known.ended_s = now
        self._threads.move_to_end(ref.thread)
        names = [call.name for call in answer.tool_calls if not call.is_at_engine]
        if not may_look and (names or facts.tool_count):  # else the text has to be read for calls
            self._pass(ref.thread, known, tool_set(names), facts)
            return None
        tools = tool_set(names or known.learned.text_calls.names(known.agent.key, facts, answer))
        self._learn_size(known, facts, answer)
        return self._step(ref.thread, known, tools, facts, answer)

    def was_passed(self, ref: SessionRef) -> bool:
        """The last step of its thread was beyond the allowance, so nothing was predicted after it."""
        known = self._threads.get(ref.thread)
        return known is not None and known.forecast is None and known.walk.steps > 0

    def session_over(self, session: SessionId) -> None:
        for thread in self._sessions.pop(session, ()):
            known = self._threads.pop(thread, None)
            if known is not None:
                self._learn_end(known)

    # --- steps -------------------------------------------------------------------------------------

    def _step(
        self, thread: ThreadId, known: Thread, tools: ToolSet, facts: RequestFacts, answer: Answer
    ) -> Pause:
        graph, walk = known.graph, known.walk
        node = graph.nodes.number(tools)
        before = known.forecast or graph.forecast(walk)
        self._check(known, before, node)
        graph.learn(before, node)
        walk.step(
            node,
            answer.utterance.manner,
            is_asked=not facts.tool_result_ids,
            has_tools=facts.tool_count > 0,
        )
        known.tools, known.is_code = tools, answer.utterance.manner.is_code
        known.forecast = forecast = graph.forecast(walk)
        known.due_s = known.ended_s + self._silent_s(known)
        if not tools:
            self._suppose_over(known, forecast)
        self._look_later(known, thread)
        return self._pause(known, forecast, node, is_final=bool(facts.explicit and facts.explicit.final))

    def _pass(self, thread: ThreadId, known: Thread, tools: ToolSet, facts: RequestFacts) -> None:
        """A step that nothing is learned from, nor predicted of."""
        node = known.graph.nodes.number(tools)
        known.walk.step(
            node,
            NO_MANNER,
            is_asked=not facts.tool_result_ids,
            has_tools=facts.tool_count > 0,
        )
        known.tools, known.is_code, known.forecast = tools, False, None
        known.due_s = known.ended_s + self._config.gone_after_s
        self._look_later(known, thread)

    def _look_later(self, known: Thread, thread: ThreadId) -> None:
        if known.is_due:
            return
        known.is_due = True
        heappush(self._due, (known.due_s, thread))
        if len(self._due) > 2 * len(self._threads) + MAX_OF_SESSION:  # most of it is of the forgotten
            self._due = [due for due in self._due if due[1] in self._threads]
            heapify(self._due)

    def _pause(self, known: Thread, forecast: Forecast, node: int, *, is_final: bool) -> Pause:
        graph = known.graph
        likeliest, share = forecast.likeliest
        ends = forecast.shares[0]
        is_known = self.types.is_known(graph)
        tier = Tier.STATED if is_final else Tier.INFERRED if is_known else Tier.UNKNOWN
        confidence = known.learned.calibration.confidence(share)
        if is_final:
            likeliest, share, confidence, ends = END, 1.0, 1.0, 1.0
        left = graph.remaining.steps(known.walk.steps, ends=ends)
        return Pause(
            tier=tier,
            tools=known.tools,
            node=node,
            next=None if likeliest == END else graph.nodes.tools(likeliest),
            probability=share,
            confidence=confidence,
            is_confident=is_final or (is_known and confidence >= known.learned.calibration.threshold),
            ends=ends,
            steps_left=left,
            new_tokens_left=left * graph.remaining.new_tokens,
            output_tokens_left=left * graph.remaining.output_tokens,
        )

    def _check(self, known: Thread, forecast: Forecast, node: int) -> None:
        """What was predicted, against what came."""
        if not known.walk.steps or not forecast.opinions:
            return
        self._count(known, forecast, node)
        likeliest, share = forecast.likeliest
        known.learned.calibration.learn(share, was_right=likeliest == node, is_end=likeliest == END)

    def _count(self, known: Thread, forecast: Forecast, node: int) -> None:
        likeliest, share = forecast.likeliest
        if self.types.is_known(known.graph):
            if known.learned.calibration.confidence(share) >= known.learned.calibration.threshold:
                self.predicted += 1
                self.mispredicted += likeliest != node

    def _learn_size(self, known: Thread, facts: RequestFacts, answer: Answer) -> None:
        prompt = answer.usage.prompt_tokens
        tokens = float(prompt) if prompt is not None else facts.body_bytes / _BYTES_PER_TOKEN
        output = answer.usage.output_tokens
        if known.walk.steps:
            known.graph.saw_step(tokens - known.prompt_tokens, float(output or 0))
        known.prompt_tokens = tokens + (output or 0)
        known.prompt_bytes = facts.body_bytes

    # --- coming, going, and coming back ------------------------------------------------------------

    def _start(self, ref: SessionRef, facts: RequestFacts, owner: TenantId) -> Thread:
        script = facts.transcript
        is_child = ref.edge in _CHILD
        agent = AgentType(script.agent_type, facts.client, is_child, owner)
        known = Thread(ref.session, agent, self.types.graph(agent), self.learned.of(owner))
        if ref.thread not in self._threads:
            self._remember(ref)
        self._threads[ref.thread] = known
        self._threads.move_to_end(ref.thread)
        return known

    def _remember(self, ref: SessionRef) -> None:
        """Adds a conversation to its session's; of too many the first is forgotten."""
        threads = self._sessions.setdefault(ref.session, [])
        threads.append(ref.thread)
        if len(threads) > MAX_OF_SESSION:
            oldest = self._threads.pop(threads.pop(0), None)
            if oldest is not None:
                self._learn_end(oldest)

    def _begin_anew(self, ref: SessionRef, facts: RequestFacts, before: Thread) -> Thread:
        """Another conversation goes by the same thread, which nothing of this one leads to."""
        self._learn_end(before)
        known = self._start(ref, facts, before.agent.owner)
        known.is_due = before.is_due
        known.late = before.agent.kind if before.is_live else None
        return known

    def _came_back(self, known: Thread, facts: RequestFacts, *, now: float) -> None:
        if known.gone is not None:
            known.graph.suppose(known.gone, END, -1.0)
            known.gone = None
            if known.supposed is not None:
                share, was_right = known.supposed
                known.learned.calibration.suppose(share, was_right=was_right, by=-1.0)
                known.supposed = None
        if known.is_over:
            known.is_over = False
            known.graph.take_back_end()
        if known.is_live or not known.walk.steps:
            return
        known.graph.saw_gap(known.walk.last, now - known.ended_s)
        looks = facts.transcript.new.looks
        if known.is_code and looks and not facts.tool_count:
            known.learned.text_calls.observed(known.agent.key, known.looks, looks)
            known.looks = looks

    def _leave_silent(self, *, now: float) -> None:
        """Takes leave of those that are silent for too long, or too many; of some at a time."""
        due = self._due
        for _ in range(_MOST_AT_ONCE):
            if not due or due[0][0] > now:
                break
            when_s, thread = heappop(due)
            known = self._threads.get(thread)
            if known is None or known.is_live:
                if known is not None:
                    known.is_due = False  # it is looked at again after its next answer
                continue
            if known.due_s > when_s:
                heappush(due, (known.due_s, thread))
                continue
            if known.gone is None and known.forecast is not None:
                self._suppose_over(known, known.forecast)
            certain_s = known.ended_s + min(self._config.gone_after_s, _CERTAIN * self._silent_s(known))
            if known.due_s < certain_s:
                known.due_s = certain_s
                heappush(due, (known.due_s, thread))
                continue
            known.is_due = False
            self._learn_end(known)
        while len(self._threads) > self._config.max_threads:
            _, known = self._threads.popitem(last=False)
            self._learn_end(known)

    def _silent_s(self, known: Thread) -> float:
        """How long this conversation may be silent before it counts as over: longer than such pauses last."""
        gaps = known.graph.gaps_behind(known.walk.last, enough=_ENOUGH)
        longest = gaps.quantile(_LONG) if gaps is not None and gaps.weight >= _ENOUGH else None
        silent_s = _SILENT_AT_FIRST_S if longest is None else max(_LEAST_SILENCE_S, _LONGER * longest)
        return min(self._config.gone_after_s, silent_s)

    def _learn_end(self, known: Thread) -> None:
        forecast = known.forecast
        if forecast is None or known.is_over:
            return
        gone = known.gone or self._suppose_over(known, forecast)
        if forecast.opinions:
            self._count(known, forecast, END)
        known.graph.learn_weights(gone, END)
        gone.opinions = []  # which are large
        known.is_over = True
        known.graph.saw_end(known.walk.steps)
        known.forecast = None

    def _suppose_over(self, known: Thread, forecast: Forecast) -> Forecast:
        """Learns that, from what would be said now: what was said at the pause may be long outdated."""
        gone = known.gone = known.graph.forecast(known.walk) if known.tools else forecast
        known.graph.suppose(gone, END)
        if forecast.opinions:
            likeliest, share = forecast.likeliest
            known.supposed = share, likeliest == END
            known.learned.calibration.suppose(share, was_right=likeliest == END)
        return gone
