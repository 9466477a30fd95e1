"""Recorded messages as workloads: what equal messages make equal, and who the gaps belong to."""

from lab.workload.trace.conversations import TAU_BENCH
from lab.workload.trace.estimates import message_tokens
from lab.workload.trace.format import TurnRef
from tests.lab.workload.corpora import called, said
from tests.lab.workload.trace.made import imported, lines

TALK = [
    said("system", "Be kind. " * 9),
    said("user", "Hello there, I lost my ticket"),
    called("c1"),
    said("tool", "found it", tool_call_id="c1"),
    said("assistant", "Here it is"),
    said("user", "thanks"),
    said("assistant", "bye"),
]


def _tau(*talks):
    return imported(TAU_BENCH, lines(*({"task_id": n, "traj": talk} for n, talk in enumerate(talks))))


def test_a_turn_shares_the_messages_that_are_equal():
    (session,) = _tau(TALK)
    turns = session.threads[0].turns
    sizes = [message_tokens(message) for message in TALK]
    assert [t.input_tokens for t in turns] == [sum(sizes[:2]), sum(sizes[:4]), sum(sizes[:6])]
    assert [t.output_tokens for t in turns] == [sizes[2], sizes[4], sizes[6]]
    assert [t.prefix_of for t in turns] == [None, TurnRef(0, 0), TurnRef(0, 1)]
    assert [t.prefix_tokens for t in turns] == [0, sum(sizes[:3]), sum(sizes[:5])]


def test_gaps_are_the_called_tools_or_a_persons():
    (session,) = _tau(TALK)
    first, second, third = session.threads[0].turns
    assert [tool.name for tool in first.tools] == ["look_up"]
    assert first.tools[0].duration_s > 0
    assert (second.pause_s, second.is_pause_human, second.tools) == (0.0, False, ())
    assert third.pause_s > 0 and third.is_pause_human


def test_sessions_with_one_system_prompt_open_alike():
    other = [said("system", "Be brief"), *TALK[1:]]
    keys = [(s.threads[0].shared_key, s.threads[0].shared_tokens) for s in _tau(TALK, TALK, other, TALK[1:])]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0][1] == message_tokens(TALK[0])
    assert keys[3] == (None, 0)
