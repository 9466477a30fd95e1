"""Requests out of cassettes: any protocol, whole or streamed, dated or not."""

import json

import pytest

from lab.workload.openai_http import openai_http
from lab.workload.problems import Problems
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


def test_what_was_asked_and_by_whom_is_kept():
    (turn,) = _turns({"request": CHAT, "user_agent": "crew/1"})
    assert (turn.body, turn.headers) == (CHAT, {"User-Agent": "crew/1"})
    (turn,) = _turns({"request": CHAT, "user_agent": "crew/1", "headers": {"X": "y"}})
    assert turn.headers == {"X": "y"}
    (turn,) = _turns({"request": CHAT})
    assert turn.headers == {}


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


@pytest.mark.parametrize("second", [_dated(5, "100"), _dated(10, "100", day=13), {"request": CHAT}])
def test_other_dates_are_not_believed(second):
    first, other = _turns(_dated(10, "1000"), second)
    assert first.lasts_s == 1.0
    assert 1.0 < other.at_s < 20.0


def test_after_an_unbelievable_date_the_next_ones_count_from_there():
    turns = _turns(_dated(10, "1000"), _dated(10, "1000", day=13), _dated(15, "1000", day=13))
    assert turns[2].at_s - turns[1].at_s == pytest.approx(5.0)


def test_broken_times_are_composed():
    rows = [
        {"request": CHAT, "resp_date": "yesterday", "processing_ms": "fast", "response": _completion()}
    ] * 2
    turns = _turns(*rows)
    assert turns[0].lasts_s > 0
    assert turns[1].at_s > turns[0].lasts_s


def test_what_is_no_request_is_a_problem():
    problems = Problems()
    rows = [{"request": "text"}, {"request": {"model": "m"}}, {"request": CHAT}]
    sessions = list(openai_http([member(*rows, name="f")], problems, 0))
    assert len(sessions) == 1
    assert problems.shown[1] == "f, line 2: neither a path nor a request of a known protocol"
