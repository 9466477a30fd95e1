"""Made-up agents: valid sessions that do what their numbers say."""

from itertools import pairwise
from random import Random

import msgspec

from lab.workload.trace.agents import AgentKind, ToolKind, session_of
from lab.workload.trace.format import TurnRef, check
from lab.workload.trace.spread import Spread

PLAIN = AgentKind(
    name="plain",
    turns=Spread(median=4),
    opening_tokens=100,
    task_tokens=Spread(median=50),
    output_tokens=Spread(median=20),
    final_tokens=Spread(median=70),
    result_tokens=Spread(median=30),
    tools=(ToolKind(name="run", lasts_s=Spread(median=2), cpu_cores=1.5),),
    calls=Spread(median=2),
)


def _made(kind, seed=1):
    session = session_of(kind, Random(seed), id_="s")
    check(session)
    return session


def _other(**numbers):
    return msgspec.structs.replace(PLAIN, **numbers)


def test_too_long_a_context_is_replaced_by_a_summary():
    thread = _made(_other(context_max=260)).threads[0]
    assert [t.input_tokens for t in thread.turns] == [150, 230, 150, 150]
    assert [t.prefix_tokens for t in thread.turns] == [0, 170, 100, 100]


def test_sub_agents_are_threads_whose_last_answer_is_the_result():
    child = _other(name="child", turns=Spread(median=2), opening_tokens=10)
    session = _made(_other(sub_agent=child, sub_agent_part=1.0, turns=Spread(median=2)))
    assert len(session.threads) == 3
    assert [tool.starts_thread for tool in session.threads[0].turns[0].tools] == [1, 2]
    assert session.threads[0].turns[1].input_tokens == 170 + 2 * 70
    assert session.threads[1].shared_key == "agent/child"


def test_chance_is_an_argument():
    spread = _other(output_tokens=Spread(median=20, sigma=1))
    assert _made(spread, 1) == _made(spread, 1) != _made(spread, 2)


READER = _other(
    name="reader",
    reading_tokens=80,
    tools=(
        ToolKind(name="find", lasts_s=Spread(median=2)),
        ToolKind(name="open", lasts_s=Spread(median=2)),
    ),
    call_tokens=10,
    calls_behind=0.5,
)


def test_an_orchestrators_next_prompt_stands_under_a_text_for_the_tools_that_were_called():
    keys: dict[tuple[str, ...], set[str | None]] = {}
    for seed in range(40):
        session = _made(READER, seed)
        turns = session.threads[0].turns
        for at, (turn, later) in enumerate(pairwise(turns), start=1):
            called = tuple(sorted({tool.name for tool in turn.tools}))
            key, tokens = session.spoken_under(TurnRef(0, at))
            keys.setdefault(called, set()).add(key)
            assert tokens == 80
            assert later.result_tokens == 60 and later.known_tokens == later.input_tokens - 60
    assert keys == {
        ("find",): {"agent/reader/find"},
        ("open",): {"agent/reader/open"},
        ("find", "open"): {"agent/reader/find+open"},
    }


def test_calls_are_complete_one_after_the_other():
    turn = _made(READER).threads[0].turns[0]
    assert turn.output_tokens == 20 + 2 * 10
    assert [tool.called_at for tool in turn.tools] == [0.75, 1.0]
    assert [tool.called_at for tool in _made(PLAIN).threads[0].turns[0].tools] == [1.0, 1.0]
