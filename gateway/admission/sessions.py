"""Places: which sessions are admitted, and since when each is idle.

Source: ours (the unit is the session); MARS (§2.2) for places during tool phases.

Symbols: *admitted session* → `Member.is_in`.

Deviations: SAGA (Alg. 1) ends an idle session at a quantile of the tool's latency, of 300 s at most. Here a
session counts as gone once that is likelier than not, by its agent type's execution graph: with P the chance
of a return and S(t) the share of pauses longer than t, when P S(t) < 1 - P. While nothing is known, P is a
half after a plain answer, so the place is free at once. A place is kept no longer than it is worth: holding c
tokens for g seconds takes the share c / C of a replica's memory, evicting them a prefill of c tokens. So the
limit is the time of computing the whole cache anew, C times a token's time; holding for just so long costs at
most twice the optimum with a known return. During tool phases places are kept for longer, since the session
returns.

Invariants: a session is in from its first admitted turn until it ends or exceeds its limit of idle time; a
session with a live turn stays in; `count` is the number of places taken: for each session its live turns, and
one at least; `residents` counts exactly the sessions that are in; `no_live_turn_since_s` is set exactly while
they have no live turn; a limit lies between `least_s` and the most for its kind, times the present factor of
slow tools.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.admission.classes import ServiceClass
from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.footprint import NOTHING, Demand, Residents, demand_of
from gateway.admission.turn_request import TurnRequest
from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import ReplicaId, SessionId, TenantId
from gateway.workflow.aeg.graph import ExpectedReturn, Silence
from gateway.workflow.aeg.graphs import Graphs

_LOOKED_AT: Final = 256
# Smaller changes of a chance are not counted: each costs some µs.
_NOTICED: Final = 0.02


class PausesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    least_s: Annotated[float, Meta(ge=0)] = 2.0
    """Least time that a session keeps its slot after a turn."""
    max_tool_s: Annotated[float, Meta(gt=0)] = 300.0
    """Most time while its tools run at their usual speed."""
    max_idle_s: Annotated[float, Meta(gt=0)] = 60.0
    """Most time after an answer without tool calls."""
    unknown_tool_s: Annotated[float, Meta(gt=0)] = 120.0
    """Time for tools without known durations."""


_UNKNOWN_PAUSE: Final = ExpectedReturn(0.5, None)


class Member(msgspec.Struct, kw_only=True, eq=False):
    session: SessionId
    tenant: TenantId
    agent: AgentKey
    task_arrived_s: float
    service_class: ServiceClass = ServiceClass.REACTIVE
    is_deprioritized: bool = False
    """Beyond a bound."""
    turn: int = 0
    """Answered turns of its longest conversation."""
    live: int = 0
    """Admitted turns."""
    side_requests: int = 0
    """Of the live turns: a title or a summary beside the session."""
    has_results: bool = False
    """Tool results without a turn since."""
    runs_tools: bool = False
    """Also after an eviction."""
    tokens: float = 0.0
    """First an estimate by the bytes of its prompt."""
    replica: ReplicaId | None = None
    """Of its newest turn."""
    demand: Demand = NOTHING
    """As counted among the residents."""
    is_in: bool = False
    places: int = 0
    is_over_limit: bool = False
    was_evicted: bool = False
    """Its state may be gone."""
    eviction_reason: str = ""
    """Why its next turn waits."""
    waiting_since_s: float | None = None
    """Kept over retries."""
    left_s: float = 0.0
    """When it last left the queue."""
    silence: Silence | None = None
    """Also after an eviction; None while a turn is live."""
    keeps_s: float = 0.0
    """How long this silence keeps the place."""
    gap_since_s: float = 0.0
    is_pause: bool = True
    """Its last turn was answered; what follows a failure or a cancellation is no pause."""
    began_s: float = 0.0
    kept_s: float = 0.0
    """Idle time before its eviction."""
    back: float = 1.0
    """The chance of another turn: below 1 after a plain answer."""

    @property
    def class_on_engines(self) -> ServiceClass:
        return ServiceClass.PROACTIVE if self.is_deprioritized else self.service_class


class Turn(msgspec.Struct):
    member: Member
    applicant: TurnRequest
    arrived_s: float
    charged: float = 0.0
    """Tokens of its tenant's quota."""
    silent_s: float | None = None
    """Since the session's turn before, if that has ended."""
    is_aside: bool = False
    """A side request is no evidence of how its session goes on."""
    is_last: bool = False
    """A trusted client expects no further turn."""
    is_admitted: bool = False
    may_find_warm: bool = False
    """Its session's state was probably there when it began."""
    pause_s: float = 0.0
    """Idle time of its session in its place before."""
    gap_s: float = 0.0
    """The same of a tool phase."""


