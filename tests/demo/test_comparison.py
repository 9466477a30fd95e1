"""Both sides beside each other: what is worse is told as plainly as what is better."""

from pathlib import Path

import pytest

from benchmarks.live import Completions
from demo.agents import MINI_SWE_AGENT
from demo.comparison import Comparison
from demo.records import Held
from demo.replay import Played
from demo.runs import AgentRun, Plan
from demo.sides import Counts, Side
from gateway.domain.decision import WaitReason
from lab.simulator.live.chat_agents import Turned
from tests.lab.simulator.measures import outcomes


def outcome(session, at_s, *, waited_s=0.0, first_s, end_s):
    return outcomes.turn(
        session, arrival_s=at_s, waited_s=waited_s, began_s=at_s + waited_s, first_token_s=at_s + first_s,
        end_s=end_s, cached_tokens=64,
    )  # fmt: skip


def side(turns, *, turned=(), is_done=True, strangers=0.0, agent_s=10.0, **counts):
    seen = Completions()
    for turn in turns:
        seen.turn_done(turn)
        seen.session_done(
            outcomes.session(turn.session, arrival_s=turn.arrival_s, end_s=turn.end_s, isolated_s=0.0)
        )
    agent = AgentRun(
        plan=Plan(name="mini-1", agent=MINI_SWE_AGENT, strip=False),
        exit_code=0 if is_done else 1,
        duration_s=agent_s,
        is_edited=True,
        does_test_pass=True,
        log=Path("log"),
    )
    counted = {"prompt_tokens": 1000, "cached_tokens": 500, "queued_s": 7.0, "preemptions": 0} | counts
    return Side(
        took_s=max(turn.end_s for turn in turns),
        agents=[agent],
        played=Played(seen=seen, turned=list(turned)),
        counts=Counts(**counted),
        strangers=strangers,
    )


@pytest.fixture
def compared():
    """Turnpike is done earlier, but one first token comes late: it waited at the gateway."""
    stock = side(
        [outcome("a", 0.0, first_s=1.0, end_s=30.0), outcome("b", 1.0, first_s=2.0, end_s=41.0)],
        turned=[Turned("a", 1, 100, 32, 95), Turned("b", 1, 100, 64, 95)],
    )
    ours = side(
        [
            outcome("a", 0.0, first_s=0.5, end_s=10.0),
            outcome("b", 1.0, waited_s=8.0, first_s=9.0, end_s=21.0),
        ],
        turned=[Turned("a", 1, 100, 64, 95), Turned("b", 1, 100, 96, 95)],
        cached_tokens=800,
        agent_s=9.9,
        queued_s=0.0,
    )
    held = {WaitReason.KV_FULL: Held(sessions=1, seconds=8.0)}
    return Comparison(stock=stock, ours=ours, held=held, kv_tokens=64_000, peak_tokens=90_000)


def test_each_figure_is_counted(compared):
    found = {each.name: (each.stock, each.ours, each.verdict) for each in compared.measures}
    assert found == {
        "a conversation, mean": (35.0, 15.0, "better"),
        "a conversation, 90th percentile": (40.0, 20.0, "better"),
        "a real agent, mean": (10.0, 9.9, "same"),
        "everybody done after": (41.0, 21.0, "better"),
        "first token, mean": (1.5, 4.75, "worse"),
        "first token, median": (1.0, 0.5, "better"),
        "first token, 99th percentile": (2.0, 9.0, "worse"),
        "prompt tokens found in the prefix cache": (0.5, 0.8, "better"),
        "prompt tokens computed": (500, 200, "better"),
        "conversations' tokens computed again": (32, 0, "better"),
        "preemptions": (0, 0, "same"),
        "waited in the engines' queues, in all": (7.0, 0.0, ""),
        "waited at the gateway, in all": (0.0, 8.0, ""),
    }


def test_whoever_was_not_served_makes_it_bad(compared):
    assert compared.is_done
    turns = [outcome("a", 0.0, first_s=1.0, end_s=30.0)]
    lost = side(turns, is_done=False)
    assert not Comparison(stock=lost, ours=compared.ours, held={}, kv_tokens=1, peak_tokens=1).is_done
