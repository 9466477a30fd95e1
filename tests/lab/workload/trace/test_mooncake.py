"""Mooncake's requests, put together to conversations."""

from lab.workload.trace.format import TurnRef
from lab.workload.trace.mooncake import MANY, MOONCAKE
from tests.lab.workload.trace.made import imported, lines


def _request(t_s, prompt, output, *blocks):
    return {
        "timestamp": t_s * 1000,
        "input_length": prompt,
        "output_length": output,
        "hash_ids": list(blocks),
    }


def test_a_request_that_goes_on_is_a_turn_of_the_session():
    first = _request(0, 1100, 50, 1, 2, 3)
    goes_on = _request(30, 1600, 40, 1, 2, 4, 5)
    (session,) = imported(MOONCAKE, lines(first, goes_on))
    one, two = session.threads[0].turns
    assert (two.prefix_of, two.prefix_tokens) == (TurnRef(0, 0), 1150)
    assert (one.pause_s, one.is_pause_human) == (0.0, False)
    assert (two.pause_s, two.is_pause_human) == (28.5, True)


def test_a_request_that_parts_earlier_shares_blocks():
    made = lines(_request(0, 1100, 0, 1, 2, 3), _request(1, 1100, 9, 1, 7, 8), _request(1, 600, 9, 5, 6))
    one, two = imported(MOONCAKE, made)
    assert [(t.output_tokens, t.prefix_tokens) for t in one.threads[0].turns] == [(1, 0), (9, 512)]
    assert two.turns == 1


def test_what_many_share_is_an_opening():
    made = [_request(n, 1100, 9, 0, 100 + n, 500 + n) for n in range(MANY)]
    sessions = imported(MOONCAKE, lines(*made, _request(99, 600, 9, 77, 78)))
    assert len(sessions) == MANY + 1
    assert {(s.threads[0].shared_key, s.threads[0].shared_tokens) for s in sessions} == {
        ("corpus/0", 512),
        (None, 0),
    }
    fewer = imported(MOONCAKE, lines(*made[1:]))
    assert [s.turns for s in fewer] == [MANY - 1]
