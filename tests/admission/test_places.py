"""Places: who is in, since when they are silent, what they hold and will have grown to."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.admission.cpu_pressure import CpuPressure
from gateway.admission.footprint import NOTHING, Residents, demand_of
from gateway.admission.sessions import Member, PausesConfig, Places
from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.aeg.graph import ExpectedReturn, Silence, Step
from gateway.workflow.aeg.graphs import AegConfig, Graphs
from gateway.workflow.aeg.lifetimes import HORIZONS
from tests.examples import examples

TOOL, IDLE = Silence(True, None), Silence(False, None)


def places(hold=None) -> Places:
    config = PausesConfig(unknown_tool_s=100.0, least_s=10.0)
    return Places(Graphs(AegConfig()), config, hold or (lambda *_: None), CpuPressure())


def pause(*, on: int, over: int = 0, length_s: float = 10.0) -> ExpectedReturn:
    """Behind a plain answer behind which so many went on, after so long, and so many did not."""
    graph = Graphs(AegConfig()).of(UNKNOWN_AGENT)
    for _ in range(on):
        graph.went_on(Step(), length_s)
    for _ in range(over):
        graph.ended(Step(), 1)
    return graph.expected_return(Step())


def kept_s(gap: Silence, found: ExpectedReturn | None, *, max_idle_hold_s: float | None = None) -> float:
    here, each = places(), member()
    here.members[each.session] = each
    here.enter(each, now=0.0)
    here.turn_began(each, now=0.0)
    here.turn_ended(each, gap._replace(pause=found), now=0.0)
    return next(
        float(now) for now in range(1000) if here.gone(max_idle_hold_s=max_idle_hold_s, now=float(now))
    )


@pytest.mark.parametrize(
    ("gap", "found", "max_idle_hold_s", "least_s", "most_s"),
    [
        (TOOL, None, None, 100, 100),
        (IDLE, None, None, 10, 10),
        (TOOL, pause(on=40, over=4, length_s=50.0), None, 40, 65),
        (IDLE, pause(on=40, over=4, length_s=30.0), None, 25, 38),
        (IDLE, pause(on=10, over=40, length_s=30.0), None, 10, 10),
        (TOOL, pause(on=40, length_s=5000.0), None, 300, 300),
        (IDLE, pause(on=40, length_s=5000.0), None, 60, 60),
        (TOOL, pause(on=40, length_s=0.1), None, 10, 10),
        (IDLE, pause(on=40, length_s=50.0), 20.0, 20, 20),  # to compute it anew costs less than to wait
        (IDLE, pause(on=40, length_s=50.0), 0.1, 10, 10),
        (TOOL, pause(on=40, length_s=50.0), 20.0, 40, 65),
    ],
)
def test_a_place_is_kept_while_its_session_is_likelier_to_come_back_than_not(
    gap, found, max_idle_hold_s, least_s, most_s
):
    assert least_s <= kept_s(gap, found, max_idle_hold_s=max_idle_hold_s) <= most_s


def member(name="s", tenant="t", tokens=100.0) -> Member:
    return Member(
        session=SessionId(name),
        tenant=TenantId(tenant),
        agent=UNKNOWN_AGENT,
        task_arrived_s=0.0,
        tokens=tokens,
    )


def test_a_silent_session_counts_as_gone_sooner_without_tools():
    here, busy, idle = places(), member("busy"), member("idle")
    for each in (busy, idle):
        here.members[each.session] = each
        here.enter(each, now=0.0)
        here.turn_began(each, now=0.0)
    here.turn_ended(busy, TOOL, now=1.0)
    here.turn_ended(idle, IDLE, now=1.0)
    assert here.gone(now=10.9) == [] and here.gone(now=11.0) == [idle]
    assert idle.was_evicted and not idle.is_in and busy.is_in
    assert here.gone(now=101.0) == [busy]
    assert here.count == 0 and not here.by_tenant


def test_who_goes_on_is_not_gone():
    here, each = places(), member()
    here.members[each.session] = each
    here.enter(each, now=0.0)
    for turn in range(3):
        here.turn_began(each, now=5.0 * turn)
        here.turn_ended(each, IDLE, now=5.0 * turn + 1)
    assert here.gone(now=20.9) == []
    assert here.gone(now=21.0) == [each]


def test_what_it_holds_is_counted_when_asked_for():
    here, each = places(), member()
    here.members[each.session] = each
    here.enter(each, now=0.0)
    assert here.residents.now() == 100
    here.holds(each, 5000.0)
    assert here.residents.now() == 100 and here.tokens == 5000
    here.recompute_demand()
    assert here.residents.now() == 5000
    here.holds(each, 4000.0)
    assert each.tokens == here.tokens == 4000
    here.release(each)
    here.recompute_demand()
    assert here.residents.now() == here.tokens == 0
    here.holds(each, 7.0)
    here.recompute_demand()
    assert here.residents.now() == here.tokens == 0  # it is not in


def test_a_bounded_number_is_looked_at():
    here = places()
    for number in range(600):
        each = member(f"s{number}")
        here.members[each.session] = each
        here.enter(each, now=0.0)
    assert [len(here.gone(now=100.0)) for _ in range(4)] == [256, 256, 88, 0]


def test_a_session_takes_as_many_places_as_it_runs_turns_at_once():
    here, each = places(), member()
    here.members[each.session] = each
    here.enter(each, now=0.0)
    assert here.count == 1
    for _ in range(3):
        here.turn_began(each, now=0.0)
    assert (here.count, each.places, here.sessions_of(TenantId("t"))) == (3, 3, 1)
    for _ in range(3):
        here.turn_ended(each, TOOL, now=1.0)
    assert here.count == 1, "one at least"
    here.release(each)
    assert here.count == 0


class Comings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[TenantId] = Counter()
        self.places = places(lambda tenant, more: self.held.update({tenant: int(more)}))
        self.now = 0.0
        self.all = [member(f"s{n}", tenant=f"t{n % 2}") for n in range(5)]

    @rule(data=st.data(), is_over_limit=st.booleans())
    def enters(self, data, is_over_limit):
        each = data.draw(st.sampled_from(self.all))
        if not each.is_in:
            self.places.members[each.session] = each
            self.places.enter(each, is_over_limit=is_over_limit, now=self.now)

    @rule(data=st.data())
    def begins(self, data):
        each = data.draw(st.sampled_from(self.all))
        if each.is_in:
            self.places.turn_began(each, now=self.now)

    @rule(data=st.data(), gap=st.sampled_from([TOOL, IDLE]), tokens=st.floats(0, 1e5))
    def ends(self, data, gap, tokens):
        each = data.draw(st.sampled_from(self.all))
        if each.live:
            each.turn += 1
            self.places.holds(each, tokens)
            self.places.turn_ended(each, gap, now=self.now)

    @rule(data=st.data())
    def is_over(self, data):
        each = data.draw(st.sampled_from(self.all))
        if each.is_in and not each.live:
            self.places.release(each)

    @rule(seconds=st.sampled_from([0.0, 1.0, 12.0, 200.0]))
    def time_passes(self, seconds):
        self.now += seconds
        for gone in self.places.gone(now=self.now):
            assert not gone.live and not gone.is_in

    @invariant()
    def books_balance(self):
        here = [each for each in self.all if each.is_in]
        assert all(each.places == max(1, each.live) for each in here)
        assert self.places.count == sum(each.places for each in here) == self.held.total()
        assert self.places.above == sum(each.is_over_limit for each in here)
        assert len(here) == sum(map(self.places.sessions_of, self.places.by_tenant))
        assert sum(self.places.residents.agents.values()) == len(here)
        live = sum(each.live for each in self.all)
        assert (self.places.no_live_turn_since_s is None) == (live > 0)
        self.places.recompute_demand()
        wanted = sum(each.back * each.tokens for each in here)
        assert self.places.residents.now() == pytest.approx(wanted, abs=1e-3)
        assert all(each.back == 1.0 for each in here if each.live)
        assert self.places.tokens == pytest.approx(sum(each.tokens for each in here), abs=1e-3)
        assert set(self.places._silent) == {each.session for each in here if not each.live}


Comings.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestComings = pytest.mark.timeout(400)(Comings.TestCase)


def test_who_answered_plainly_counts_for_as_much_as_it_is_likely_to_be_back():
    places = Places(Graphs(AegConfig()), PausesConfig(), lambda *_: None, CpuPressure())
    held = []
    for name, gap in (("tools", TOOL), ("plain", IDLE)):
        each = member(name)
        places.members[each.session] = each
        places.enter(each, now=0.0)
        places.turn_began(each, now=0.0)
        each.turn = 1
        places.holds(each, 10_000.0)
        before = places.residents.now()
        places.turn_ended(each, gap._replace(pause=pause(on=0, over=20)), now=1.0)
        places.recompute_demand()
        held.append(places.residents.now() - before)
    assert held[0] > 9_000.0 and held[1] < 1_500.0
    places.turn_began(places.members[SessionId("plain")], now=2.0)
    places.recompute_demand()
    assert places.residents.now() == pytest.approx(20_000.0), "it is back"


AGENT, OTHER = (AgentKey(TenantId("t"), number) for number in (1, 2))
STRANGER = AgentKey(TenantId("other"), AGENT.agent_type)


def taught(*, turns=200, growth=1000.0, last_turn=None) -> Graphs:
    """Sessions of `AGENT` grow by so much a turn, and end after `last_turn`."""
    known = Graphs(AegConfig())
    for number in range(turns):
        turn = number % (last_turn or 1000) + 1
        known.of(AGENT).saw_turn(turn, tokens=1e4, grown=growth)
        if turn == last_turn:
            known.of(AGENT).ended(Step(), turn)
    return known


def share(known: Graphs, agent: AgentKey, tokens: int) -> None:
    for _ in range(20):
        if known.of(agent).saw_shared(tokens):
            known.shared_changes += 1


def test_demand_now_is_what_is_held():
    demand = demand_of(taught().known(AGENT), 3, 5000.0)
    assert demand[0] == 5000.0 and len(demand) == len(HORIZONS)
    assert demand_of(taught().known(AGENT), 3, 5000.0, back=0.5) == pytest.approx(
        [each / 2 for each in demand]
    )


def test_a_session_that_will_not_end_soon_is_expected_to_grow():
    demand = demand_of(taught(turns=4000).known(AGENT), 3, 5000.0)
    assert demand[3] == pytest.approx(5000 + 4 * 1000, rel=0.1)
    assert demand[-1] > 4 * demand[0]


def test_a_session_that_ends_soon_is_not():
    demand = demand_of(taught(turns=4000, last_turn=2).known(AGENT), 2, 5000.0)
    assert max(demand) == 5000 and demand[1] < 300


# --- sets of sessions ------------------------------------------------------------------------------


def test_a_shared_prefix_is_resident_once():
    known = Graphs(AegConfig())
    share(known, AGENT, 8000)
    shared = known.of(AGENT).shared_tokens
    assert shared == pytest.approx(8000, rel=0.25)
    residents = Residents(known)
    first = demand_of(known.known(AGENT), 1, 10_000.0)
    assert residents.peak(also=first, agent=AGENT) == pytest.approx(shared + max(first))
    for _ in range(3):
        residents.enter(AGENT, first)
    assert residents.now() == pytest.approx(3 * (10_000 - shared) + shared)
    assert residents.peak(also=first, agent=AGENT) == pytest.approx(shared + 4 * max(first))
    assert residents.agents == {AGENT: 3}
    for _ in range(3):
        residents.leave(AGENT, first)
    assert residents.now() == residents.peak() == 0.0


def test_a_prefix_that_sessions_of_several_tenants_begin_with_is_resident_once():
    known = Graphs(AegConfig())
    residents = Residents(known)
    for agent, tokens in ((AGENT, 8000), (STRANGER, 4000), (OTHER, 1000)):
        share(known, agent, tokens)
        residents.enter(agent, demand_of(known.known(agent), 1, 10_000.0))
    own = sum(10_000.0 - known.known(agent).shared_tokens for agent in (AGENT, STRANGER, OTHER))
    assert residents.now() == pytest.approx(
        own + known.of(AGENT).shared_tokens + known.of(OTHER).shared_tokens
    )


def test_a_set_does_not_peak_all_at_once():
    """Half of them are about to end while the others grow: less than the sum of the peaks."""
    known = taught(turns=4000, last_turn=8)
    residents = Residents(known)
    young, old = demand_of(known.known(AGENT), 1, 2000.0), demand_of(known.known(AGENT), 8, 9000.0)
    for demand in (young, old):
        residents.enter(AGENT, demand)
    assert residents.now() == 11_000
    assert residents.now() <= residents.peak() < max(young) + max(old)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([AGENT, OTHER]), st.floats(0, 1e6)), max_size=60))
def test_the_sum_is_that_of_its_parts(steps):
    known = Graphs(AegConfig())
    share(known, AGENT, 100)
    residents = Residents(known)
    members: list[tuple[AgentKey, tuple[float, ...]]] = []
    rng = random.Random(len(steps))
    for is_coming, agent, tokens in steps:
        demand = demand_of(known.known(agent), 1, tokens)
        if is_coming or not members:
            residents.enter(agent, demand)
            members.append((agent, demand))
        elif rng.random() < 0.5:
            residents.leave(*members.pop(rng.randrange(len(members))))
        else:
            place = rng.randrange(len(members))
            demand = demand_of(known.known(members[place][0]), 1, tokens)
            residents.change(members[place][1], demand)
            members[place] = (members[place][0], demand)
    shared = sum(known.known(agent).shared_tokens for agent in {agent for agent, _ in members})
    sums = [sum(demand[n] for _, demand in members) for n in range(len(HORIZONS))]
    assert residents.now() == pytest.approx(sums[0] + shared, abs=1e-3)
    assert residents.peak() == pytest.approx(max(sums) + shared, abs=1e-3)
    assert sum(residents.agents.values()) == len(members)
    assert residents.peak(also=NOTHING, agent=AGENT) >= residents.peak()
