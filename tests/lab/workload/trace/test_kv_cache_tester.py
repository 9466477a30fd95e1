"""Recordings of Claude Code as kv-cache-tester has them."""

from lab.workload.trace.format import Tool, TurnRef
from lab.workload.trace.kv_cache_tester import KV_CACHE_TESTER
from tests.lab.workload.trace.made import imported, lines, with_problems


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


def test_a_prompt_that_parts_in_the_middle_shares_whole_blocks():
    recording = _recording(
        _request(0, 200, 50, 0, [1, 3]),
        _request(1, 400, 9, 2, [9, 4]),
        _request(2, 200, 9, 2, [3, 1]),  # back to the first one
        _request(3, 220, 9, 1, [9, 2]),  # and to the beginning of none but the first
    )
    (session,) = imported(KV_CACHE_TESTER, lines(recording))
    assert [(turn.prefix_of, turn.prefix_tokens) for turn in _turns(session)[1:]] == [
        (TurnRef(0, 0), 128),
        (TurnRef(0, 0), 200),
        (TurnRef(0, 0), 64),
    ]


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


def test_an_unrecorded_gap_is_the_time_between():
    recording = _recording(_request(0, 9, 5, 0, api_time=2.0), _request(5, 9, 5, 0))
    (session,) = imported(KV_CACHE_TESTER, lines(recording))
    assert _turns(session)[0].tools == (Tool(name="tool", duration_s=3.0),)


def test_part_of_the_opening_is_every_sessions():
    (session,) = imported(KV_CACHE_TESTER, lines(_recording(*MAIN)), shared_part=0.5)
    assert (session.threads[0].shared_key, session.threads[0].shared_tokens) == ("claude-code", 80)
    (short,) = imported(KV_CACHE_TESTER, lines(_recording(MAIN[3])), shared_part=0.5)
    assert short.threads[0].shared_tokens == 10


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


def test_sub_agents_share_their_openings():
    (session,) = imported(KV_CACHE_TESTER, lines(WITH_AGENTS))
    openings = [(thread.turns[0].prefix_of, thread.turns[0].prefix_tokens) for thread in session.threads]
    assert openings == [(None, 0), (None, 0), (TurnRef(1, 0), 64), (TurnRef(2, 0), 128)]
    (session,) = imported(KV_CACHE_TESTER, lines(WITH_AGENTS), shared_part=0.7)
    assert [(thread.shared_key, thread.shared_tokens) for thread in session.threads] == [
        ("claude-code", 100),
        ("claude-code/Explore", 70),
        ("claude-code/Explore", 70),
        (None, 0),
    ]


def test_sub_agents_can_be_left_out():
    (session,) = imported(KV_CACHE_TESTER, lines(WITH_AGENTS), sub_agents=False)
    assert len(session.threads) == 1
    assert _turns(session)[0].tools == (Tool(name="tool", duration_s=31.0),)


def test_a_detached_sub_agent_leaves_the_turns_tools_as_they_were():
    recording = _recording(
        _request(0, 100, 9, 0), _agent(50, 49_000, *TWIN), _request(9, 100, 9, 0, think_time=5.0)
    )
    (session,) = imported(KV_CACHE_TESTER, lines(recording))
    assert _turns(session)[0].tools == (
        Tool(name="tool", duration_s=5.0),
        Tool(name="agent", starts_thread=1, is_detached=True),
    )


def test_what_cannot_be_is_left_out():
    sessions, problems = with_problems(
        KV_CACHE_TESTER,
        lines(
            _recording(),
            _recording(_request(0, 9, 9, 1)),
            _recording(MAIN[0], _agent(1, 1)),
            _recording(MAIN[0], _agent(1, 1, _agent(1, 1))),
            {"id": 1},
            _recording(MAIN[0]),
        ),
    )
    assert len(sessions) == 1
    assert [problem.split(": ")[0] for problem in problems] == [f"corpus, line {n}" for n in range(1, 6)]
    assert "without a request" in problems[0]
    assert "1 blocks of one with 0" in problems[1]
