"""TraceLab's rounds."""

from lab.workload.trace.format import Tool, TurnRef
from lab.workload.trace.tracelab import TRACELAB
from tests.lab.workload.trace.made import imported, lines


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
    one, two = imported(TRACELAB, lines(*ROUNDS, name="derived/round_trace"))
    first, second, third = one.threads[0].turns
    assert first.tools == (Tool(name="Bash", duration_s=0.86), Tool(name="Web"))
    assert (second.prefix_of, second.prefix_tokens, second.output_tokens) == (TurnRef(0, 0), 120, 1)
    assert (second.pause_s, second.is_pause_human) == (0.0, False)
    assert (third.prefix_tokens, third.pause_s, third.is_pause_human) == (90, 20.0, True)
    assert third.tools == ()
    assert (two.id, two.turns, two.agent_type) == ("b", 1, "claude")