class Places:
    """The places of one pool."""

    def __init__(
        self, graphs: Graphs, config: PausesConfig, hold: Callable[[TenantId, float], None], cpu: CpuPressure
    ) -> None:
        """`hold`: takes the change of a tenant's places."""
        self._graphs = graphs
        self._config = config
        self._hold = hold
        self._cpu = cpu
        # Every known session that has not ended.
        self.members: dict[SessionId, Member] = {}
        self.residents = Residents(graphs)
        self.count = 0
        self.above = 0
        self.by_tenant: dict[TenantId, dict[SessionId, Member]] = {}
        self.live = 0
        self.no_live_turn_since_s: float | None = float("-inf")
        # Sessions with running tools, admitted or not.
        self.with_tools: dict[AgentKey, int] = {}
        # Of admitted sessions, as reported; shared prefixes count for each.
        self.tokens = 0.0
        # Admitted, without a live turn.
        self._silent: OrderedDict[SessionId, Member] = OrderedDict()
        # Admitted, to leave at their next turn.
        self.marked: dict[SessionId, Member] = {}
        # Evicted, while their tools run.
        self._evicted: OrderedDict[SessionId, Member] = OrderedDict()
        # With changes that `residents` does not have yet.
        self._dirty: dict[SessionId, Member] = {}

    def in_places(self) -> list[Member]:
        return [each for of_tenant in self.by_tenant.values() for each in of_tenant.values()]

    def sessions_of(self, tenant: TenantId) -> int:
        return len(self.by_tenant.get(tenant, ()))

    # --- in and out --------------------------------------------------------------------------------

    def enter(self, member: Member, *, is_over_limit: bool = False, now: float) -> None:
        assert not member.is_in
        member.is_in, member.is_over_limit = True, is_over_limit
        self._evicted.pop(member.session, None)
        member.eviction_reason = ""
        self._take(member)
        self.above += is_over_limit
        self.by_tenant.setdefault(member.tenant, {})[member.session] = member
        member.demand = self.demand_of(member, back=member.back)
        self.tokens += member.tokens
        if not member.live:
            self._silent[member.session] = member
            if member.silence is not None:  # its wait for a place is no silence
                since_s = member.waiting_since_s if member.waiting_since_s is not None else now
                member.gap_since_s += now - max(since_s, member.gap_since_s)
            else:
                member.silence, member.gap_since_s = Silence(False, None), now
        member.waiting_since_s = None
        self.residents.enter(member.agent, member.demand)

    def release(self, member: Member) -> None:
        assert member.is_in and not member.live
        for each in (self._dirty, self._silent, self.marked):
            each.pop(member.session, None)
        self.tokens -= member.tokens
        self.residents.leave(member.agent, member.demand)
        member.is_in, member.demand = False, NOTHING
        member.was_evicted = True
        if member.runs_tools:
            self._evicted[member.session] = member
        self._take(member)
        self.above -= member.is_over_limit
        del self.by_tenant[member.tenant][member.session]
        if not self.by_tenant[member.tenant]:
            del self.by_tenant[member.tenant]

    def tools_run(self, member: Member, *, do_run: bool) -> None:
        if member.runs_tools is not do_run:
            member.runs_tools = do_run
            if not do_run:
                self._evicted.pop(member.session, None)
            more = 1 if do_run else -1
            self._cpu.active += more
            count = self.with_tools.pop(member.agent, 0) + more
            if count:
                self.with_tools[member.agent] = count

    def _take(self, member: Member, turns: int = 0) -> None:
        member.live += turns
        self.live += turns
        places = max(1, member.live) if member.is_in else 0
        if more := places - member.places:
            member.places = places
            self.count += more
            self._hold(member.tenant, float(more))

    # --- turns -------------------------------------------------------------------------------------

    def turn_began(self, member: Member, *, is_aside: bool = False, now: float) -> None:
        """`is_aside`: a side request ends no silence: tools run on beside it."""
        assert member.is_in
        self._silent.pop(member.session, None)
        if member.back < 1.0:
            member.back = 1.0
            self._dirty[member.session] = member
        self._take(member, 1)
        self.no_live_turn_since_s = None
        if is_aside:
            member.side_requests += 1
            return
        if member.runs_tools:
            self.tools_run(member, do_run=False)
        member.silence = None
        member.began_s, member.kept_s = now, 0.0

    def turn_ended(
        self,
        member: Member,
        silence: Silence,
        *,
        is_answered: bool = True,
        is_aside: bool = False,
        now: float,
    ) -> None:
        """`silence`: of the session, unless this was a side request."""
        self._take(member, -1)
        member.side_requests -= is_aside
        if not self.live:
            self.no_live_turn_since_s = now
        if not is_aside and member.live == member.side_requests:
            member.silence, member.gap_since_s, member.is_pause = silence, now, is_answered
            config, (is_tool, pause) = self._config, silence
            likely_s = pause.likely_s if pause is not None else None
            if likely_s is None:
                likely_s = config.unknown_tool_s if is_tool else config.least_s
            most_s = config.max_tool_s if is_tool else config.max_idle_s
            member.keeps_s = max(config.least_s, min(most_s, likely_s))
            self.tools_run(member, do_run=is_tool)
        elif is_aside and not member.turn:  # its first request was a title
            member.gap_since_s = now
        if not member.live:
            assert member.silence is not None
            self._silent[member.session] = member
            if not member.silence.has_tools:
                self._weigh(member, now=now)

    def recompute_demand(self) -> None:
        for member in self._dirty.values():
            demand = self.demand_of(member, back=member.back)
            self.residents.change(member.demand, demand)
            member.demand = demand
        self._dirty.clear()

    def holds(self, member: Member, tokens: float, *, agent: AgentKey | None = None) -> None:
        """`agent`: may change, since the first request may be a title."""
        if agent is not None and agent != member.agent:
            ran_tools = member.runs_tools
            self.tools_run(member, do_run=False)
            if member.is_in:
                self.residents.leave(member.agent, member.demand)
                self.residents.enter(agent, member.demand)
            member.agent = agent
            self.tools_run(member, do_run=ran_tools)
        if member.is_in:
            self.tokens += tokens - member.tokens
            self._dirty[member.session] = member
        member.tokens = tokens

    # --- silence -----------------------------------------------------------------------------------

    def gone(
        self, *, tools_slower: float = 1.0, max_idle_hold_s: float | None = None, now: float
    ) -> list[Member]:
        """Releases sessions that exceed their limit; looks at a bounded number of them. `tools_slower`:
        present factor of tool durations; admitting others meanwhile would raise it further.
        `max_idle_hold_s`: how long a place is worth holding."""
        out = []
        for _ in range(min(_LOOKED_AT, len(self._silent))):
            session, member = next(iter(self._silent.items()))
            self._silent.move_to_end(session)
            assert member.silence is not None
            limit_s = member.keeps_s or self._config.least_s
            if member.silence.has_tools:
                limit_s *= tools_slower
            else:
                self._weigh(member, now=now)
                if max_idle_hold_s is not None:
                    limit_s = max(self._config.least_s, min(max_idle_hold_s, limit_s))
            if now - member.gap_since_s >= limit_s:
                self.tools_run(member, do_run=False)
                member.kept_s = now - member.gap_since_s
                self.release(member)
                out.append(member)
        for _ in range(min(_LOOKED_AT, len(self._evicted))):
            session, member = next(iter(self._evicted.items()))
            self._evicted.move_to_end(session)
            if now - member.gap_since_s >= tools_slower * (member.keeps_s or self._config.least_s):
                self.tools_run(member, do_run=False)
        return out

    def _weigh(self, member: Member, *, now: float) -> None:
        if member.silence is not None and not member.silence.has_tools and member.turn:
            pause = member.silence.pause or _UNKNOWN_PAUSE
            back = pause.back(now - member.gap_since_s)
            if abs(back - member.back) >= _NOTICED:
                member.back = back
                self._dirty[member.session] = member

    def demand_of(self, member: Member, *, back: float = 1.0) -> Demand:
        graph = self._graphs.known(member.agent)
        return demand_of(graph, max(1, member.turn), member.tokens, back=back)
