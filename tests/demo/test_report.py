"""The report: truth beside inference, and good only when both agree."""

import json
from pathlib import Path

import pytest

from demo import printing, records, report
from demo.agents import CLAUDE_CODE, MINI_SWE_AGENT
from demo.hop import Exchange
from demo.runs import AgentRun, Plan
from demo.telemetry import EngineTelemetry

COUNTERS = {"hints": {"followed": 9}, "holds": {"held": 4}, "releases": {"returned": 3}}
ENGINES = EngineTelemetry()
ENGINES.take({"engine": {"blocks": {"total": 4095, "retained": 70}, "counters": COUNTERS}})


def exchange(session, at_s=10.0, *, offers_tools=True, source="call-id", method="POST"):
    return Exchange(
        method=method,
        path="/v1/x",
        offers_tools=offers_tools,
        sent_at_s=at_s,
        answered_at_s=at_s + 0.5 if offers_tools else None,
        status=200,
        session=session,
        source=source,
        replica="r-1",
    )


def run(name, agent, exchanges, *, strip=False, is_done=True):
    return AgentRun(
        plan=Plan(name=name, agent=agent, strip=strip),
        exit_code=0,
        is_edited=is_done,
        does_test_pass=is_done,
        log=Path("log"),
        exchanges=exchanges,
    )


def turn(session, number, at_s):
    """What the gateway says of one turn, as it would stand in the file."""
    common = {"turn": f"{session}-{number}", "session": session}
    arrival = {"tenant": "t", "protocol": "chat", "model": "m", "source": "new", "confidence": 1.0}
    counts = {"body_bytes": 1, "message_count": 1, "tool_count": 1}
    end = {"replica": "r-1", "outcome": "finished", "status": 200, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 5}
    return [
        {"type": "turn_arrive", "at_s": at_s, **common, **arrival, **counts},
        {"type": "gpu_end", "at_s": at_s + 0.49, **common, **end, "usage": usage, "duration_ms": 490.0},
    ]


@pytest.fixture
def stream(tmp_path):
    phase = {"type": "tool_end", "at_s": 10.9, "session": "s-1", "turn": "s-1-2", "duration_ms": 400.0}
    phase["names"] = ["bash"]
    lines = [*turn("s-1", 1, 10.002), phase, *turn("s-1", 2, 11.002), *turn("s-2", 1, 10.001)]
    path = tmp_path / "stream.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return records.read(path)


@pytest.fixture
def runs():
    first = run("mini-1", MINI_SWE_AGENT, [exchange("s-1", 10.0, source="new"), exchange("s-1", 11.0)])
    title = exchange("s-9", 9.0, offers_tools=False)
    head = exchange(None, 9.0, method="HEAD", offers_tools=False)
    return [first, run("claude-2", CLAUDE_CODE, [head, title, exchange("s-2", 10.0)], strip=True)]


def test_every_run_one_session_is_good(runs, stream):
    made = report.make(runs, stream, ENGINES)
    assert made.is_good
    first, second = made.rows
    assert (first.identity, first.recognised_by) == ("none", "new, call-id")
    assert (first.turns, first.tool_phases) == (2, 1)
    assert (first.prompt_tokens, first.cached_tokens, first.tool_s) == (200, 80, 0.4)
    assert (second.identity, second.sessions, second.is_recognised) == ("stripped", 1, True)
    assert made.side_requests == 1
    assert made.added_ms == pytest.approx([10.0, 10.0, 10.0])


def test_a_run_taken_for_two_sessions_is_wrong(runs, stream):
    runs[0].exchanges[1].session = "s-3"
    made = report.make(runs, stream, ENGINES)
    assert [row.is_recognised for row in made.rows] == [False, True]
    assert not made.is_good
    assert "2 WRONG" in printing.as_text(made)
