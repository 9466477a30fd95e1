"""SWE-agent's trajectories: text, sometimes calls, sometimes times."""

import json

import pytest

from lab.workload.swe_agent import swe_agent
from tests.lab.workload.corpora import assert_histories_grow, assert_in_time, called, imported, member, said

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
