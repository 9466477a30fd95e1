"""Places: which sessions are in, and since when each is silent.

Source: ours (the unit is the session); MARS (§2.2) for why a session in a tool phase is still there.

Symbols: *admitted session* → `Member.is_in`.

Invariants: a session is in from its first admitted turn until it ends or is silent for longer than `Gaps`
allows; a session with a live turn stays in; `count` is the number of places taken: of each session as many as
it runs turns at once, and one at least; `residents` counts exactly the sessions that are in; `quiet_since_s`
is set exactly while no session that is in has a live turn.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.admission.classes import ServiceClass
from gateway.admission.footprint import NOTHING, Demand, Footprints, Residents
from gateway.admission.gaps import Gap, Gaps
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import ReplicaId, SessionId, TenantId, ThreadId

_MAX_THREADS: Final = 32
"""Conversations of which it is known what they hold; more, where more of them have turns at once."""
_LOOKED_AT: Final = 256
_NOTICED: Final = 0.02
"""So much a chance has to change before it is counted anew: each time costs some µs."""


class ThreadState(msgspec.Struct):
    """What one conversation of a session holds."""

    tokens: float
    prompt_tokens: float
    replica: ReplicaId | None
    life: int | None = None
    """Of the replica: what was left in an earlier one is gone."""


class Member(msgspec.Struct, kw_only=True, eq=False):
    """A session as admission knows it: in, waiting, or resting."""

    session: SessionId
    tenant: TenantId
    agent: AgentKey
    task_arrived_s: float
    service_class: ServiceClass = ServiceClass.REACTIVE
    deadline_s: float | None = None
    is_behind: bool = False
    """Others go first, whatever its class: it is beyond a bound."""
    turn: int = 0
    """Turns that were answered."""
    live: int = 0
    """Turns that were let in and have not ended."""
    asides: int = 0
    """Of these, side requests: a title or a summary, while the session itself goes on or waits."""
    has_results: bool = False
    """Its tools came back, and no turn has begun since."""
    runs_tools: bool = False
    """As far as is known, also where it gave its place back meanwhile."""
    threads: dict[ThreadId, ThreadState] = {}
    guess: float = 0.0
    """Tokens of its first prompt, by its bytes; what it counts for until the first usage comes."""
    demand: Demand = NOTHING
    """As counted among the residents."""
    is_in: bool = False
    places: int = 0
    """That it takes: who runs many turns at once takes as many."""
    is_above: bool = False
    """It is in though the window was full."""
    is_spilled: bool = False
    """It gave its place back, so what it left behind may be gone."""
    must_yield: str = ""
    """Why its next turn waits; empty if it does not."""
    asked_s: float | None = None
    """Since when it wants to be in; kept over retries."""
    left_s: float = 0.0
    """When it stopped waiting, if it ever did."""
    gap: Gap | None = None
    """How it is silent, also where it gave its place back meanwhile; None while a turn of it is live."""
    gap_since_s: float = 0.0
    is_pause: bool = True
    """Its last turn was answered: what follows one that failed, or whose client left, is no pause."""
    began_s: float = 0.0
    """When its newest turn began."""
    kept_s: float = 0.0
    """How long it was silent before it gave its place back."""
    counted_gone: bool = False
    is_studied: bool = True
    """Its turns teach what sessions of its type are like."""
    back: float = 1.0
    """The chance that it makes another turn: below 1 while it is silent after a plain answer."""
    held: float = 0.0
    """Of all its threads."""

    @property
    def tokens(self) -> float:
        return self.held if self.threads else self.guess


class Places:
    """The places of one pool."""

    def __init__(
        self, footprints: Footprints, gaps: Gaps, hold: Callable[[TenantId, float], None] | None = None
    ) -> None:
        """`hold`: is told of so many places more, or fewer, that a tenant takes."""
        self._footprints = footprints
        self._gaps = gaps
        self._hold = hold
        self.members: dict[SessionId, Member] = {}
        """Every session that was ever asked for and has not ended."""
        self.residents = Residents(footprints)
        self.count = 0
        self.above = 0
        self.by_tenant: dict[TenantId, dict[SessionId, Member]] = {}
        """Sessions that have a place of their own."""
        self.live = 0
        """Turns of sessions that are in."""
        self.quiet_since_s: float | None = float("-inf")
        self.with_tools: dict[AgentKey, int] = {}
        """How many of each type have tools run, in or not."""
        self.tokens = 0.0
        """Of the sessions that are in, as far as they were told; shared prefixes count for each."""
        self._silent: OrderedDict[SessionId, Member] = OrderedDict()
        """Those that are in and have no live turn."""
        self._stale: dict[SessionId, Member] = {}

    def forget(self, session: SessionId) -> Member | None:
        member = self.members.pop(session, None)
        if member is not None:
            self.tools_run(member, do_run=False)
        return member

    def sessions_of(self, tenant: TenantId) -> int:
        return len(self.by_tenant.get(tenant, ()))

    # --- in and out --------------------------------------------------------------------------------

    def enter(self, member: Member, *, is_above: bool = False, now: float) -> None:
        assert not member.is_in
        if member.counted_gone and member.is_studied:  # it was not gone
            self._footprints.was_no_end(member.agent, member.turn)
            if member.gap is not None and member.is_pause:
                self._gaps.was_no_end(member.agent, member.gap)
        member.counted_gone = False
        member.is_in, member.is_above = True, is_above
        member.must_yield = ""
        self._take(member)
        self.above += is_above
        self.by_tenant.setdefault(member.tenant, {})[member.session] = member
        member.demand = self._demand_of(member)
        self.tokens += member.tokens
        if not member.live:
            self._silent[member.session] = member
            if member.gap is not None:  # what it waited for its place was no silence
                asked_s = member.asked_s if member.asked_s is not None else now
                member.gap_since_s += now - max(asked_s, member.gap_since_s)
            else:
                member.gap, member.gap_since_s = Gap.IDLE, now
        member.asked_s = None
        self.residents.enter(member.agent, member.demand)

    def settle_in(self, member: Member) -> None:
        self.above -= member.is_above
        member.is_above = False

    def release(self, member: Member) -> None:
        assert member.is_in and not member.live
        self._stale.pop(member.session, None)
        self._silent.pop(member.session, None)
        self.tokens -= member.tokens
        self.residents.leave(member.agent, member.demand)
        member.is_in, member.demand = False, NOTHING
        member.is_spilled = True
        self._take(member)
        self.above -= member.is_above
        del self.by_tenant[member.tenant][member.session]
        if not self.by_tenant[member.tenant]:
            del self.by_tenant[member.tenant]

    def tools_run(self, member: Member, *, do_run: bool) -> None:
        if member.runs_tools is not do_run:
            member.runs_tools = do_run
            count = self.with_tools.pop(member.agent, 0) + (1 if do_run else -1)
            if count:
                self.with_tools[member.agent] = count

    def _take(self, member: Member) -> None:
        places = max(1, member.live) if member.is_in else 0
        more = places - member.places
        if more:
            member.places = places
            self.count += more
            if self._hold is not None:
                self._hold(member.tenant, float(more))

    def _run(self, member: Member, turns: int) -> None:
        """So many more of its turns run (or, negative, fewer)."""
        member.live += turns
        self.live += turns
        if (member.live > 1 or member.places != 1) and member.is_in:
            self._take(member)

    # --- turns -------------------------------------------------------------------------------------

    def turn_began(self, member: Member, *, is_aside: bool = False, now: float) -> None:
        """A turn of a session that is in was let in, or waits for a replica only. `is_aside`: it is a side
        request, which ends no silence: tools run on beside it."""
        assert member.is_in
        self._silent.pop(member.session, None)
        if member.back < 1.0:
            member.back = 1.0
            self._stale[member.session] = member
        self._run(member, 1)
        self.quiet_since_s = None
        if is_aside:
            member.asides += 1
            return
        self.tools_run(member, do_run=False)
        if member.gap is not None:
            if member.is_studied and member.turn and member.is_pause:
                self._gaps.saw_return(member.agent, member.gap, now - member.gap_since_s)
            member.gap = None
        member.began_s, member.kept_s = now, 0.0

    def turn_ended(
        self, member: Member, gap: Gap, *, is_answered: bool = True, is_aside: bool = False, now: float
    ) -> None:
        """`gap`: what follows, unless it was a side request: then the silence goes on as it was."""
        self._run(member, -1)
        member.asides -= is_aside
        if not self.live:
            self.quiet_since_s = now
        if not is_aside and member.live == member.asides:
            member.gap, member.gap_since_s, member.is_pause = gap, now, is_answered
            self.tools_run(member, do_run=gap is Gap.TOOL)
        elif is_aside and not member.turn:  # it began with a title; its first turn is still to come
            member.gap_since_s = now
        if not member.live:
            assert member.gap is not None
            self._silent[member.session] = member
            self._weigh(member, now=now)

    def count_anew(self) -> None:
        for member in self._stale.values():
            demand = self._demand_of(member)
            self.residents.change(member.demand, demand)
            member.demand = demand
        self._stale.clear()

    def remember(
        self,
        member: Member,
        thread: ThreadId,
        tokens: float,
        prompt_tokens: float,
        replica: ReplicaId | None,
        life: int | None = None,
    ) -> None:
        before = member.tokens
        state = member.threads.get(thread)
        if state is None:
            member.threads[thread] = ThreadState(tokens, prompt_tokens, replica, life)
            member.held += tokens
            if len(member.threads) > max(_MAX_THREADS, member.live):
                smallest = min(member.threads, key=lambda name: member.threads[name].tokens)
                member.held -= member.threads.pop(smallest).tokens
        else:
            member.held += tokens - state.tokens
            state.tokens, state.prompt_tokens = tokens, prompt_tokens
            state.replica, state.life = replica, life
        self._grew(member, before)

    def thread_is_over(self, member: Member, thread: ThreadId) -> None:
        state = member.threads.get(thread)
        if state is not None and len(member.threads) > 1:
            before = member.tokens
            del member.threads[thread]
            member.held -= state.tokens
            self._grew(member, before)

    def _grew(self, member: Member, before: float) -> None:
        if member.is_in:
            self.tokens += member.tokens - before
            self._stale[member.session] = member

    # --- silence -----------------------------------------------------------------------------------

    def gone(self, *, tools_slower: float = 1.0, worth_s: float | None = None, now: float) -> list[Member]:
        """Releases those that have been silent for too long. Looks at a bounded number of them a call.

        `tools_slower`: so many times as long as usual tools take at present. Who waits for them is not gone;
        to let others in meanwhile would make them slower still. `worth_s`: as long as a place
        is worth holding.
        """
        out = []
        for _ in range(min(_LOOKED_AT, len(self._silent))):
            session, member = next(iter(self._silent.items()))
            self._silent.move_to_end(session)
            assert member.gap is not None
            limit_s = self._gaps.limit_s(member.agent, member.gap, worth_s=worth_s)
            if member.gap is Gap.TOOL:
                limit_s *= tools_slower
            else:
                self._weigh(member, now=now)
            if now - member.gap_since_s >= limit_s:
                self.saw_end(member)
                if member.is_studied and member.turn and member.is_pause:
                    self._gaps.saw_end(member.agent, member.gap)
                member.counted_gone = True
                self.tools_run(member, do_run=False)
                member.kept_s = now - member.gap_since_s
                self.release(member)
                out.append(member)
        return out

    def _weigh(self, member: Member, *, now: float) -> None:
        if member.gap is Gap.IDLE and member.turn:
            back = self._gaps.back(member.agent, member.gap, now - member.gap_since_s)
            if abs(back - member.back) >= _NOTICED:
                member.back = back
                self._stale[member.session] = member

    def saw_end(self, member: Member) -> None:
        if member.is_studied and member.turn:
            self._footprints.saw_end(member.agent, member.turn)

    def _demand_of(self, member: Member) -> Demand:
        return self._footprints.demand(member.agent, max(1, member.turn), member.tokens, back=member.back)
