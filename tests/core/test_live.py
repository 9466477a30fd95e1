"""A live request: its steps, its story, where it may run."""

import pytest

from gateway.admission.waiting_room import Lane
from gateway.core.lifecycle import LifecycleError, State, Step
from gateway.core.live import LiveRequest
from gateway.domain.decision import SessionRef, SessionSource
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from tests.core.playbook import facts


def live(**fields) -> LiveRequest:
    return LiveRequest(
        request=RequestId("r1"),
        tenant=TenantId("t"),
        facts=facts(),
        pool=PoolId("pool"),
        home=None,
        arrived_s=0.0,
        **fields,
    )


def test_it_keeps_its_story():
    request = live()
    for step in (Step.WAIT, Step.SUBMIT, Step.START, Step.FINISH):
        request.step(step)
    assert request.state is State.FINISHED
    assert request.story == [Step.WAIT, Step.SUBMIT, Step.START, Step.FINISH]


def test_a_step_that_is_not_in_the_table_changes_nothing():
    request = live()
    with pytest.raises(LifecycleError):
        request.step(Step.START)
    assert request.state is State.UNDECIDED and not request.story


def test_it_can_be_asked_for_its_state():
    request = live()
    request.require(State.UNDECIDED)
    with pytest.raises(LifecycleError, match="undecided is not answering"):
        request.require(State.ANSWERING)


def test_its_lane_leaves_out_what_was_tried():
    request = live(tried=[ReplicaId("a")])
    assert request.lane == Lane(pool=PoolId("pool"), without=frozenset({ReplicaId("a")}))


def test_only_turns_have_a_session():
    ref = SessionRef(session=SessionId("s-1"), source=SessionSource.NEW, confidence=0.5)
    assert live().session_id is None
    assert live(session=ref).session_id == "s-1"
