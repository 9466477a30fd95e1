"""Progress of every conversation, and its prediction: the workflow view of live traffic.

Source: SAGA (§3), at the granularity of one conversation of a session: a sub-agent has its own agent type.

Symbols: v_s → `Conversation.step`; the prediction for its successor → `StepPrediction`.

Deviations: ends are not reported. A conversation counts as over with its session, or after a silence longer
than such pauses; as a finished task after `gone_after_s`. A later turn takes that back.

Invariants: a step is learned at most once, at the end of its answer; it is followed by a turn or an end,
once; at most `max_threads` conversations are kept, `MAX_OF_SESSION` of a session; one event ends a bounded
number.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import filterfalse
from math import inf
from operator import attrgetter
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.agent_key import AgentKey, agent_key, kind_of
from gateway.domain.decision import Edge, SessionRef
from gateway.domain.ids import NOBODYS, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Answer, RequestFacts
from gateway.domain.tenant_lru import TenantLru
from gateway.tool_probe.text_calls import Block, TextCalls
from gateway.workflow.aeg.graph import ExpectedReturn, Graph, HeldContext, Silence, Step, ToolSet, tool_set
from gateway.workflow.aeg.graphs import AegConfig, Graphs, Tier

# Conversations kept per session; more, if more have live turns.
MAX_OF_SESSION: Final = 64
_MOST_AT_ONCE: Final = 16
_LEAST_SILENCE_S: Final = 2.0
# Prior of pauses, with tools and without.
_SILENT_AT_FIRST_S: Final = {True: 60.0, False: 10.0}
_BEGIN: Final = (Edge.OPENS, Edge.SPAWNED)


class ConversationsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_threads: Annotated[int, Meta(ge=1)] = 100_000
    """Conversations kept."""
    gone_after_s: Annotated[float, Meta(gt=0)] = 300.0
    """A longer silence ends a conversation, whatever its usual pauses."""
    types: AegConfig = AegConfig()


class WorkflowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    progress: ConversationsConfig = ConversationsConfig()
    share_learned: bool = False
    """Evidence of one tenant counts for all. Without it every tenant starts cold; with it any tenant can
    mislead the others."""


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """At the end of an answer."""

    tier: Tier
    tools: ToolSet
    next: ToolSet | None
    """None for the end."""
    confidence: float
    ends: float
    pause: ExpectedReturn
    grows: float
    """Expected tokens of the next turn."""


class Conversation(msgspec.Struct, eq=False):
    agent: AgentKey
    text_calls: TextCalls
    key: int = 0
    """Of its type, among its owner's tools."""
    is_opening: bool = True
    """It begins here, not at another gateway or in the middle of another one."""
    step: Step | None = None
    """The last one."""
    pause: ExpectedReturn | None = None
    turns: int = 0
    tokens: float = 0.0
    """Its last prompt and answer."""
    grown: float | None = None
    """Since the turn before the last."""
    is_live: bool = False
    due_s: float = 0.0
    """When it counts as over."""
    look_s: float = inf
    """Its place in the heap."""
    ended_s: float = 0.0
    has_gone_on: bool = False
    """Its last step is learned with a return."""
    is_supposed_over: bool = False
    """Its last step is learned with an end."""
    is_over: bool = False
    late: int | None = None
    """The agent type of a replaced conversation with a live turn."""
    is_code: bool = False
    """Its last answer was a code block."""
    looks: tuple[int, ...] = ()
    """Of the text behind its last code block."""

    @property
    def works(self) -> bool:
        return self.is_live or (self.step is not None and bool(self.step.tools))


