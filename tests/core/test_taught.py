"""What other gateways tell is learned where it belongs, and nowhere else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import PoolId, ReplicaId, TenantId
from gateway.domain.lessons import (
    Came,
    Fact,
    Lesson,
    SessionWas,
    Silence,
    StepFollowed,
    StepTaken,
    ToolRan,
    TurnMade,
    TurnTook,
)
from gateway.telemetry.event_log import decode_event, encode_event
from gateway.workflow.agent_types import AgentType
from gateway.workflow.steps import Step
from lab.evaluation.replay import recorded_brain

ACME, BETA = TenantId("acme"), TenantId("beta")
REPLICA, POOL = ReplicaId("a"), PoolId("pool")


def took(replica: str = REPLICA, *, took_s: float = 2.0) -> TurnTook:
    return TurnTook(
        ReplicaId(replica), 1000.0, 500.0, 0, 0.0, 0.0, 0.0, 0.0, True, True, took_s, 1.0, 100, 1000.0, 500.0
    )


SEEN: tuple[Lesson, ...] = (
    StepTaken(1, 2, False, ("bash",), None),
    StepFollowed(1, 2, False, ("bash",), 0, Came.BACK, 7.0),
    ToolRan(AgentType(1, 2).key, "bash", 7.0, 100.0, False),
    TurnMade(POOL, 1, 2, 3.0, 5000.0),
    SessionWas(POOL, 1, Fact.FIRST_PROMPT, 4000.0),
    SessionWas(POOL, 1, Fact.SHARED, 3000.0),
    SessionWas(POOL, 1, Fact.CYCLE, 9.0),
    SessionWas(POOL, 1, Fact.END, 3),
    Silence(POOL, 1, True, Came.BACK, 7.0),
)


def brain() -> Coordinator:
    made = recorded_brain(now=0.0, publishes=True)
    assert POOL in made.admission.pools
    return made


def tell(made: Coordinator, *lessons: Lesson, owner: TenantId = ACME, now: float = 1.0) -> None:
    made.handle(ev.LessonsReceived(tuple((owner, each) for each in lessons)), now=now)


def expected_of(made: Coordinator, owner: TenantId) -> tuple[float | None, ...]:
    conversations, pool = made.sessions.predictor.conversations, made.admission.pools[POOL]
    agent, key = AgentType(1, 2, owner=owner), AgentKey(owner, 1)
    return (
        conversations.returns.behind(agent, Step(("bash",))).share,
        conversations.graphs.of(agent).steps,
        conversations.learned.of(owner).durations.quantile_s(agent.key, ("bash",), 0.5),
        pool.footprints.growth(key, 2),
        pool.footprints.end_chance(key, 3),
        pool.footprints.cycle_s(key),
        pool.footprints.shared(key),
        pool.gaps.tool_s(key),
    )


def test_what_is_told_of_one_tenant_is_learned_for_that_tenant_alone():
    made = brain()
    before = expected_of(made, BETA)
    assert expected_of(made, ACME) == before
    for _ in range(20):
        tell(made, *SEEN)
    assert expected_of(made, BETA) == before
    after = expected_of(made, ACME)
    assert all(was != becomes for was, becomes in zip(before, after, strict=True)), after


def test_what_is_taken_back_is_as_if_it_had_not_been():
    made = brain()
    step = (1, 2, False, ("bash",), 0)
    tell(made, *SEEN)
    before = expected_of(made, ACME)
    agent = AgentType(1, 2, owner=ACME)
    graphs = made.sessions.predictor.conversations.graphs
    tell(made, StepFollowed(*step, Came.END), StepFollowed(*step, Came.TASK))
    tell(made, Silence(POOL, 1, True, Came.END), SessionWas(POOL, 1, Fact.END, 3))
    assert expected_of(made, ACME) != before and graphs.of(agent).tasks == 1
    tell(made, StepFollowed(*step, Came.NO_END), StepFollowed(*step, Came.NO_TASK))
    tell(made, Silence(POOL, 1, True, Came.NO_END), SessionWas(POOL, 1, Fact.NO_END, 3))
    assert graphs.of(agent).tasks == 0
    assert expected_of(made, ACME) == pytest.approx(before, rel=0.01)


def test_what_others_saw_is_not_told_on():
    made = brain()
    tell(made, *SEEN)
    tell(made, took())
    assert made.taught.notes is not None and made.taught.notes.noted == 0
    made.sessions.predictor.learn(ACME, ToolRan(1, "bash", 7.0, 100.0, False))
    assert made.taught.notes.noted == 1, "what is seen here is"


def test_a_recording_has_what_was_told_as_it_was():
    told = ev.LessonsReceived(tuple((ACME, each) for each in (*SEEN, took())))
    assert decode_event(encode_event(told)) == told


def test_pools_and_replicas_that_are_none_of_ours_are_passed_over():
    made = brain()
    for second in range(1, 5):
        tell(made, TurnMade("nowhere", 1, 2, 3.0, 5000.0), *[took("nowhere")] * 20, now=float(second))
    assert set(made.admission.pools) == {POOL}
    assert not made.forecasts.is_experienced(ReplicaId("nowhere"))


def test_an_engine_is_learned_from_a_bounded_number_a_second():
    made = brain()
    before_s = made.forecasts.turn_s(REPLICA, 1000, 500, 100)
    tell(made, *[took()] * 1000)
    assert made.forecasts.turn_s(REPLICA, 1000, 500, 100) != before_s
    assert not made.forecasts.is_experienced(REPLICA), "20 at once"
    for second in range(2, 5):
        tell(made, *[took()] * 1000, now=float(second))
    assert made.forecasts.is_experienced(REPLICA)
    assert made.forecasts.turn_s(REPLICA, 1000, 500, 100) == pytest.approx(2.0, rel=0.2)


tokens = st.sampled_from((0.0, 1.0, 1e8)) | st.floats(0.0, 1e8)
seconds = st.sampled_from((0.0, 1e-9, 1e6)) | st.floats(0.0, 1e6)
counts = st.sampled_from((0, 1, 1_000_000))
hashes = st.integers(0, 2**64 - 1)
tools = st.lists(st.text(max_size=64), max_size=16).map(tuple)
lessons = st.one_of(
    st.builds(StepTaken, hashes, hashes, st.booleans(), tools, st.none() | tools),
    st.builds(StepFollowed, hashes, hashes, st.booleans(), tools, hashes, st.sampled_from(Came), seconds),
    st.builds(ToolRan, hashes, st.text(max_size=64), seconds, tokens, st.booleans()),
    st.builds(
        TurnMade, st.just(POOL), hashes, st.integers(1, 10**6), seconds, st.none() | st.floats(-1e8, 1e8)
    ),
    st.builds(SessionWas, st.just(POOL), hashes, st.sampled_from(Fact), tokens),
    st.builds(Silence, st.just(POOL), hashes, st.booleans(), st.sampled_from(Came), seconds),
    st.builds(
        TurnTook,
        st.just(REPLICA),
        *(tokens, tokens, counts, tokens, tokens, st.sampled_from((0.0, 1e16)), tokens),
        *(st.booleans(), st.booleans(), seconds, st.none() | seconds, st.none() | counts),
        *(st.none() | tokens, tokens),
    ),
)


@given(st.lists(lessons, max_size=30))
def test_whatever_is_in_range_can_be_learned_from(told):
    made = brain()
    tell(made, *told)
    tell(made, *SEEN)
    expected = [value for value in expected_of(made, ACME) if value is not None]
    expected += [
        made.forecasts.turn_s(REPLICA, 1000, 500, 100),
        *made.admission.pools[POOL].footprints.demand(AgentKey(ACME, 1), 2, 5000.0),
    ]
    assert all(map(math.isfinite, expected))
