"""What is known of sessions' future, in one place."""

from typing import Any

import msgspec

from gateway.domain.decision import Edge
from gateway.domain.ids import ReplicaId, SessionId
from gateway.domain.request import Usage
from gateway.tool_probe.calls import ToolRun
from gateway.workflow.predictor import Predictor, WorkflowConfig
from tests.workflow.test_conversations import answer, facts, ref
from turnpike_vllm.hints import Hint, ServiceClass, parse

A = ReplicaId("a")
NOTHING: Any = {"age_s": 0.0, "service_class": None, "now": 0.0}
"""Is said with a request."""


def bash(took_s: float) -> ToolRun:
    return ToolRun(SessionId("s"), 0, ("bash",), took_s)


def test_a_turn_from_its_arrival_to_the_end_of_its_session():
    known: Any = Predictor(WorkflowConfig())
    known.arrived(ref("s"), facts(), now=0.0)
    first = known.hint_with_request(ref("s"), facts(), A, **NOTHING)
    pause: Any = known.answered(ref("s"), facts(), answer("bash"), now=1.0)
    decision: Any = known.retention(ref("s").thread, pause, A)
    assert decision.retain_s == 6.0
    calm = parse(known.hint_at_pause(ref("s"), decision))
    assert isinstance(calm, Hint) and calm.retain_s == 6.0 and first is not None
    known.engine_reported(A, 1.0)
    known.engine_reported(A, None)
    assert known.retention(ref("s").thread, pause, A).retain_s == 3.0  # the cache is full
    known.arrived(ref("s"), facts(), now=3.0)
    known.tools_ran(bash(2.0))
    assert known.conversations.learned.of("").durations.of(0, "bash").calls == 1
    [(replica, over)] = known.session_over(SessionId("s"))
    finished: Any = parse(over)
    assert replica == A and finished.is_finished
    assert known.session_over(SessionId("s")) == [] and known.retention(ref("s").thread, pause, A) is None


def test_side_requests_get_no_hint():
    known: Any = Predictor(WorkflowConfig())
    known.arrived(ref("s", Edge.SERVES), facts(), now=0.0)
    assert known.hint_with_request(ref("s", Edge.SERVES), facts(), A, **NOTHING) is None


def test_what_a_session_is_and_had_goes_with_it_to_another_engine():
    known: Any = Predictor(WorkflowConfig())

    def sent(to: str, now: float) -> Any:
        told = {"age_s": now, "service_class": "proactive", "now": now}
        return parse(known.hint_with_request(ref("s"), facts(), ReplicaId(to), **told))

    def said(prompt: int, cached: int, output: int, now: float) -> None:
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
        known.answered(ref("s"), facts(), msgspec.structs.replace(answer("bash"), usage=usage), now=now)

    known.arrived(ref("s"), facts(), now=0.0)
    assert sent("a", 0.0).service is ServiceClass.PROACTIVE and sent("a", 0.0).attained is None
    said(1000, 200, 100, now=10.0)
    assert sent("a", 10.0).attained is None  # that engine knows
    said(2000, 1100, 0, now=40.0)
    assert sent("b", 40.0).attained == 450 + 900  # half of what was 30 s ago
    assert sent("b", 41.0).attained is None
    known.session_over(SessionId("s"))
    known.arrived(ref("s"), facts(), now=50.0)
    assert sent("c", 50.0).attained is None
