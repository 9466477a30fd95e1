"""Requests out of cassettes: any protocol, whole or streamed, dated or not."""

import json

import pytest

from lab.workload.openai_http import openai_http
from tests.lab.workload.corpora import assert_in_time, imported, member, said

CHAT = {"model": "m", "messages": [said("user", "hi")]}


def _completion(text="hello", **more):
    return {
        "id": "chatcmpl-1",
        "choices": [{"message": said("assistant", text), "finish_reason": "stop"}],
        **more,
    }


def _turns(*rows):
    ((_, turns),) = imported(openai_http, member(*rows))
    assert_in_time(turns)
    return turns


def test_a_cassette_is_a_session():
    rows = [
        {"session": "a.yaml", "request": CHAT},
        {"cassette": "b.yaml", "request": CHAT},
        {"test": "b.yaml", "request": CHAT},
        {"request": CHAT},
    ]
    found = imported(openai_http, member(*rows, name="corpus"))
    assert [(s.client, s.name, s.source, len(turns)) for s, turns in found] == [
        ("openai-http", "a.yaml", "corpus:1", 1),
        ("openai-http", "b.yaml", "corpus:2", 2),
        ("openai-http", "corpus", "corpus:4", 1),
    ]


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"request": CHAT}, "/v1/chat/completions"),
        ({"request": {"input": "hi"}}, "/v1/responses"),
        ({"request": {"prompt": "hi"}}, "/v1/completions"),
        ({"request": {"model": "m"}, "api": "chat"}, "/v1/chat/completions"),
        ({"request": {"input": "hi"}, "api": "embeddings", "path": "/v1/embeddings"}, "/v1/embeddings"),
    ],
)
def test_the_path_follows_from_what_is_known(row, path):
    assert [turn.path for turn in _turns(row)] == [path]


def test_answers_of_every_protocol():
    def answer(request, response, **more):
        (turn,) = _turns({"request": request, "response": response, **more})
        return turn.status, turn.response, turn.finish, turn.response_id

    message = said("assistant", "hello")
    assert answer(CHAT, _completion()) == (200, message, "stop", "chatcmpl-1")
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]}
    assert answer(CHAT, f"data: {json.dumps(chunk)}\n\n") == (200, message, "stop", "c")
    assert answer({"prompt": "p"}, {"choices": [{"text": "hello"}]}) == (200, message, None, None)
    assert answer(CHAT, {"error": {}}, status=429) == (429, None, None, None)
    assert (
        answer(CHAT, {"odd": 1}) == answer(CHAT, "no stream") == answer(CHAT, None) == (200, None, None, None)
    )


def test_answers_of_the_responses_protocol():
    def answer(response):
        (turn,) = _turns({"request": {"input": "hi"}, "response": response})
        return turn.response, turn.finish, turn.response_id

    text = [{"type": "message", "content": []}]
    call = [{"type": "function_call", "call_id": "call_1"}]
    done = {"id": "resp_1", "status": "completed"}
    assert answer({**done, "output": text}) == (text, "stop", "resp_1")
    assert answer({**done, "output": call}) == (call, "tool_calls", "resp_1")
    assert answer({**done, "status": "incomplete", "output": []}) == ([], None, "resp_1")
    event = {"type": "response.completed", "response": {**done, "output": text}}
    assert answer(f"event: response.completed\ndata: {json.dumps(event)}\n\n") == (text, "stop", "resp_1")
    assert answer({"id": "resp_1"}) == answer("data: {}\n\n") == (None, None, None)


def _dated(second, processing_ms, day=12):
    date = f"Thu, {day} Feb 2026 19:{second // 60:02}:{second % 60:02} GMT"
    return {"request": CHAT, "resp_date": date, "processing_ms": processing_ms}


def test_dates_give_the_times_where_they_are_believable():
    turns = _turns(_dated(10, "2000"), _dated(20, 3000), _dated(21, "4000"))
    assert [turn.lasts_s for turn in turns] == [2.0, 3.0, 4.0]
    # 19:29:10 is when the first had been answered; the third seems to start before the second ends.
    assert [turn.at_s for turn in turns] == [0.0, 9.0, 12.0]
