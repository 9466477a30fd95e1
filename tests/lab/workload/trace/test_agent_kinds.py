"""The kinds of agents by name: valid, and near the figures that they cite."""

import statistics
from random import Random

import msgspec
import pytest

from lab.workload.trace.agent_kinds import AGENT_KINDS
from lab.workload.trace.agents import AgentKind, session_of
from lab.workload.trace.format import check


def _sessions(name, count=300):
    return [session_of(AGENT_KINDS[name], Random(n), id_=str(n)) for n in range(count)]


@pytest.mark.parametrize("name", AGENT_KINDS)
def test_sessions_of_every_kind_are_valid(name):
    for session in _sessions(name, 20):
        check(session)
        assert session.peak_tokens <= AGENT_KINDS[name].context_max
    assert msgspec.convert(msgspec.to_builtins(AGENT_KINDS[name]), AgentKind) == AGENT_KINDS[name]


@pytest.mark.parametrize(("name", "turns"), [("coding", 37), ("web", 18)])
def test_turns_are_as_many_as_the_source_says(name, turns):
    assert statistics.mean(session.turns for session in _sessions(name)) == pytest.approx(turns, rel=0.1)
