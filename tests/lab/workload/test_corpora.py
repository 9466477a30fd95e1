"""Corpora as recordings: what an exchange may say, how it is cleaned, and each importer."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.workload.agentcgroup import agentcgroup
from lab.workload.exchange import Exchange, Truth, read_exchange, without_secrets, write_exchange
from lab.workload.lmcache import lmcache
from lab.workload.openai_http import openai_http
from lab.workload.problems import Problems
from lab.workload.recorded import recorded
from lab.workload.swe_agent import swe_agent
from tests.lab.workload.corpora import assert_histories_grow, assert_in_time, called, imported, member, said

LEAST = b'{"t": 1.0, "path": "/v1/models", "truth": {"client": "c", "session": "s"}}'


def test_the_least_line_has_defaults():
    exchange = read_exchange(LEAST)
    assert (exchange.method, exchange.status, exchange.headers, exchange.t_end) == ("POST", 200, {}, None)
    assert exchange.truth == Truth(client="c", session="s")


def test_a_line_comes_back_as_it_was():
    exchange = Exchange(
        t=1.5,
        t_first_byte=1.6,
        t_end=2.0,
        path="/v1/chat/completions",
        headers=[("A", "1"), ("A", "2")],
        body={"messages": []},
        response={"role": "assistant", "content": "ü"},
        truth=Truth(client="c", session="s", thread="t", source="f:1"),
    )
    line = write_exchange(exchange)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert read_exchange(line) == exchange


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "truncated"),
        (b'{"path": "/", "truth": {"client": "c", "session": "s"}}', "missing required field `t`"),
        (b'{"t": 0, "path": "/"}', "missing required field `truth`"),
        (
            b'{"t": 0, "path": "/", "truth": {"client": "c"}}',
            r"missing required field `session` - at `\$.truth`",
        ),
        (LEAST.replace(b'"t": 1.0', b'"t": 1.0, "t_end": 0.5'), "t_end 0.5 is before t 1.0"),
        (LEAST.replace(b"/v1", b"v1"), "'v1/models' does not begin with a slash"),
    ],
)
def test_what_is_wrong_is_said(line, complaint):
    with pytest.raises((ValueError, msgspec.DecodeError), match=complaint):
        read_exchange(line)


def test_credentials_are_replaced_in_either_form_of_headers():
    assert without_secrets({"Authorization": "Bearer x", "Accept": "*/*"}) == {
        "Authorization": "<redacted>",
        "Accept": "*/*",
    }
    assert without_secrets([("X-API-Key", "x"), ("a", "b")]) == [("X-API-Key", "<redacted>"), ("a", "b")]


def _line(t, session="s1", **more):
    return {"t": t, "path": "/v1/responses", "truth": {"client": "c", "session": session}, **more}


def _read(*records, match="*", limit=None):
    problems = Problems()
    return list(recorded([member(*records, name="file")], problems, match=match, limit=limit)), problems


def test_good_lines_come_through_clean():
    found, problems = _read(
        _line(1.0, headers={"Authorization": "Bearer secret"}, unknown=1),
        b"",
        _line(1.0, body={"input": "x"}),
    )
    assert [x.t for x in found] == [1.0, 1.0]
    assert found[0].headers == {"Authorization": "<redacted>"}
    assert found[1].body == {"input": "x"}
    assert problems.count == 0


def test_bad_lines_are_named():
    found, problems = _read(_line(5.0), b"nonsense", _line(4.0), _line(6.0, t_end=5.5), _line(7.0))
    assert [x.t for x in found] == [5.0, 7.0]
    assert [problem.partition(": ")[0] for problem in problems.shown] == [
        "file, line 2",
        "file, line 3",
        "file, line 4",
    ]
    assert problems.shown[1] == "file, line 3: t 4.0 is before the line above (5.0)"


def test_sessions_are_chosen_by_name_and_number():
    lines = [_line(t, s) for t, s in enumerate(["a1", "b1", "a2", "a1", "a3", "a2"])]
    found, _ = _read(*lines, match="a*", limit=2)
    assert [x.truth.session for x in found] == ["a1", "a2", "a1", "a2"]


def test_every_member_has_its_own_clock():
    members = [member(json.dumps(_line(t)).encode(), name=str(t)) for t in (9.0, 1.0)]
    problems = Problems()
    assert len(list(recorded(members, problems, match="*", limit=None))) == 2
    assert problems.count == 0


HISTORY = [
    said("system", "You fix.", agent="main", message_type="system_prompt"),
    said("user", "a demonstration", is_demo=True),
    said("assistant", "as shown", is_demo=True),
    said("user", "the issue", agent="main"),
    {**called("call_1"), "agent": "main", "thought": "t", "action": "ls"},
    said("tool", "a.py", tool_call_ids=["call_1"], agent="main"),
    said("assistant", "submit", agent="main", thought="t"),
    said("user", "submitted"),
]


def _file(name="demos/fix", **record):
    return member(json.dumps(record).encode(), name=name)


def test_the_history_before_an_answer_is_its_request():
    steps = [{"execution_time": 7.5, "action": "ls"}, {"action": "submit"}]
    ((session, turns),) = imported(swe_agent, _file(history=HISTORY, trajectory=steps))
    assert (session.client, session.name, session.source) == ("swe-agent", "demos/fix", "demos/fix")
    assert [len(turn.body["messages"]) for turn in turns] == [4, 6]
    assert turns[0].response == called("call_1")
    assert turns[1].body["messages"][5] == said("tool", "a.py", tool_call_id="call_1")
    assert turns[1].body["messages"][1] == said("user", "a demonstration")
    assert turns[1].at_s == pytest.approx(turns[0].lasts_s + 7.5)
    assert_histories_grow(turns)
    assert_in_time(turns)


def _row(second, text, output):
    return {
        "timestamp": 1_700_000_000_000_000 + int(second * 1e6),
        "input": text,
        "output": output,
        "session_id": "x",
    }


def test_answers_stand_between_the_users_messages():
    rows = [_row(2, "fix\n\nit\n\n<returncode>0", "second"), _row(0, "fix\n\nit", "first")]
    ((session, turns),) = imported(lmcache, member(*rows, name="miniswe/0f3"))
    assert (session.client, session.name) == ("lmcache-miniswe", "miniswe/0f3")
    assert turns[0].body["messages"] == [said("user", "fix\n\nit")]
    assert turns[1].body["messages"] == [
        said("user", "fix\n\nit"),
        said("assistant", "first"),
        said("user", "<returncode>0"),
    ]
    assert turns[1].at_s == 2.0
    assert turns[0].lasts_s <= 2.0
    assert [turn.thread for turn in turns] == ["1", "1"]


@given(st.lists(st.tuples(st.text("ab\n", max_size=4), st.text("xy", max_size=2)), min_size=1, max_size=6))
def test_histories_grow_whatever_is_said(talk):
    text, rows = "start", []
    for second, (word, output) in enumerate(talk):
        rows.append(_row(second, text, output))
        text = text if not output else f"{text}\n\n{word}"
    ((_, turns),) = imported(lmcache, member(*rows))
    assert_histories_grow(turns)
    assert_in_time(turns)
    assert (
        "\n\n".join(m["content"] for m in turns[-1].body["messages"] if m["role"] == "user")
        == rows[-1]["input"]
    )


def _request(start, end, append, response, **more):
    return {"t_start": start, "t_end": end, "append": append, "response": response, **more}


def _called(call_id):
    message = called(call_id)
    message["tool_calls"][0]["t"] = 12.0
    return message


MAIN = [
    _request(10.0, 12.0, [said("user", "fix")], _called("toolu_1"), id="msg_1", model="m"),
    _request(
        15.5,
        15.0,
        [said("tool", "ok", tool_call_id="toolu_1", t=15.5, is_error=False)],
        said("assistant", "done"),
    ),
]
SUB = [_request(13.0, 14.0, [said("user", "look")], said("assistant", "seen"))]
RECORD = {
    "session": "s1",
    "task": "Easy",
    "agents": [
        {"agent": "main", "parent_tool_call": None, "requests": MAIN, "trailing": []},
        {"agent": "explore", "parent_tool_call": "toolu_1", "requests": SUB, "trailing": []},
    ],
}


def test_requests_add_up_and_agents_interleave():
    ((session, turns),) = imported(agentcgroup, member(RECORD, name="batch"))
    assert (session.client, session.name, session.source) == ("agentcgroup", "s1", "batch:1")
    assert [(turn.thread, turn.at_s, turn.lasts_s) for turn in turns] == [
        ("main", 0.0, 2.0),
        ("explore", 3.0, 1.0),
        ("main", 5.5, 0.0),
    ]
    assert (turns[0].response_id, turns[0].body["model"], turns[1].body["model"]) == ("msg_1", "m", "unknown")
    assert turns[2].body["messages"] == [
        said("user", "fix"),
        called("toolu_1"),
        said("tool", "ok", tool_call_id="toolu_1"),
    ]
    assert_histories_grow(turns)
    assert_in_time(turns)


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
