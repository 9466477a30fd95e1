"""A step that is done again has the same hashes, in every protocol, whatever its ids are."""

import json
from typing import Any

import pytest
from msgspec import Raw

from gateway.domain.request import NewItems
from gateway.identity.repeats import read_step
from gateway.identity.transcript import TranscriptReader
from gateway.wire.body import decode_measured
from gateway.wire.slices import finish


def chat(number: int, *, command="ls", result="a b", text="I look."):
    call: dict[str, Any] = {"id": f"call_{number}", "type": "function"}
    call["function"] = {"name": "bash", "arguments": json.dumps({"command": command})}
    return (
        [{"role": "assistant", "content": f"{text} {number}", "tool_calls": [call]}],
        [{"role": "tool", "tool_call_id": f"call_{number}", "content": result}],
    )


def messages(number: int, *, command="ls", result="a b"):
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "bash", "input": {"command": command}}
    brought = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": result}
    said = {"type": "text", "text": f"Once more: {number}."}
    return [{"role": "assistant", "content": [said, use]}], [{"role": "user", "content": [brought]}]


def responses(number: int, *, command="ls", result="a b"):
    call = {"type": "function_call", "call_id": f"fc_{number}", "name": "bash"}
    call["arguments"] = json.dumps({"command": command})
    return (
        [{"type": "reasoning", "id": f"rs_{number}", "summary": []}, call],
        [{"type": "function_call_output", "call_id": f"fc_{number}", "output": result}],
    )


def as_text(number: int, *, command="ls", result="a b"):
    said = f"THOUGHT: attempt {number}.\n\n```bash\n{command}\n```"
    return [{"role": "assistant", "content": said}], [
        {"role": "user", "content": f"<output>{result}</output>"}
    ]


def react(number: int, *, command="ls", result="a b"):
    said = f"Thought: {number}\nAction: bash\nAction Input: {command}\nObservation: made up {number}"
    return [{"role": "assistant", "content": said}], [{"role": "user", "content": f"Observation: {result}"}]


PROTOCOLS = pytest.mark.parametrize("step", [chat, messages, responses, as_text, react])


def raws(items) -> list[Raw]:
    return [Raw(json.dumps(each).encode()) for each in items]


def hashes(step) -> tuple[int, int]:
    answer, news = step
    return read_step(raws(answer), raws(news))


@PROTOCOLS
def test_a_step_that_is_done_again_is_the_same(step):
    first = hashes(step(1))
    assert 0 not in first
    assert hashes(step(2)) == first


@PROTOCOLS
def test_another_call_is_another_and_so_is_another_result(step):
    called, brought = hashes(step(1))
    assert hashes(step(1, command="ls -l"))[0] != called
    assert hashes(step(1, result="a b c"))[0] == called
    assert hashes(step(1, result="a c"))[1] != brought


def test_several_calls_count_together():
    (one,), (result,) = chat(1)
    both = {**one, "tool_calls": [*one["tool_calls"], *one["tool_calls"]]}
    assert hashes(([both], [result, result])) != hashes(([one], [result]))


def test_what_is_not_there_is_nothing():
    assert read_step([], []) == (0, 0)
    assert read_step(
        raws([{"role": "assistant", "content": ""}]), raws([{"role": "system", "content": "x"}])
    ) == (
        0,
        0,
    )


@pytest.mark.parametrize("raw", [b"{", b"7", b"null", b'{"role":"tool","content":[[[1e999]]]}', b"[" * 5000])
def test_what_cannot_be_read_harms_nobody(raw):
    read_step([Raw(raw)], [Raw(raw)])


def test_what_is_too_large_to_be_read_counts_by_its_bytes():
    large = {"role": "tool", "tool_call_id": "x", "content": "y" * (2**20 + 1)}
    (answer, _) = chat(1)
    assert hashes((answer, [large])) == hashes((answer, [large]))
    assert hashes((answer, [large])) != hashes((answer, [{**large, "content": "z" * (2**20 + 1)}]))


@PROTOCOLS
def test_a_reader_tells_steps_if_it_is_asked_to(step):
    answer, news = step(1)
    items = raws([{"role": "user", "content": "go"}, *answer, *news])
    fields = decode_measured(b'{"model":"m","messages":[]}', is_responses=False)
    assert fields is not None
    reader = TranscriptReader()
    silent = finish(reader.reading(fields, items))[0].new
    assert (silent.called, silent.brought) == (0, 0) and silent != NewItems()
    reader.reads_steps = True
    told = finish(reader.reading(fields, items))[0].new
    assert (told.called, told.brought) == hashes((answer, news))
    assert told.size == silent.size
