"""Recordings of Claude Code as kv-cache-tester has them."""

from lab.workload.trace.format import Tool, TurnRef
from lab.workload.trace.kv_cache_tester import KV_CACHE_TESTER
from tests.lab.workload.trace.made import imported, lines


def _request(t, prompt, output, hk, *hr, stop="tool_use", **more):
    return {"t": t, "type": "n", "in": prompt, "out": output, "stop": stop, "hk": hk, "hr": list(hr), **more}


def _recording(*requests, **more):
    return {
        "id": "trace_1",
        "block_size": 64,
        "tool_tokens": 100,
        "system_tokens": 60,
        "requests": requests,
        **more,
    }


MAIN = (
    _request(0, 200, 50, 0, [1, 3], think_time=0, api_time=2.0),
    _request(10, 300, 20, 3, [4, 1], think_time=8.0, stop="end_turn"),  # goes on: all 3 blocks
    _request(40, 330, 5, 3, [9, 2], think_time=25.0),  # block 4 is another now
    _request(50, 10, 0, 0, stop=None),  # nothing shared; no time recorded
)


def _turns(session, thread=0):
    return session.threads[thread].turns


def test_prefixes_follow_from_blocks():
    (session,) = imported(KV_CACHE_TESTER, lines(_recording(*MAIN)))
    turns = _turns(session)
    assert [(turn.prefix_of, turn.prefix_tokens) for turn in turns] == [
        (None, 0),
        (TurnRef(0, 0), 250),
        (TurnRef(0, 0), 250),
        (None, 0),
    ]
    assert [(turn.input_tokens, turn.output_tokens) for turn in turns] == [
        (200, 50),
        (300, 20),
        (330, 5),
        (10, 1),
    ]
    assert session.agent_type == "claude-code"


def test_gaps_are_tools_or_persons():
    (session,) = imported(KV_CACHE_TESTER, lines(_recording(*MAIN)))
    turns = _turns(session)
    assert [turn.tools for turn in turns] == [
        (Tool(name="tool", duration_s=8.0),),
        (),
        (Tool(name="tool", duration_s=10.0),),
        (),
    ]
    assert [(turn.pause_s, turn.is_pause_human) for turn in turns] == [
        (0.0, False),
        (0.0, False),
        (25.0, True),
        (0.0, False),
    ]


def _agent(t, duration_ms, *requests):
    return {
        "t": t,
        "type": "subagent",
        "duration_ms": duration_ms,
        "subagent_type": "Explore",
        "tool_tokens": 50,
        "system_tokens": 50,
        "requests": requests,
    }


SUB = (_request(0, 150, 9, 0, [20, 2]), _request(4, 190, 9, 2, [30, 1], think_time=1.0))
TWIN = (_request(0, 160, 9, 0, [20, 1], [40, 1]),)
WITH_AGENTS = _recording(
    _request(0, 100, 9, 0, [1, 1], api_time=2.0),
    _agent(20, 18_000, *SUB),
    _agent(30, 28_000, *TWIN),
    _request(33, 150, 9, 1, [2, 1], think_time=31.0, stop="end_turn"),
    _agent(99, 60_000, *TWIN),
    _request(45, 180, 9, 2, think_time=8.0),
)


def test_sub_agents_are_threads_of_the_turn_before_them():
    (session,) = imported(KV_CACHE_TESTER, lines(WITH_AGENTS))
    main = _turns(session)
    assert main[0].tools == (
        Tool(name="agent", starts_thread=1),
        Tool(name="agent", starts_thread=2, duration_s=3.0),
    )
    assert main[1].tools == (Tool(name="agent", starts_thread=3, is_detached=True),)
    assert _turns(session, 1)[0].tools == (Tool(name="tool", duration_s=1.0),)
    assert _turns(session, 1)[1].prefix_of == TurnRef(1, 0)
