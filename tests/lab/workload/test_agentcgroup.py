"""AgentCgroup's sessions: recorded times, sub-agents, messages given as what each request adds."""

from lab.workload.agentcgroup import agentcgroup
from tests.lab.workload.corpora import assert_histories_grow, assert_in_time, called, imported, member, said


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
