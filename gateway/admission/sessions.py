"""Places: which sessions are in, and since when each is silent.

Source: ours (the unit is the session); MARS (§2.2) for why a session in a tool phase is still there.

Symbols: *admitted session* → `Member.is_in`.

How long may a session be silent before it counts as gone? SAGA (Alg. 1) sets a limit at a quantile of the
tool's latency, of 300 s at most. Here it counts as gone as soon as that is likelier than not, by what its
agent type's execution graph says of the step it rests behind: with P the chance that it returns at all and
S(t) the share of pauses longer than t, that is when P S(t) < 1 - P. While nothing is known, a session is as
likely over as not after a plain answer, so by the same rule its place is anybody's at once. There a place is
kept for no longer than it is worth: to hold a session of c tokens for g seconds takes the share c / C of a
replica's memory for that long, to let it go takes a prefill of c tokens. So it is worth holding for as long
as computing the whole cache anew would take, C times a token's time; and to hold it for just so long costs at
most twice what it would cost if it was known when it returns. Whose tools run keeps its place for longer: it
comes back.

Invariants: a session is in from its first admitted turn until it ends or is silent for longer than that; a
session with a live turn stays in; `count` is the number of places taken: of each session as many as it runs
turns at once, and one at least; `residents` counts exactly the sessions that are in; `no_live_turn_since_s`
is set exactly while no session that is in has a live turn; a limit lies between `least_s` and the most for
its kind.
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
from gateway.workflow.aeg.graph import Pause, Silence
from gateway.workflow.aeg.graphs import Graphs

_LOOKED_AT: Final = 256
_NOTICED: Final = 0.02
"""So much a chance has to change before it is counted anew: each time costs some µs."""


class PausesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    least_s: Annotated[float, Meta(ge=0)] = 2.0
    """A session keeps its place at least so long after its last turn."""
    max_tool_s: Annotated[float, Meta(gt=0)] = 300.0
    """And at most so long while its tools run."""
    max_idle_s: Annotated[float, Meta(gt=0)] = 60.0
    """And at most so long after an answer without tool calls."""
    unknown_tool_s: Annotated[float, Meta(gt=0)] = 120.0
    """What is used for tools while little is known."""


_UNKNOWN_PAUSE: Final = Pause(0.5, None)


class Member(msgspec.Struct, kw_only=True, eq=False):
    """A session as admission knows it: in, waiting, or resting."""

    session: SessionId
    tenant: TenantId
    agent: AgentKey
    task_arrived_s: float
    service_class: ServiceClass = ServiceClass.REACTIVE
    is_deprioritized: bool = False
    """Others go first, whatever its class: it is beyond a bound."""
    turn: int = 0
    """Turns that were answered, of its longest conversation."""
    live: int = 0
    """Turns that were let in and have not ended."""
    side_requests: int = 0
    """Of these, side requests: a title or a summary, while the session itself goes on or waits."""
    has_results: bool = False
    """Its tools came back, and no turn has begun since."""
    runs_tools: bool = False
    """As far as is known, also where it gave its place back meanwhile."""
    tokens: float = 0.0
    """That it holds: at first those of its first prompt, by its bytes."""
    replica: ReplicaId | None = None
    """Where its newest turn ran."""
    demand: Demand = NOTHING
    """As counted among the residents."""
    is_in: bool = False
    places: int = 0
    """That it takes: who runs many turns at once takes as many."""
    is_over_limit: bool = False
    """It is in though the window was full."""
    was_evicted: bool = False
    """It gave its place back, so what it left behind may be gone."""
    eviction_reason: str = ""
    """Why its next turn waits; empty if it does not."""
    asked_s: float | None = None
    """Since when it wants to be in; kept over retries."""
    left_s: float = 0.0
    """When it stopped waiting, if it ever did."""
    silence: Silence | None = None
    """How it is silent, also where it gave its place back meanwhile; None while a turn of it is live."""
    keeps_s: float = 0.0
    """For how long its place is kept meanwhile, as that says."""
    gap_since_s: float = 0.0
    is_pause: bool = True
    """Its last turn was answered: what follows one that failed, or whose client left, is no pause."""
    began_s: float = 0.0
    kept_s: float = 0.0
    """How long it was silent before it gave its place back."""
    back: float = 1.0
    """The chance that it makes another turn: below 1 while it is silent after a plain answer."""

    @property
    def class_on_engines(self) -> ServiceClass:
        return ServiceClass.PROACTIVE if self.is_deprioritized else self.service_class


class Turn(msgspec.Struct):
    """A turn that admission knows of."""

    member: Member
    applicant: TurnRequest
    asked_s: float
    charged: float = 0.0
    """Tokens of its tenant's quota."""
    silent_s: float | None = None
    """Since its session's turn before; None if that goes on, or there was none."""
    is_aside: bool = False
    """A side request: it says nothing of how its session goes on."""
    is_let_in: bool = False
    may_find_warm: bool = False
    """What its session left behind was still there when it began, for all we know."""
    pause_s: float = 0.0
    """How long its session was silent in its place before."""
    gap_s: float = 0.0
    """As long, if it ran tools."""


