from pathlib import Path

import msgspec
import pytest

from lab.evaluation.recording import Exchange, read_recording
from tests.lab.evaluation.recordings import Recorder


def one(**fields) -> Exchange:
    recorder = Recorder()
    recorder.exchange("s", [{"role": "user", "content": "Hi"}], **fields)
    return msgspec.convert(recorder.lines[0], Exchange)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.xz"])
def test_every_packing_is_read_in_order_of_arrival(tmp_path, name):
    recorder = Recorder()
    recorder.run("a")
    recorder.lines.reverse()
    found = read_recording(recorder.write(tmp_path / name))
    assert [exchange.t for exchange in found] == [1001, 1002, 1003, 1004]
    assert found[0].truth.session == "a" and found[0].is_turn


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    path: Path = tmp_path / "a.jsonl"
    path.write_text("\n{}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_recording(path)


def test_ids_are_hidden_on_request():
    exchange = one(
        headers={"Session-Id": "s"},
        body={"prompt_cache_key": "s", "metadata": {}, "conversation": "c", "previous_response_id": "r"},
    )
    assert (b"session-id", b"s") in exchange.header_lines(without_ids=False)
    assert exchange.header_lines(without_ids=True) == [(b"user-agent", b"tiny/1")]
    body = msgspec.json.decode(exchange.body_bytes(without_ids=True))
    assert "prompt_cache_key" not in body and {"conversation", "previous_response_id"} <= body.keys()
    assert "prompt_cache_key" in msgspec.json.decode(exchange.body_bytes(without_ids=False))


def test_answers_of_every_protocol():
    call = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = one(response={"role": "assistant", "content": "Hi", "tool_calls": [call]}).answer()
    item = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
    responses = one(response=[item], path="/v1/responses").answer()
    block = {"type": "tool_use", "id": "call_a", "name": "f", "input": {}}
    messages = one(response=[block], path="/v1/messages?beta=true").answer()
    for answer in (chat, responses, messages):
        assert [made.id for made in answer.tool_calls] == ["call_a"] and answer.has_terminal
    assert responses.state_ids == ("chatcmpl-1",)


def test_answers_that_never_came():
    assert one(status=429, fault={"retry_after": 3}).answer().retry_after_s == 3
    assert one(status=503).answer().status == 503 and one(status=0).answer().status == 502
    assert not one(response={"content": "Hi"}, cut_after=4).answer().has_terminal


@pytest.mark.parametrize(
    ("fields", "has_left"),
    [
        ({"client_disconnected": True, "response": {}}, False),  # a close behind the last event
        ({"client_disconnected": True, "response": {}, "fault": {"s": 12}}, True),
        ({"client_disconnected": True, "response": {}, "fault": {"s": 0.1}}, False),
        ({"client_disconnected": True}, True),
        ({}, False),
    ],
)
def test_who_left_before_the_answer(fields, has_left):
    exchange = one(**fields)
    assert exchange.has_left_early is has_left
    assert exchange.is_broken is has_left
