"""Corpora as workloads: Azure, TraceLab, Mooncake, recorded messages, AgentCgroup, ServeGen, Claude Code."""

import statistics
from itertools import pairwise

import pytest

from lab.workload.trace.agentcgroup import AGENTCGROUP
from lab.workload.trace.azure import AZURE
from lab.workload.trace.conversations import TAU_BENCH
from lab.workload.trace.estimates import message_tokens
from lab.workload.trace.format import Tool, TurnRef
from lab.workload.trace.kv_cache_tester import KV_CACHE_TESTER
from lab.workload.trace.mooncake import MANY, MOONCAKE
from lab.workload.trace.servegen import OUTPUT_TOKENS, PROMPT_TOKENS, SERVEGEN
from lab.workload.trace.tracelab import TRACELAB
from tests.lab.workload.corpora import called, member, said
from tests.lab.workload.trace.made import imported, table

ROWS = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("2023-11-16 18:15:46.6805900", 374, 44),
    ("2023-11-16 18:15:50.9951690", 396, 109),
    ("2023-11-16 18:15:50.0000000", 1, 2),
    ("2023-11-16 18:16:46.6805900", 10, 20),
)


def test_every_request_is_a_session():
    sessions = imported(AZURE, table(*ROWS))
    assert [(s.id, s.arrival_s) for s in sessions] == [
        ("corpus:2", 0.0),
        ("corpus:3", 4.314579),
        ("corpus:4", 4.314579),
        ("corpus:5", 60.0),
    ]
    turns = [s.threads[0].turns[0] for s in sessions]
    assert [(t.input_tokens, t.output_tokens) for t in turns] == [(374, 44), (396, 109), (1, 2), (10, 20)]


def _round(name, prompt, cached, output, *times, tools=()):
    return {
        "provider": "claude",
        "session_id": name,
        "input_tokens_total": prompt,
        "prefix_tokens": cached,
        "output_tokens": output,
        "timing_events": [
            {"event_type": "x", "timestamp": f"2026-06-01T05:40:{second:02}.500Z"} for second in times
        ],
        "tools": [{"tool_name": tool, "tool_wall_latency_ms": wall} for tool, wall in tools],
    }


ROUNDS = (
    _round("a", 100, 50, 20, 1, 2, tools=[("Bash", 860), ("Web", None)]),
    _round("a", 130, 90, 0, 3, 5),
    _round("a", 110, 90, 10, 25, 26, tools=[("Bash", 1)]),
    _round("b", 10, 0, 1, 0),
)


def test_rounds_are_turns():
    one, two = imported(TRACELAB, member(*ROUNDS, name="derived/round_trace"))
    first, second, third = one.threads[0].turns
    assert first.tools == (Tool(name="Bash", duration_s=0.86), Tool(name="Web"))
    assert (second.prefix_of, second.prefix_tokens, second.output_tokens) == (TurnRef(0, 0), 120, 1)
    assert (second.pause_s, second.is_pause_human) == (0.0, False)
    assert (third.prefix_tokens, third.pause_s, third.is_pause_human) == (90, 20.0, True)
    assert third.tools == ()
    assert (two.id, two.turns, two.agent_type) == ("b", 1, "claude")


def _asked(t_s, prompt, output, *blocks):
    return {
        "timestamp": t_s * 1000,
        "input_length": prompt,
        "output_length": output,
        "hash_ids": list(blocks),
    }


def test_a_request_that_goes_on_is_a_turn_of_the_session():
    first = _asked(0, 1100, 50, 1, 2, 3)
    goes_on = _asked(30, 1600, 40, 1, 2, 4, 5)
    (session,) = imported(MOONCAKE, member(first, goes_on))
    one, two = session.threads[0].turns
    assert (two.prefix_of, two.prefix_tokens) == (TurnRef(0, 0), 1150)
    assert (one.pause_s, one.is_pause_human) == (0.0, False)
    assert (two.pause_s, two.is_pause_human) == (28.5, True)


def test_a_request_that_parts_earlier_shares_blocks():
    made = member(_asked(0, 1100, 0, 1, 2, 3), _asked(1, 1100, 9, 1, 7, 8), _asked(1, 600, 9, 5, 6))
    one, two = imported(MOONCAKE, made)
    assert [(t.output_tokens, t.prefix_tokens) for t in one.threads[0].turns] == [(1, 0), (9, 512)]
    assert two.turns == 1


def test_what_many_share_is_an_opening():
    made = [_asked(n, 1100, 9, 0, 100 + n, 500 + n) for n in range(MANY)]
    sessions = imported(MOONCAKE, member(*made, _asked(99, 600, 9, 77, 78)))
    assert len(sessions) == MANY + 1
    assert {(s.threads[0].shared_key, s.threads[0].shared_tokens) for s in sessions} == {
        ("corpus/0", 512),
        (None, 0),
    }
    fewer = imported(MOONCAKE, member(*made[1:]))
    assert [s.turns for s in fewer] == [MANY - 1]


TALK = [
    said("system", "Be kind. " * 9),
    said("user", "Hello there, I lost my ticket"),
    called("c1"),
    said("tool", "found it", tool_call_id="c1"),
    said("assistant", "Here it is"),
    said("user", "thanks"),
    said("assistant", "bye"),
]


def _tau(*talks):
    return imported(TAU_BENCH, member(*({"task_id": n, "traj": talk} for n, talk in enumerate(talks))))