class Places:
    """The places of one pool."""

    def __init__(
        self, graphs: Graphs, config: PausesConfig, hold: Callable[[TenantId, float], None], cpu: CpuPressure
    ) -> None:
        """`hold`: is told of so many places more, or fewer, that a tenant takes; `cpu`: of tools that run."""
        self._graphs = graphs
        self._config = config
        self._hold = hold
        self._cpu = cpu
        self.members: dict[SessionId, Member] = {}
        """Every session that was ever asked for and has not ended."""
        self.residents = Residents(graphs)
        self.count = 0
        self.above = 0
        self.by_tenant: dict[TenantId, dict[SessionId, Member]] = {}
        self.live = 0
        """Turns of sessions that are in."""
        self.no_live_turn_since_s: float | None = float("-inf")
        self.with_tools: dict[AgentKey, int] = {}
        """How many of each type have tools run, in or not."""
        self.tokens = 0.0
        """Of the sessions that are in, as far as they were told; shared prefixes count for each."""
        self._silent: OrderedDict[SessionId, Member] = OrderedDict()
        """Those that are in and have no live turn."""
        self._stale: dict[SessionId, Member] = {}
        """Those of which something changed that is not counted yet."""

    def in_places(self) -> list[Member]:
        return [each for of_tenant in self.by_tenant.values() for each in of_tenant.values()]

    def sessions_of(self, tenant: TenantId) -> int:
        return len(self.by_tenant.get(tenant, ()))

    # --- in and out --------------------------------------------------------------------------------

    def enter(self, member: Member, *, is_over_limit: bool = False, now: float) -> None:
        assert not member.is_in
        member.is_in, member.is_over_limit = True, is_over_limit
        member.eviction_reason = ""
        self._take(member)
        self.above += is_over_limit
        self.by_tenant.setdefault(member.tenant, {})[member.session] = member
        member.demand = self.demand_of(member, back=member.back)
        self.tokens += member.tokens
        if not member.live:
            self._silent[member.session] = member
            if member.silence is not None:  # what it waited for its place was no silence
                asked_s = member.asked_s if member.asked_s is not None else now
                member.gap_since_s += now - max(asked_s, member.gap_since_s)
            else:
                member.silence, member.gap_since_s = Silence(False, None), now
        member.asked_s = None
        self.residents.enter(member.agent, member.demand)

    def release(self, member: Member) -> None:
        assert member.is_in and not member.live
        self._stale.pop(member.session, None)
        self._silent.pop(member.session, None)
        self.tokens -= member.tokens
        self.residents.leave(member.agent, member.demand)
        member.is_in, member.demand = False, NOTHING
        member.was_evicted = True
        self._take(member)
        self.above -= member.is_over_limit
        del self.by_tenant[member.tenant][member.session]
        if not self.by_tenant[member.tenant]:
            del self.by_tenant[member.tenant]

    def tools_run(self, member: Member, *, do_run: bool) -> None:
        if member.runs_tools is not do_run:
            member.runs_tools = do_run
            more = 1 if do_run else -1
            self._cpu.active += more
            count = self.with_tools.pop(member.agent, 0) + more
            if count:
                self.with_tools[member.agent] = count

    def _take(self, member: Member, turns: int = 0) -> None:
        """It runs so many turns more, and takes the places for them."""
        member.live += turns
        self.live += turns
        places = max(1, member.live) if member.is_in else 0
        if more := places - member.places:
            member.places = places
            self.count += more
            self._hold(member.tenant, float(more))

    # --- turns -------------------------------------------------------------------------------------

    def turn_began(self, member: Member, *, is_aside: bool = False, now: float) -> None:
        """A turn of a session that is in was let in, or waits for a replica only. `is_aside`: it is a side
        request, which ends no silence: tools run on beside it."""
        assert member.is_in
        self._silent.pop(member.session, None)
        if member.back < 1.0:
            member.back = 1.0
            self._stale[member.session] = member
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
        """`silence`: what follows, unless it was a side request: then the silence goes on as it was."""
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
        elif is_aside and not member.turn:  # it began with a title; its first turn is still to come
            member.gap_since_s = now
        if not member.live:
            assert member.silence is not None
            self._silent[member.session] = member
            if not member.silence.has_tools:
                self._weigh(member, now=now)

    def recompute_demand(self) -> None:
        for member in self._stale.values():
            demand = self.demand_of(member, back=member.back)
            self.residents.change(member.demand, demand)
            member.demand = demand
        self._stale.clear()

    def holds(self, member: Member, tokens: float, *, agent: AgentKey | None = None) -> None:
        """It holds so many from now on. `agent`: what it turns out to be; one may begin with a title."""
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
            self._stale[member.session] = member
        member.tokens = tokens

    # --- silence -----------------------------------------------------------------------------------

    def gone(
        self, *, tools_slower: float = 1.0, max_idle_hold_s: float | None = None, now: float
    ) -> list[Member]:
        """Releases those that have been silent for too long. Looks at a bounded number of them a call.

        `tools_slower`: so many times as long as usual tools take at present. Who waits for them is not gone;
        to let others in meanwhile would make them slower still. `max_idle_hold_s`: as long as a place
        is worth holding.
        """
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
        return out

    def _weigh(self, member: Member, *, now: float) -> None:
        if member.silence is not None and not member.silence.has_tools and member.turn:
            pause = member.silence.pause or _UNKNOWN_PAUSE
            back = pause.back(now - member.gap_since_s)
            if abs(back - member.back) >= _NOTICED:
                member.back = back
                self._stale[member.session] = member

    def demand_of(self, member: Member, *, back: float = 1.0) -> Demand:
        graph = self._graphs.known(member.agent)
        return demand_of(graph, max(1, member.turn), member.tokens, back=back)
