"""How long a session may be silent before it counts as gone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.gaps import Gap, Gaps, GapsConfig
from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import TenantId

CONFIG = GapsConfig(least_s=1, max_tool_s=300, max_idle_s=60, unknown_tool_s=120)
AGENT = AgentKey(TenantId("t"), 1)


def test_little_is_known_at_first():
    gaps = Gaps(CONFIG)
    assert gaps.limit_s(AGENT, Gap.TOOL) == 120
    assert gaps.limit_s(AGENT, Gap.IDLE) == 1, "as likely over as not"
    gaps.saw_return(AGENT, Gap.TOOL, 1.0)
    assert gaps.limit_s(AGENT, Gap.TOOL) == 120


def test_the_limit_is_where_it_is_likelier_gone_than_not():
    gaps = Gaps(CONFIG)
    rng = random.Random(3)
    for _ in range(5000):
        if rng.random() < 0.1:
            gaps.saw_end(AGENT, Gap.TOOL)
        else:
            gaps.saw_return(AGENT, Gap.TOOL, rng.uniform(0.0, 100.0))
    # 0.1 = 0.9 × S(t), so S = 0.11: after 89 s half of those that are silent will not come back
    assert gaps.limit_s(AGENT, Gap.TOOL) == pytest.approx(89, rel=0.2)


def test_who_never_comes_back_is_let_go_at_once():
    gaps = Gaps(CONFIG)
    for _ in range(100):
        gaps.saw_end(AGENT, Gap.IDLE)
    assert gaps.limit_s(AGENT, Gap.IDLE) == 1
    for _ in range(20):
        gaps.saw_return(AGENT, Gap.IDLE, 30.0)
    assert gaps.limit_s(AGENT, Gap.IDLE) == 1  # still fewer than half


def test_limits_have_limits():
    gaps = Gaps(CONFIG)
    for _ in range(100):
        gaps.saw_return(AGENT, Gap.TOOL, 5000.0)
        gaps.saw_return(AGENT, Gap.IDLE, 5000.0)
    assert gaps.limit_s(AGENT, Gap.TOOL) == 300
    assert gaps.limit_s(AGENT, Gap.IDLE) == 60
    for _ in range(3000):
        gaps.saw_return(AGENT, Gap.TOOL, 0.1)
    assert gaps.limit_s(AGENT, Gap.TOOL) == 1


def test_other_types_are_asked_where_a_type_is_unknown_and_types_are_forgotten():
    gaps = Gaps(GapsConfig(least_s=1, max_agent_types=1))
    for agent in (1, 2, 1, 3):
        for _ in range(20):
            gaps.saw_return(AGENT._replace(agent_type=agent), Gap.TOOL, 40.0)
    assert len(gaps._types[Gap.TOOL]) == 1
    assert gaps.limit_s(AGENT._replace(agent_type=99), Gap.TOOL) == pytest.approx(40.0, rel=0.25)


def test_who_is_back_was_no_end():
    gaps = Gaps(CONFIG)
    for number in range(400):
        length_s = 100.0 if number % 10 == 0 else 10.0
        if length_s > gaps.limit_s(AGENT, Gap.TOOL):
            gaps.saw_end(AGENT, Gap.TOOL)
            gaps.was_no_end(AGENT, Gap.TOOL)
        gaps.saw_return(AGENT, Gap.TOOL, length_s)
    assert gaps.limit_s(AGENT, Gap.TOOL) > 90, "all came back, so nobody is given up"


@given(st.lists(st.sampled_from(["return", "end", "no end"]), max_size=8), st.integers(0, 600))
def test_the_chance_to_come_back_is_one_under_any_history(history, returns_between):
    gaps, kind = Gaps(CONFIG), Gap.IDLE
    for what in history:
        if what == "end":
            gaps.saw_end(AGENT, kind)
        elif what == "no end":
            gaps.was_no_end(AGENT, kind)
        else:
            for _ in range(returns_between):
                gaps.saw_return(AGENT, kind, 1.0)
        assert all(0.0 <= gaps.back(AGENT, kind, silent_s) <= 1.0 for silent_s in (0.0, 1.0, 9.0))


def test_after_a_plain_answer_a_place_is_kept_for_as_long_as_it_is_worth():
    gaps = Gaps(CONFIG)
    assert gaps.limit_s(AGENT, Gap.IDLE, worth_s=45.0) == 1, "nothing is known of who comes back"
    assert gaps.limit_s(AGENT, Gap.TOOL, worth_s=45.0) == 120
    for _ in range(100):
        gaps.saw_return(AGENT, Gap.IDLE, 30.0)
    assert gaps.limit_s(AGENT, Gap.IDLE, worth_s=45.0) == pytest.approx(30, rel=0.2), "all are back by then"
    assert gaps.limit_s(AGENT, Gap.IDLE, worth_s=3.0) == 3, "to compute it anew costs less than to wait"
    assert gaps.limit_s(AGENT, Gap.IDLE, worth_s=0.1) == 1


def test_how_likely_a_silent_session_comes_back():
    gaps = Gaps(GapsConfig())
    assert gaps.back(AGENT, Gap.IDLE, 0.0) == 0.5, "nothing is known"
    for number in range(40):
        if number % 4:
            gaps.saw_return(AGENT, Gap.IDLE, 5.0)
        else:
            gaps.saw_end(AGENT, Gap.IDLE)
    just_now, later, too_late = (gaps.back(AGENT, Gap.IDLE, silent_s) for silent_s in (0.0, 4.0, 60.0))
    assert 0.7 < just_now < 0.78 and later == just_now and too_late < 0.01