def test_a_turn_shares_the_messages_that_are_equal():
    (session,) = _tau(TALK)
    turns = session.threads[0].turns
    sizes = [message_tokens(message) for message in TALK]
    assert [t.input_tokens for t in turns] == [sum(sizes[:2]), sum(sizes[:4]), sum(sizes[:6])]
    assert [t.output_tokens for t in turns] == [sizes[2], sizes[4], sizes[6]]
    assert [t.prefix_of for t in turns] == [None, TurnRef(0, 0), TurnRef(0, 1)]
    assert [t.prefix_tokens for t in turns] == [0, sum(sizes[:3]), sum(sizes[:5])]


def test_gaps_are_the_called_tools_or_a_persons():
    (session,) = _tau(TALK)
    first, second, third = session.threads[0].turns
    assert [tool.name for tool in first.tools] == ["look_up"]
    assert first.tools[0].duration_s > 0
    assert (second.pause_s, second.is_pause_human, second.tools) == (0.0, False, ())
    assert third.pause_s > 0 and third.is_pause_human


def test_sessions_with_one_system_prompt_open_alike():
    other = [said("system", "Be brief"), *TALK[1:]]
    keys = [(s.threads[0].shared_key, s.threads[0].shared_tokens) for s in _tau(TALK, TALK, other, TALK[1:])]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0][1] == message_tokens(TALK[0])
    assert keys[3] == (None, 0)


def _called(*calls):
    message = called("x")
    message["tool_calls"] = [
        {"id": call_id, "t": at, "function": {"name": name, "arguments": "{}"}} for call_id, name, at in calls
    ]
    return message


def _sent(start, end, prompt, append, response, cached=0):
    usage = {"inp": prompt, "cached": cached, "out": 1}
    return {"t_start": start, "t_end": end, "usage": usage, "append": append, "response": response}


def _result(call_id, at):
    return said("tool", "ok", tool_call_id=call_id, t=at)


REQUESTS = [
    _sent(0, 2, 100, [said("user", "fix")], _called(("c1", "Read", 2.0), ("c2", "Bash", 2.5)), cached=80),
    _sent(9, 12, 160, [_result("c1", 2.5), _result("c2", 8.0)], said("assistant", "done?")),
    _sent(20, 21, 90, [said("user", "no")], _called(("c3", "Read", 21.0)), cached=85),
]


def _record(*requests, name="s1"):
    return {"session": name, "cc_version": "2.1", "agents": [{"agent": "main", "requests": list(requests)}]}


def test_prompts_are_as_counted_and_tools_as_timed():
    (session,) = imported(AGENTCGROUP, member(_record(*REQUESTS)))
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


BUSY = table(
    (0, 1.0, 0.5, "Gamma", 4.0, 0.25),
    (600, 0, 0, "", 0, 0),
    (1200, 2.0, 1.0, "Weibull", 1.0, 0.5),
    name="data/x/chunk-1-trace",
)
CALM = table((0, 0.05, 1.0, "Weibull", 1.0, 20.0), name="data/x/chunk-2-trace")
LENGTHS = member(
    {
        "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"},
        "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{0: 1.0}"},
        "600": {"input_tokens": "{}", "output_tokens": "{}"},
    },
    name="data/x/chunk-1-dataset",
)


def test_clients_are_tenants_whose_requests_lie_over_one_another():
    sessions = imported(SERVEGEN, BUSY, CALM)
    assert {s.tenant for s in sessions} == {"client-1", "client-2"}
    turns = [s.threads[0].turns for s in sessions]
    assert {(t.input_tokens, t.output_tokens) for (t,) in turns} == {(PROMPT_TOKENS, OUTPUT_TOKENS)}


def test_gaps_are_as_fitted():
    arrivals = [s.arrival_s for s in imported(SERVEGEN, BUSY)]
    first, last = [t for t in arrivals if t < 600], [t for t in arrivals if t >= 600]
    assert min(last) > 1200
    assert len(first) == pytest.approx(600, rel=0.1)
    assert len(last) == pytest.approx(1200, rel=0.1)
    gaps = [later - earlier for earlier, later in pairwise(first)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(0.5, rel=0.15)


def test_lengths_are_of_the_latest_window_that_has_some():
    sessions = imported(SERVEGEN, LENGTHS, BUSY)
    early = [s.threads[0].turns[0] for s in sessions if s.arrival_s < 600]
    late = [s.threads[0].turns[0] for s in sessions if s.arrival_s > 1200]
    assert {t.output_tokens for t in early} == {5}
    assert sum(t.input_tokens == 20 for t in early) / len(early) == pytest.approx(0.75, abs=0.1)
    assert {(t.input_tokens, t.output_tokens) for t in late} == {(30, 1)}


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
    (session,) = imported(KV_CACHE_TESTER, member(_recording(*MAIN)))
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
    (session,) = imported(KV_CACHE_TESTER, member(_recording(*MAIN)))
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
    (session,) = imported(KV_CACHE_TESTER, member(WITH_AGENTS))
    main = _turns(session)
    assert main[0].tools == (
        Tool(name="agent", starts_thread=1),
        Tool(name="agent", starts_thread=2, duration_s=3.0),
    )
    assert main[1].tools == (Tool(name="agent", starts_thread=3, is_detached=True),)
    assert _turns(session, 1)[0].tools == (Tool(name="tool", duration_s=1.0),)
    assert _turns(session, 1)[1].prefix_of == TurnRef(1, 0)
