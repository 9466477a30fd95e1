"""Tool boundaries: which calls are open, since when, and for how many sessions."""

from gateway.domain.ids import RequestId, SessionId
from gateway.domain.request import ToolCall
from gateway.tool_probe.boundaries import ToolBoundaries, ToolBoundariesConfig
from gateway.tool_probe.call_records import ClosedCalls

S, OTHER, R = SessionId("s"), SessionId("other"), RequestId("r")


def tools(max_open_calls: int = 10) -> ToolBoundaries:
    return ToolBoundaries(ToolBoundariesConfig(max_open_calls=max_open_calls))


def calls(*ids: str) -> list[ToolCall]:
    return [ToolCall(each, f"tool-{each}") for each in ids]


def seen(closed: ClosedCalls | None) -> tuple[tuple[str, ...], float] | None:
    return None if closed is None else (closed.names, closed.duration_s)


def test_calls_open_with_a_response_and_close_with_their_results():
    probe = tools()
    assert probe.opened(S, R, calls("1", "2"), now=10.0) == ("tool-1", "tool-2")
    assert probe.active_sessions == 1
    closed = probe.results_came(S, ["2", "1", "1", "unknown"], now=12.5)
    assert seen(closed) == (("tool-2", "tool-1"), 2.5)
    assert closed is not None and closed.ids == ("2", "1")
    assert probe.active_sessions == 0 and probe.open_calls(S) == ()


def test_a_ready_call_is_open_from_its_answers_end():
    probe = tools()
    probe.ready(S, R, calls("1")[0], now=1.0)
    probe.ready(S, R, calls("1")[0], now=2.0)
    assert probe.active_sessions == 0 and probe.open_calls(S) == ()
    assert [(call.id, call.ready_s) for call in probe.ready_calls(S)] == [("1", 1.0)]
    assert probe.opened(S, R, calls("1", "2"), now=5.0) == ("tool-1", "tool-2")
    assert probe.active_sessions == 1 and probe.ready_calls(S) == ()
    assert [(call.ready_s, call.started_s) for call in probe.open_calls(S)] == [(1.0, 5.0), (None, 5.0)]
    assert seen(probe.results_came(S, ["1", "2"], now=6.0)) == (("tool-1", "tool-2"), 1.0)


def test_ready_calls_end_with_their_turn_and_no_other():
    probe = tools()
    probe.ready(S, R, calls("1")[0], now=0.0)
    probe.ready(S, RequestId("other"), calls("2")[0], now=0.0)
    assert probe.opened(S, R, [], now=1.0) == ()
    assert [call.id for call in probe.ready_calls(S)] == ["2"]
    probe.forget(S)
    assert probe.ready_calls(S) == ()


def test_ready_calls_are_bounded():
    probe = tools(max_open_calls=2)
    for call in calls("1", "2", "3"):
        probe.ready(S, R, call, now=0.0)
    assert [call.id for call in probe.ready_calls(S)] == ["2", "3"]
    probe.opened(S, R, calls("9"), now=0.0)
    probe.ready(S, R, calls("9")[0], now=1.0)
    assert probe.ready_calls(S) == (), "it is open already"


def test_parallel_calls_may_close_one_by_one():
    probe = tools()
    probe.opened(S, R, calls("1", "2"), now=0.0)
    assert seen(probe.results_came(S, ["1"], now=1.0)) == (("tool-1",), 1.0)
    assert probe.active_sessions == 1
    assert [call.name for call in probe.open_calls(S)] == ["tool-2"]


def test_nothing_opens_and_nothing_closes():
    probe = tools()
    assert probe.opened(S, R, [], now=0.0) == ()
    assert probe.results_came(S, ["1"], now=0.0) is None
    probe.opened(S, R, calls("1"), now=0.0)
    assert probe.results_came(S, ["unknown"], now=0.0) is None
    assert probe.results_came(OTHER, ["1"], now=0.0) is None
    assert probe.active_sessions == 1


def test_a_call_that_is_open_does_not_open_again():
    probe = tools()
    probe.opened(S, R, calls("1"), now=0.0)
    assert probe.opened(S, R, calls("1", "2"), now=5.0) == ("tool-2",)
    assert seen(probe.results_came(S, ["1"], now=6.0)) == (("tool-1",), 6.0)


def test_open_calls_are_bounded_the_newest_are_kept():
    probe = tools(max_open_calls=2)
    assert probe.opened(S, R, calls("1", "2", "3"), now=0.0) == ("tool-2", "tool-3")
    probe.opened(S, R, calls("4"), now=0.0)
    assert [call.name for call in probe.open_calls(S)] == ["tool-3", "tool-4"]
    assert probe.results_came(S, ["1", "2"], now=1.0) is None


def test_a_session_that_ends_takes_its_calls_along():
    probe = tools()
    probe.opened(S, R, calls("1"), now=0.0)
    probe.forget(S)
    probe.forget(OTHER)
    assert probe.active_sessions == 0


def test_calls_in_text_close_when_the_conversation_goes_on():
    probe = tools()
    probe.text_called(S, R, ["bash"], now=1.0)
    assert probe.active_sessions == 1
    assert probe.results_came(S, (), went_on=RequestId("other"), now=2.0) is None
    assert seen(probe.results_came(S, (), went_on=R, now=3.0)) == (("bash",), 2.0)
    assert probe.active_sessions == 0


def test_a_conversation_that_goes_on_without_a_result_has_given_it_up():
    probe = tools()
    probe.opened(S, R, calls("1", "2"), now=0.0)
    assert seen(probe.results_came(S, ["1"], went_on=R, now=1.0)) == (("tool-1",), 1.0)
    assert probe.active_sessions == 0 and probe.results_came(S, ["2"], now=2.0) is None


def test_tools_that_the_engine_runs_are_no_boundaries():
    probe = tools()
    assert probe.opened(S, R, [ToolCall("1", "web_search", is_at_engine=True)], now=0.0) == ()
    assert probe.active_sessions == 0
