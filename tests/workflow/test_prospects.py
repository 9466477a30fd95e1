"""What is known of sessions' future, in one place."""

from typing import Any

import msgspec

from gateway.domain.decision import Edge
from gateway.domain.ids import ReplicaId, SessionId
from gateway.domain.request import Usage
from gateway.tool_probe.calls import ToolRun
from gateway.workflow.prospects import Prospects, WorkflowConfig
from tests.workflow.test_progress import answer, facts, ref
from turnpike_vllm.hints import Hint, ServiceClass, parse

A = ReplicaId("a")
NOTHING: Any = {"age_s": 0.0, "parent": None, "service_class": None, "now": 0.0}
"""Is said with a request."""


def bash(took_s: float) -> ToolRun:
    return ToolRun(SessionId("s"), 0, ("bash",), took_s)


def test_a_turn_from_its_arrival_to_the_end_of_its_session():
    known: Any = Prospects(WorkflowConfig())
    known.arrived(ref("s"), facts(), now=0.0)
    first = known.hint_with_request(ref("s"), facts(), A, **NOTHING)
    pause: Any = known.answered(ref("s"), facts(), answer("bash"), now=1.0)
    outlook: Any = known.outlook(ref("s"), pause, A)
    assert outlook.retain_s == 6.0
    calm = parse(known.hint_at_pause(ref("s"), outlook))
    assert isinstance(calm, Hint) and calm.retain_s == 6.0 and first is not None
    known.engine_reported(A, 1.0)
    known.engine_reported(A, None)
    assert known.outlook(ref("s"), pause, A).retain_s == 3.0  # the cache is full
    known.arrived(ref("s"), facts(), now=3.0)
    known.tools_ran(bash(2.0), now=3.0)
    assert known.progress.learned.of("").durations.of(0, "bash").calls == 1
    [(replica, over)] = known.session_over(SessionId("s"))
    finished: Any = parse(over)
    assert replica == A and finished.is_finished
    assert known.session_over(SessionId("s")) == [] and known.outlook(ref("s"), pause, A) is None


def test_side_requests_get_no_hint():
    known: Any = Prospects(WorkflowConfig())
    known.arrived(ref("s", Edge.SERVES), facts(), now=0.0)
    assert known.hint_with_request(ref("s", Edge.SERVES), facts(), A, **NOTHING) is None


def test_of_steps_beyond_the_allowance_it_is_noted_that_they_were():
    known: Any = Prospects(WorkflowConfig(steps_per_s=1.0))

    def step(at: float, *tools: str, **more: Any) -> Any:
        known.arrived(ref("s"), facts(**more), now=at)
        known.tools_ran(bash(0.1), now=at)
        return known.answered(ref("s"), facts(**more), answer(*tools), now=at)

    assert step(0.0, "read") is not None and step(0.0, "edit") is not None  # twice a second's are saved up
    thread = known.progress.thread(ref("s").thread)
    assert step(0.0, "test") is None
    assert thread.walk.steps == 3 and thread.tools == ("test",) and thread.forecast is None
    assert known.progress.learned.of("").durations.of(0, "bash").calls == 2  # of the three results that came
    assert known.hint_with_request(ref("s"), facts(), A, **NOTHING) is not None
    assert step(0.0, tool_count=0) is not None  # whoever offers no tools may have called some in its text
    later = step(5.0, "read")
    assert later is not None and later.tools == ("read",) and thread.walk.steps == 5
    looked_at = [step(at, "read") is not None for at in (5.0, 5.0, 6.0, 7.0, 8.0)]
    assert looked_at == [True, False, True, False, True]  # one behind those that passed counts twice


def test_a_conversation_that_passed_by_is_forgotten_in_time():
    known: Any = Prospects(WorkflowConfig(steps_per_s=0.001))
    known.arrived(ref("s"), facts(), now=0.0)
    assert known.answered(ref("s"), facts(), answer("read"), now=0.0) is None
    known.arrived(ref("t"), facts(), now=1000.0)
    known.progress.session_over(SessionId("s"))
    assert known.progress.thread(ref("s").thread) is None


def test_what_a_session_is_and_had_goes_with_it_to_another_engine():
    known: Any = Prospects(WorkflowConfig())

    def sent(to: str, now: float) -> Any:
        told = {"age_s": now, "parent": None, "service_class": "proactive", "now": now}
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
