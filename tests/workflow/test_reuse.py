"""Reuse: Eq. 4 to 6 and Alg. 1, at their edges."""

from typing import Any

import msgspec
import pytest

from gateway.domain.ids import SessionId
from gateway.domain.request import Claims
from gateway.tool_probe.durations import DurationsConfig
from gateway.workflow.agent_types import AgentType, AgentTypes, AgentTypesConfig, Tier
from gateway.workflow.calibration import CalibrationConfig
from gateway.workflow.learned import Learned, LearnedByTenant
from gateway.workflow.progress import Pause, Thread
from gateway.workflow.reuse import (
    Outlook,
    Reuse,
    ReuseConfig,
    expected_wait_s,
    memory_pressure,
    overlap,
    ttl_s,
)

AGENT = AgentType(1, 2)


def learned() -> Learned:
    return LearnedByTenant(CalibrationConfig(), DurationsConfig(), max_tenants=1).of(AGENT.owner)


def thread(tokens: float = 1000.0, known: Learned | None = None) -> Thread:
    graph = AgentTypes(AgentTypesConfig()).graph(AGENT)
    found = Thread(SessionId("s"), AGENT, graph, known or learned())
    found.prompt_tokens = tokens
    return found


def pause(
    *tools: str, ends: float = 0.0, node: int = 3, tier: Tier = Tier.INFERRED, confidence: float = 0.9
) -> Pause:
    return Pause(
        tier=tier,
        tools=tools,
        node=node,
        next=("x",),
        probability=0.9,
        confidence=confidence,
        is_confident=True,
        ends=ends,
        steps_left=3.0,
        new_tokens_left=1.0,
        output_tokens_left=1.0,
    )


@pytest.mark.parametrize(("used", "m"), [(0.0, 0.0), (0.7, 0.0), (0.8, 0.5), (0.9, 1.0), (1.0, 1.0)])
def test_memory_pressure_is_clamped(used, m):
    assert memory_pressure(used, low=0.7, high=0.9) == pytest.approx(m)


def test_ttl():
    assert ttl_s(10.0, 0.0, least_s=1.0, most_s=300.0) == 10.0
    assert ttl_s(10.0, 1.0, least_s=1.0, most_s=300.0) == 5.0
    assert ttl_s(1e6, 1.0, least_s=1.0, most_s=300.0) == 300.0
    assert ttl_s(0.001, 0.0, least_s=1.0, most_s=300.0) == 1.0


def test_overlap():
    assert overlap(900, 100) == 0.9 and overlap(0, 100) == 0.0


def test_a_tool_is_waited_for_as_long_as_it_takes():
    known = learned()
    for _ in range(100):
        known.durations.add(AGENT.key, ["build"], 60.0, observation_bytes=4000)
        known.durations.add(AGENT.key, ["read"], 0.05, observation_bytes=400)
    reuse = Reuse(ReuseConfig())
    build = reuse.at_pause(thread(known=known), pause("build"), kv_used=0.0)
    read = reuse.at_pause(thread(known=known), pause("read"), kv_used=0.0)
    assert 50 < build.retain_s < 90 and read.retain_s == 1.0
    assert build.returns_in_s == pytest.approx(60, rel=0.25)
    assert build.reuse == pytest.approx(0.5, abs=0.06) and read.reuse == pytest.approx(0.91, abs=0.02)
    assert reuse.at_pause(thread(known=known), pause("build"), kv_used=1.0).retain_s == pytest.approx(
        build.retain_s / 2
    )


def test_what_is_over_is_let_go():
    reuse = Reuse(ReuseConfig())
    over = reuse.at_pause(thread(), pause(ends=0.8), kv_used=0.0)
    assert over.is_finished and over.retain_s == 0.0 and over.reuse == pytest.approx(0.2)


def test_a_guess_never_ends_what_is_held():
    """Too little was seen of the agent, or such predictions turned out wrong."""
    reuse = Reuse(ReuseConfig())
    for guess in (pause(ends=0.9, tier=Tier.UNKNOWN), pause(ends=0.9, confidence=0.4)):
        outlook = reuse.at_pause(thread(), guess, kv_used=0.0)
        assert not outlook.is_finished and outlook.retain_s == 6.0
        assert outlook.reuse == pytest.approx(0.1)
    assert reuse.at_pause(thread(), pause(ends=0.9, tier=Tier.STATED), kv_used=0.0).is_finished


def test_a_person_is_waited_for_within_bounds():
    reuse, known = Reuse(ReuseConfig()), thread()
    for _ in range(20):
        known.graph.saw_gap(1, 600.0)
    assert reuse.at_pause(known, pause(ends=0.1, node=1), kv_used=0.0).retain_s == 30.0


def test_nothing_is_known():
    reuse = Reuse(ReuseConfig())
    first = reuse.provisional(thread(), kv_used=0.0)
    assert (first.retain_s, first.reuse) == (6.0, 0.5)
    assert reuse.at_pause(thread(), pause("new"), kv_used=0.0).retain_s == 6.0


def test_what_a_client_states_counts():
    """For how long to hold, within bounds, and whether its conversation goes on."""
    reuse = Reuse(ReuseConfig())

    def outlook(ends: float, **stated: Any) -> Outlook:
        return reuse.at_pause(thread(), pause(ends=ends), kv_used=0.0, stated=Claims(**stated))

    assert outlook(0.1, retain_s=20.0).retain_s == 20.0 and outlook(0.9, retain_s=20.0).retain_s == 20.0
    assert outlook(0.1, retain_s=1e6).retain_s == 300.0 and outlook(0.1, retain_s=0.0).retain_s == 0.0
    assert outlook(0.1, resumes=False).is_finished and outlook(0.1, resumes=False).reuse == 0.0
    goes_on = outlook(0.9, resumes=True)
    assert not goes_on.is_finished and goes_on.retain_s > 0.0 and goes_on.reuse > outlook(0.5).reuse
    assert reuse.provisional(thread(), kv_used=0.0, stated=Claims(retain_s=20.0)).retain_s == 20.0


def test_silence_makes_a_return_less_likely_and_not_sooner():
    def wait_s(elapsed_s: float, ends: float = 0.05) -> float:
        return expected_wait_s(elapsed_s, median_s=1.0, p95_s=5.0, ends=ends)

    assert wait_s(0.01) == pytest.approx(1.05, rel=0.1)
    assert wait_s(60.0) > wait_s(10.0) > wait_s(0.01)
    assert wait_s(1.0, ends=0.9) > 10 * wait_s(1.0, ends=0.01)
    assert wait_s(1e9) < float("inf")


def test_bounds_belong_together():
    with pytest.raises(ValueError, match="low"):
        msgspec.convert({"low": 0.9, "high": 0.8}, ReuseConfig)
