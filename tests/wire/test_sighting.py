import pytest

from gateway.domain.request import Answer, ToolCall, Usage
from gateway.wire import sighting as module
from gateway.wire.sighting import Sighting


def test_calls_are_kept_once_and_in_order():
    sighting = Sighting()
    for call_id, name in [("a", "ls"), ("b", "cat"), ("a", "again")]:
        sighting.add_call(call_id, name)
    assert sighting.tool_calls == [ToolCall("a", "ls"), ToolCall("b", "cat")]


@pytest.mark.parametrize(
    ("call_id", "name"), [(None, "f"), ("", "f"), ("a", None), ("a", ""), ("x" * 257, "f")]
)
def test_half_a_call_is_none(call_id, name):
    sighting = Sighting()
    sighting.add_call(call_id, name)
    assert sighting.tool_calls == []


def test_state_ids_are_kept_once_and_in_order():
    sighting = Sighting()
    for state_id in ["b", "a", "b", None, "", "x\n"]:
        sighting.add_state_id(state_id)
    assert sighting.state_ids == ["b", "a"]


def test_an_answer_cannot_make_us_keep_ids_without_end(monkeypatch):
    monkeypatch.setattr(module, "MAX_CALLS", 2)
    monkeypatch.setattr(module, "MAX_STATE_IDS", 3)
    sighting = Sighting()
    for at in range(9):
        sighting.add_call(f"c{at}", "f")
        sighting.add_state_id(f"s{at}")
    assert len(sighting.tool_calls) == 2 and len(sighting.state_ids) == 3


def test_usage_grows_number_by_number():
    sighting = Sighting()
    sighting.merge_usage(30, 16, None)
    sighting.merge_usage(None, None, 7)
    sighting.merge_usage(31, None, 8)
    assert sighting.usage == Usage(prompt_tokens=31, cached_tokens=16, output_tokens=8)


def test_the_answer_says_all_that_was_seen():
    sighting = Sighting()
    assert sighting.answer(200) == Answer(status=200)
    sighting.add_call("a", "ls")
    sighting.add_state_id("resp_1")
    sighting.finish_reason, sighting.has_terminal = "stop", True
    assert sighting.answer(206) == Answer(
        status=206,
        tool_calls=(ToolCall("a", "ls"),),
        state_ids=("resp_1",),
        finish_reason="stop",
        has_terminal=True,
    )
