"""Reuse: Eq. 4 to 6 and Alg. 1, at their edges; and hints as an engine reads them."""

import subprocess
import sys
from typing import Any

import pytest

from gateway.domain.agent_key import AgentKey
from gateway.domain.ids import NOBODYS, SessionId, ThreadId
from gateway.domain.request import Claims
from gateway.tool_probe.quantiles import LogQuantiles
from gateway.tool_probe.text_calls import TextCalls
from gateway.workflow.aeg.graph import ExpectedReturn
from gateway.workflow.aeg.graphs import Tier
from gateway.workflow.conversations import Conversation, StepPrediction
from gateway.workflow.engine_hints import Hints
from gateway.workflow.retention import RetentionDecision, at_pause, memory_pressure, provisional
from tests.project.layout import ROOT
from turnpike_vllm.hints import Hint, parse

AGENT = AgentKey(NOBODYS, 1, 2)


def thread(tokens: float = 1000.0) -> Conversation:
    found = Conversation(AGENT, TextCalls())
    found.tokens = tokens
    return found


def gaps(gap_s: float) -> LogQuantiles:
    found = LogQuantiles(low=0.001)
    for _ in range(20):
        found.add(gap_s)
    return found


def pause(
    *tools: str,
    ends: float = 0.0,
    tier: Tier = Tier.INFERRED,
    gaps: LogQuantiles | None = None,
    grows: float = 0.0,
) -> StepPrediction:
    found = ExpectedReturn(1.0 - ends, gaps)
    return StepPrediction(
        tier=tier, tools=tools, next=("x",), confidence=0.9, ends=ends, pause=found, grows=grows
    )


@pytest.mark.parametrize(("used", "m"), [(0.0, 0.0), (0.7, 0.0), (0.8, 0.5), (0.9, 1.0), (1.0, 1.0)])
def test_memory_pressure_is_clamped(used, m):
    assert memory_pressure(used) == pytest.approx(m)


def test_a_tool_is_waited_for_as_long_as_it_takes():
    long, short = pause("build", gaps=gaps(60.0), grows=1000.0), pause("read", gaps=gaps(0.05), grows=100.0)
    build, read = (at_pause(thread(), each, kv_used=0.0) for each in (long, short))
    assert 50 < build.retain_s < 180 and read.retain_s == 1.0
    assert build.returns_in_s == pytest.approx(60, rel=0.25)
    assert build.reuse == pytest.approx(0.5) and read.reuse == pytest.approx(0.91, abs=0.01)
    full = at_pause(thread(), long, kv_used=1.0)
    assert full.retain_s == pytest.approx(build.retain_s / 2)


def test_what_is_over_is_let_go():
    over = at_pause(thread(), pause(ends=0.8), kv_used=0.0)
    assert over.retain_s == 0.0 and over.reuse == pytest.approx(0.2)


def test_a_guess_never_ends_what_is_held():
    """Too little was seen of the agent, or it is likelier to go on."""
    for guess, left in ((pause(ends=0.9, tier=Tier.UNKNOWN), 0.1), (pause(ends=0.4), 0.6)):
        decision = at_pause(thread(), guess, kv_used=0.0)
        assert decision.retain_s == 6.0
        assert decision.reuse == pytest.approx(left)
    assert at_pause(thread(), pause(ends=0.9, tier=Tier.STATED), kv_used=0.0).retain_s == 0.0


def test_a_person_is_waited_for_within_bounds():
    decision = at_pause(thread(), pause(gaps=gaps(600.0)), kv_used=0.0)
    assert decision.retain_s == 30.0 and decision.returns_in_s == pytest.approx(600.0, rel=0.2)


def test_nothing_is_known():
    first = provisional(0.5, kv_used=0.0)
    assert (first.retain_s, first.reuse) == (6.0, 0.5)
    assert provisional(0.5, kv_used=1.0).retain_s == 3.0
    assert at_pause(thread(), pause("new"), kv_used=0.0).retain_s == 6.0


def test_what_a_client_states_counts():
    """For how long to hold, within bounds, and whether its conversation goes on."""

    def decided(ends: float, **stated: Any) -> RetentionDecision:
        return at_pause(thread(), pause(ends=ends), kv_used=0.0, stated=Claims(**stated))

    assert decided(0.1, retain_s=20.0).retain_s == 20.0 and decided(0.9, retain_s=20.0).retain_s == 20.0
    assert decided(0.1, retain_s=1e6).retain_s == 300.0 and decided(0.1, retain_s=0.0).retain_s == 0.0
    over = decided(0.1, resumes=False)
    assert (over.retain_s, over.reuse) == (0.0, 0.0)
    goes_on = decided(0.9, resumes=True)
    assert goes_on.retain_s > 0.0 and goes_on.reuse > decided(0.5).reuse
    assert provisional(0.5, kv_used=0.0, stated=Claims(retain_s=20.0)).retain_s == 20.0


S, T = SessionId("s"), ThreadId("s.1")
HELD = RetentionDecision(reuse=0.9, retain_s=12.3456, returns_in_s=4.0)


def read(text: str | None) -> Hint:
    assert text is not None
    found = parse(text)
    assert isinstance(found, Hint), found
    return found


def test_engines_understand_every_hint():
    known = Hints()
    sent = read(known.write(S, T, HELD, age_s=-1.0, is_final=True))
    assert (sent.session, sent.thread, sent.is_final) == ("s", "s.1", True)
    assert (sent.retain_s, sent.reuse, sent.age_s, sent.prefetch_in_s) == (12.346, 0.9, 0.0, 4.0)
    paused = read(known.write(S, T, RetentionDecision(reuse=0.0, retain_s=1e9, returns_in_s=None)))
    assert paused.retain_s == 3600.0 and paused.prefetch_in_s is None and paused.seq > sent.seq


@pytest.mark.slow
def test_a_gateway_without_the_plugin_has_nothing_to_say() -> None:
    code = (
        "import sys; sys.modules['turnpike_vllm'] = None\n"
        "import gateway.server.app\n"
        "from gateway.workflow.engine_hints import HAS_CONTRACT, Hints\n"
        "assert not HAS_CONTRACT and Hints().write('s', 's.1', None) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
