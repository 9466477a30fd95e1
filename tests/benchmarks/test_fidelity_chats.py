"""Sessions with the tokens that agents send."""

import pytest

from benchmarks.fidelity.chats import APPENDING, SWITCHING, SYSTEMS, TOOLS, Chats
from benchmarks.live import drawn
from lab.simulator.agents import agent_of
from lab.workload.trace.format import TurnRef, check


@pytest.fixture(scope="module")
def sessions():
    found = Chats(drawn(SWITCHING, 2), drawn(APPENDING, 2))
    return {each.id: each for each in (*found.calibration, *found.test)}


def test_counted_sessions_are_workloads(sessions):
    for session in sessions.values():
        check(session)


def test_who_appends_finds_all_that_was_said(sessions):
    first, second, *_ = sessions["appending-0"].threads[0].turns
    assert second.prefix_tokens == first.input_tokens + first.output_tokens
    assert [tool.name for tool in first.tools] == ["run"]


def test_who_switches_says_the_same_under_another_system_prompt(sessions):
    session = sessions["switching-0"]
    agents = [agent_of(session, TurnRef(0, at)) for at in range(session.turns)]
    assert len(set(agents)) == len(agents)
    first, second, *_, last = session.threads[0].turns
    assert [second.shared_key, *(tool.name for tool in first.tools)] == [SYSTEMS[1], TOOLS[0]]
    openings = session.threads[0].shared_tokens, second.shared_tokens
    assert openings[0] > openings[1]  # `plan` is more than one token
    said_before = first.input_tokens - openings[0] + first.output_tokens
    # The template begins the answer in the prompt, and ends its line behind it.
    assert second.known_tokens - openings[1] == said_before + 1
    assert not last.tools


def test_openings_are_those_of_all_that_switch(sessions):
    one, other = sessions["switching-0"].threads[0], sessions["switching-1"].threads[0]
    assert (one.shared_key, one.shared_tokens) == (other.shared_key, other.shared_tokens)
    for a, b in zip(one.turns[1:], other.turns[1:], strict=False):
        assert (a.shared_key, a.shared_tokens) == (b.shared_key, b.shared_tokens)
