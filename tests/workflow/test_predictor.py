"""What is known of sessions' future, in one place."""

from typing import Any

from gateway.domain.decision import Edge
from gateway.domain.ids import ReplicaId, SessionId
from gateway.workflow.predictor import Predictor, WorkflowConfig
from tests.workflow.test_conversations import answer, facts, ref
from turnpike_vllm.hints import Hint, ServiceClass, parse

A = ReplicaId("a")
NOTHING: Any = {"age_s": 0.0, "service_class": None}
"""Is said with a request."""


def test_a_turn_from_its_arrival_to_the_end_of_its_session():
    known: Any = Predictor(WorkflowConfig())
    known.arrived(ref("s"), facts(), now=0.0)
    first = known.hint_with_request(ref("s"), facts(), A, **NOTHING)
    pause: Any = known.answered(ref("s"), facts(), answer("bash"), ran_s=1.0, now=1.0)
    decision: Any = known.retention(ref("s").thread, pause, A)
    assert decision.retain_s == 6.0
    calm = parse(known.hint_at_pause(ref("s"), decision))
    assert isinstance(calm, Hint) and calm.retain_s == 6.0 and first is not None
    known.engine_reported(A, 1.0)
    known.engine_reported(A, None)
    assert known.retention(ref("s").thread, pause, A).retain_s == 3.0  # the cache is full
    known.arrived(ref("s"), facts(), now=3.0)
    [(replica, over)] = known.session_over(SessionId("s"))
    finished: Any = parse(over)
    assert replica == A and finished.is_finished
    assert known.session_over(SessionId("s")) == [] and known.retention(ref("s").thread, pause, A) is None


def test_side_requests_get_no_hint():
    known: Any = Predictor(WorkflowConfig())
    known.arrived(ref("s", Edge.SERVES), facts(), now=0.0)
    assert known.hint_with_request(ref("s", Edge.SERVES), facts(), A, **NOTHING) is None


def test_what_a_session_is_goes_with_it_to_every_engine():
    known: Any = Predictor(WorkflowConfig())
    known.arrived(ref("s"), facts(), now=0.0)
    for replica, age_s in (("a", 0.0), ("b", 40.0)):
        told = {"age_s": age_s, "service_class": "proactive"}
        sent: Any = parse(known.hint_with_request(ref("s"), facts(), ReplicaId(replica), **told))
        assert (sent.service, sent.age_s) == (ServiceClass.PROACTIVE, age_s)
