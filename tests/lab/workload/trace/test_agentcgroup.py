"""AgentCgroup's sessions: prompts as counted, tools as timed."""

from lab.workload.trace.agentcgroup import AGENTCGROUP
from lab.workload.trace.estimates import message_tokens
from lab.workload.trace.format import Tool, TurnRef
from tests.lab.workload.corpora import called, said
from tests.lab.workload.trace.made import imported, lines


def _called(*calls):
    message = called("x")
    message["tool_calls"] = [
        {"id": call_id, "t": at, "function": {"name": name, "arguments": "{}"}} for call_id, name, at in calls
    ]
    return message


def _request(start, end, prompt, append, response, cached=0):
    usage = {"inp": prompt, "cached": cached, "out": 1}
    return {"t_start": start, "t_end": end, "usage": usage, "append": append, "response": response}


def _result(call_id, at):
    return said("tool", "ok", tool_call_id=call_id, t=at)


REQUESTS = [
    _request(0, 2, 100, [said("user", "fix")], _called(("c1", "Read", 2.0), ("c2", "Bash", 2.5)), cached=80),
    _request(9, 12, 160, [_result("c1", 2.5), _result("c2", 8.0)], said("assistant", "done?")),
    _request(20, 21, 90, [said("user", "no")], _called(("c3", "Read", 21.0)), cached=85),
]


def _record(*requests, name="s1"):
    return {"session": name, "cc_version": "2.1", "agents": [{"agent": "main", "requests": list(requests)}]}


def test_prompts_are_as_counted_and_tools_as_timed():
    (session,) = imported(AGENTCGROUP, lines(_record(*REQUESTS)))
    first, second, third = session.threads[0].turns
    output = message_tokens(REQUESTS[0]["response"])
    assert [t.input_tokens for t in session.threads[0].turns] == [100, 160, 90]
    assert first.output_tokens == output
    assert first.tools == (Tool(name="Read", duration_s=0.5), Tool(name="Bash", duration_s=5.5))
    assert (second.prefix_of, second.prefix_tokens) == (TurnRef(0, 0), 100 + output)
    assert (second.pause_s, second.is_pause_human) == (1.0, False)
    assert (third.pause_s, third.is_pause_human) == (8.0, True)
    assert third.prefix_tokens == 85
    assert third.tools == ()
