"""Which system prompt follows: counted, calibrated, bounded, and each tenant's own."""

import random

import pytest

from gateway.domain.ids import TenantId
from gateway.prefill_ahead.next_agents import NextAgents

A, B = TenantId("a"), TenantId("b")
SEARCH = ("search",)


def taught(*followed_by: int, tools: tuple[str, ...] = SEARCH) -> NextAgents:
    agents = NextAgents(100)
    for each in followed_by:
        agents.learn(A, 1, tools, each)
    return agents


def test_the_likeliest_is_told_with_what_speaks_for_it():
    expected = taught(2, 2, 3, 2).expected(A, 1, SEARCH)
    assert expected is not None
    assert (expected.agent, expected.share, expected.seen) == (2, 3 / 5, 4)


@pytest.mark.parametrize(("owner", "agent", "tools"), [(B, 1, SEARCH), (A, 2, SEARCH), (A, 1, ("browse",))])
def test_nothing_is_known_of_others_steps_agents_and_tenants(owner, agent, tools):
    assert taught(2, 2).expected(owner, agent, tools) is None


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 1.0])
def test_what_is_claimed_comes_true_as_often(share):
    dice = random.Random(1)
    agents, claims, right = NextAgents(100), 0.0, 0
    for _ in range(4000):
        expected = agents.expected(A, 1, SEARCH)
        follows = 2 if dice.random() < share else dice.randrange(10, 20)
        if expected is not None:
            claims += expected.share
            right += expected.agent == follows
        agents.learn(A, 1, SEARCH, follows)
    assert claims == pytest.approx(right, rel=0.05)


def test_an_orchestrator_that_was_changed_is_learned_anew():
    agents = taught(*[2] * 500)
    for _ in range(60):
        agents.learn(A, 1, SEARCH, 3)
    expected = agents.expected(A, 1, SEARCH)
    assert expected is not None and expected.agent == 3


def test_what_is_kept_is_bounded():
    agents = NextAgents(10)
    for number in range(1000):
        agents.learn(A, number, SEARCH, number)
        agents.learn(A, 1, SEARCH, number)
    assert len(agents) == 10
    _, _, followed = next(each for each in agents._steps.items() if each[1] == (1, SEARCH))
    assert len(followed.counts) <= 16