class Conversations:
    def __init__(self, config: ConversationsConfig, *, is_shared: bool = False) -> None:
        """`is_shared`: evidence of one tenant counts for all."""
        self._config = config
        self.is_shared = is_shared
        self.graphs = Graphs(config.types)
        self.text_calls: TenantLru[TenantId, None, TextCalls] = TenantLru(config.types.max_tenants)
        self._threads: OrderedDict[ThreadId, Conversation] = OrderedDict()
        # A heap.
        self._due: list[tuple[float, ThreadId]] = []
        self._sessions: dict[SessionId, list[ThreadId]] = {}
        self.thread = self._threads.get

    def __len__(self) -> int:
        return len(self._threads)

    def arrived(
        self, ref: SessionRef, facts: RequestFacts, owner: TenantId = NOBODYS, *, now: float
    ) -> Conversation | None:
        if ref.edge is Edge.SERVES:
            return None
        known = self._threads.get(ref.thread)
        if known is None:
            known = self._start(ref, facts, owner)
        elif ref.edge is Edge.OPENS and known.step is not None and known.agent.agent_type != kind_of(facts):
            before = known
            self._leave(before, as_task=True)
            known = self._start(ref, facts, before.agent.owner)
            known.look_s = before.look_s
            known.late = before.agent.agent_type if before.is_live else None
        else:
            self._threads.move_to_end(ref.thread)
            self._came_back(known, facts, now=now)
        known.is_live = True
        if (self._due and self._due[0][0] <= now) or len(self._threads) > self._config.max_threads:
            self._leave_silent(now=now)
        return known

    def answered(
        self, ref: SessionRef, facts: RequestFacts, answer: Answer | None, *, now: float
    ) -> StepPrediction | None:
        """None if the turn was no step."""
        known = self._threads.get(ref.thread) if ref.edge is not Edge.SERVES else None
        if known is None:
            return None
        if known.late is not None and known.late == kind_of(facts):
            known.late = None
            return None
        known.is_live = False
        if answer is None or answer.status >= 400:
            return None
        if not (answer.tool_calls or (answer.has_terminal and answer.is_good)):
            return None
        known.ended_s = now
        self._threads.move_to_end(ref.thread)
        if known.turns == 0 and ref.edge is Edge.OPENS:
            # Its client has begun anew under the same id, or compacted: idle conversations of the type are
            # over, and their state is of no use.
            for each in self._of(ref.session):
                if each is not known and each.agent == known.agent and not each.works:
                    self._leave(each, as_task=True)
                    each.tokens = 0.0
        graph = self.graphs.of(known.agent)
        step = self._step(known, graph, facts, answer)
        is_final = facts.explicit is not None and facts.explicit.final
        found = self._predicted(known, graph, step, is_final=is_final)
        known.pause = found.pause
        silent_s = found.pause.likely_s
        if silent_s is None:
            silent_s = _SILENT_AT_FIRST_S[bool(found.tools)]
        known.due_s = now + min(self._config.gone_after_s, max(_LEAST_SILENCE_S, silent_s))
        self._look_later(known, ref.thread)
        return found

    def behind(self, ref: SessionRef) -> tuple[int, StepPrediction] | None:
        """The key of its type, and the prediction after its last step; None while a turn is live."""
        known = self._threads.get(ref.thread) if ref.edge is not Edge.SERVES else None
        if known is None or known.is_live or known.has_gone_on:
            return None
        found = self.predict(known)
        return (known.key, found) if found is not None else None

    def doubted(
        self, ref: SessionRef, turn: RequestId, facts: RequestFacts, answer: Answer, *, now: float
    ) -> None:
        known, style = self._threads.get(ref.thread), answer.utterance.tool_call_style
        if known is not None and style.is_code and not facts.tool_count:
            known.text_calls.doubted(turn, Block(known.key, ref.session, style.names, now))

    def session_over(self, session: SessionId) -> None:
        for thread in self._sessions.pop(session, ()):
            known = self._threads.pop(thread, None)
            if known is not None:
                self._leave(known, as_task=True)

    def _step(self, known: Conversation, graph: Graph, facts: RequestFacts, answer: Answer) -> Step:
        usage, style = answer.usage, answer.utterance.tool_call_style
        known.turns += 1
        if usage.prompt_tokens is None:  # in some recordings; live it is estimated before
            graph.saw_turn(known.turns, tokens=None, grown=None)
        else:
            tokens = float(usage.prompt_tokens + (usage.output_tokens or 0))
            known.grown = tokens - known.tokens if known.tokens else None
            begins = known.turns == 1 and known.is_opening
            graph.saw_turn(known.turns, tokens=tokens if begins else None, grown=known.grown)
            if begins and usage.cached_tokens is not None and graph.saw_shared(usage.cached_tokens):
                self.graphs.shared_changes += 1
            known.tokens = tokens
        names = tuple(map(attrgetter("name"), filterfalse(attrgetter("is_at_engine"), answer.tool_calls)))
        tools = tool_set(names or known.text_calls.names(known.key, facts, answer))
        graph.saw_step(known.step.tools if known.step is not None else None, tools)
        step = known.step = Step(tools, style.opening if tools else style.close)
        known.is_code = style.is_code
        known.has_gone_on = known.is_supposed_over = known.is_over = False
        return step

    def predict(self, known: Conversation) -> StepPrediction | None:
        if known.step is None:
            return None
        return self._predicted(known, self.graphs.of(known.agent), known.step, is_final=False)

    def _predicted(self, known: Conversation, graph: Graph, step: Step, *, is_final: bool) -> StepPrediction:
        """`is_final`: by its client."""
        pause, tools = graph.expected_return(step), step.tools
        ends = 1.0 if is_final else 1.0 - pause.returns
        following, share = graph.next(tools)
        share *= 1.0 - ends
        return StepPrediction(
            tier=Tier.STATED if is_final else self.graphs.tier(graph),
            tools=tools,
            next=None if ends >= share else following,
            confidence=max(ends, share),
            ends=ends,
            pause=pause,
            grows=graph.outlook().growth(known.turns + 1),
        )

    def held(self, session: SessionId) -> HeldContext | None:
        """Of its longest conversation and active others; finished sub-agents and titles leave nothing of use.
        None before a step."""
        known = self._of(session)
        longest = max(known, key=attrgetter("tokens"), default=None)
        if longest is None or not longest.turns:
            return None
        if len(known) == 1:
            return HeldContext(longest.tokens, longest.agent, longest.turns)
        tokens = 0.0 if longest.works else longest.tokens
        for each in known:
            tokens += each.tokens if each.works else 0.0
        return HeldContext(tokens, longest.agent, longest.turns)

    def silence(self, session: SessionId, *, now: float) -> Silence | None:
        """Of the conversation that is likeliest to go on: after a sub-agent's last answer its parent. None
        before a step, or with a live turn."""
        silent: list[tuple[ExpectedReturn, Conversation]] = []
        for known in self._of(session):
            if known.is_live:
                return None
            if known.pause is not None and not known.has_gone_on and not known.is_over:
                silent.append((known.pause, known))
        if not silent:
            return None
        pause, likeliest = silent[0]
        if len(silent) > 1:
            pause, likeliest = max(silent, key=lambda each: each[0].back(now - each[1].ended_s))
        return Silence(likeliest.step is not None and bool(likeliest.step.tools), pause)

    def _of(self, session: SessionId) -> list[Conversation]:
        return list(filter(None, map(self._threads.get, self._sessions.get(session, ()))))

    def _look_later(self, known: Conversation, thread: ThreadId) -> None:
        if known.due_s >= known.look_s:
            return
        known.look_s = known.due_s
        heappush(self._due, (known.due_s, thread))
        if len(self._due) > 2 * len(self._threads) + MAX_OF_SESSION:  # mostly outdated
            self._due = [(each.look_s, of) for of, each in self._threads.items() if each.look_s < inf]
            heapify(self._due)

    def _start(self, ref: SessionRef, facts: RequestFacts, owner: TenantId) -> Conversation:
        agent = agent_key(ref, facts, owner)
        text_calls = self.text_calls.get(owner, None)
        if text_calls is None:
            text_calls = TextCalls()
            self.text_calls.put(owner, None, text_calls)
        self.graphs.of(agent)  # creates its family
        is_opening = ref.edge in _BEGIN and not facts.transcript.blocks
        known = Conversation(agent, text_calls, hash(agent[1:]), is_opening)
        if ref.thread not in self._threads:
            threads = self._sessions.setdefault(ref.session, [])
            if ref.thread not in threads:
                threads.append(ref.thread)
            # The oldest goes, but not the first, which the others work for.
            for thread in threads[1:-1] if len(threads) > MAX_OF_SESSION else ():
                if (other := self._threads.get(thread)) is None or not other.is_live:
                    threads.remove(thread)
                    self._threads.pop(thread, None)
                    break
        self._threads[ref.thread] = known
        self._threads.move_to_end(ref.thread)
        return known

    def _came_back(self, known: Conversation, facts: RequestFacts, *, now: float) -> None:
        step = known.step
        if step is None or known.has_gone_on:
            return
        graph = self.graphs.of(known.agent)
        if known.is_supposed_over:
            graph.was_no_end(step, known.turns)
        if known.is_over:
            graph.count(tasks=-1)
        known.has_gone_on, known.is_supposed_over, known.is_over = True, False, False
        graph.went_on(step, now - known.ended_s)
        looks = facts.transcript.new.looks
        if known.is_code and looks and not facts.tool_count:
            known.text_calls.observed(known.key, known.looks, looks)
            known.looks = looks

    def _leave_silent(self, *, now: float) -> None:
        due = self._due
        for _ in range(_MOST_AT_ONCE):
            if not due or due[0][0] > now:
                break
            when_s, thread = heappop(due)
            known = self._threads.get(thread)
            if known is None or known.look_s != when_s:
                continue  # outdated
            known.look_s = inf
            if known.is_live:
                continue  # its next answer sets a new time
            if known.due_s <= when_s:
                known.due_s = known.ended_s + self._config.gone_after_s
                self._leave(known, as_task=now >= known.due_s)
                if now >= known.due_s:
                    continue
            self._look_later(known, thread)
        while len(self._threads) > self._config.max_threads:
            self._threads.popitem(last=False)  # no evidence of an end

    def _leave(self, known: Conversation, *, as_task: bool) -> None:
        """`as_task`: it counts as a finished task."""
        if known.step is None or known.has_gone_on or known.is_over:
            return
        if known.is_supposed_over and not as_task:
            return
        graph = self.graphs.of(known.agent)
        if not known.is_supposed_over:
            known.is_supposed_over = True
            graph.ended(known.step, known.turns)
        if as_task:
            known.is_over = True
            graph.count(tasks=1)
