import tracemalloc

import pytest

from gateway.domain.request import Utterance
from gateway.identity.items import read_item
from gateway.responses import observed as module
from gateway.responses.observed import ObservedResponse
from gateway.wire.hashing import text_hash
from tests.wire.shapes import assistant, raws


@pytest.mark.parametrize(
    ("call_id", "name"), [(None, "f"), ("", "f"), ("a", None), ("a", ""), ("x" * 257, "f")]
)
def test_half_a_call_is_none(call_id, name):
    observed = ObservedResponse()
    observed.add_call(call_id, name)
    assert observed.tool_calls == []


def test_state_ids_are_kept_once_and_in_order():
    observed = ObservedResponse()
    for state_id in ["b", "a", "b", None, "", "x\n"]:
        observed.add_state_id(state_id)
    assert observed.state_ids == ["b", "a"]


def test_an_answer_cannot_make_us_keep_ids_without_end(monkeypatch):
    monkeypatch.setattr(module, "MAX_CALLS", 2)
    monkeypatch.setattr(module, "MAX_STATE_IDS", 3)
    observed = ObservedResponse()
    for at in range(9):
        observed.add_call(f"c{at}", "f")
        observed.add_state_id(f"s{at}")
    assert len(observed.tool_calls) == 2 and len(observed.state_ids) == 3


def test_what_is_said_without_end_is_not_recognised(monkeypatch):
    monkeypatch.setattr(module, "MAX_OUTPUT_BYTES", 20)
    observed = ObservedResponse()
    observed.add_text("It is sunny.")
    assert observed.has_output and observed.answer(200).utterance.text == text_hash("It is sunny.")
    observed.add_arguments("c", '"It will be sunny"')
    assert observed.answer(200).utterance == Utterance()


def test_a_long_stream_of_tokens_takes_the_memory_of_its_text():
    """Not of an object for each of them: thousands of streams are open at once."""
    tracemalloc.start()
    try:
        observed = ObservedResponse()
        for number in range(20_000):
            observed.add_text(f" t{number % 1000}")
            observed.add_arguments("c", f"{number % 1000},")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert observed.has_output and used < 2 * module.MAX_OUTPUT_BYTES


def test_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_CALLS", 2)
    observed = ObservedResponse()
    for call in "abc":
        observed.add_arguments(call, f'"do the task {call}{call} now"')
    observed.add_arguments("a", None)
    assert len(observed._arguments) == 2


def test_what_a_model_makes_up_behind_its_call_is_not_said():
    """The program stops it there, or cuts it off, and sends its own observation back."""
    call = "Thought: go\nAction: get\nAction Input: {}\n"
    observed = ObservedResponse()
    observed.add_text(call + "Observation: 41, I guess.\nFinal Answer: 41")
    assert observed.answer(200).utterance.text == text_hash(call)
    sent_back = [
        read_item(raw) for raw in raws([assistant(text=f"{call}Observation: {n}") for n in (42, 43)])
    ]
    assert {item.text for item in sent_back} == {text_hash(call)}
    assert sent_back[0].hash != sent_back[1].hash
    plain = read_item(raws([assistant(text="In short:\nObservation: it rains")])[0])
    assert plain.text == text_hash("In short:\nObservation: it rains")


def test_thoughts_are_not_said():
    observed = ObservedResponse()
    for piece in ("<think>Hm,\n", "is it?</think>", "", "It is."):
        observed.add_text(piece)
    assert observed.answer(200).utterance.text == text_hash("It is.")
