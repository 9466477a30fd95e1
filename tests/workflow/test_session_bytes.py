"""Of one session, whatever its client sends, a bounded number of bytes is kept."""

import sys

import pytest

from tests.reachable import reachable
from tests.workflow.world import World, call, result, user

MOST_BYTES = 2**20
"""Of a session of the default settings that does its worst; an ordinary one takes ten thousand."""


@pytest.mark.slow
def test_the_worst_session_takes_no_more_than_a_mebibyte():
    world = World(max_sessions=10)
    sizes = []
    for at in range(120):
        texts = {f"field{n}": " ".join(f"word{at}.{n}.{k}" for k in range(40)) for n in range(20)}
        calls = [call(f"call_{at:04}_{n:09}", "bash" * 20, **texts) for n in range(80 if at % 4 == 0 else 1)]
        said = " ".join(f"said{at}.{n}" for n in range(200))
        results = [result(f"call_{at:04}_{n:09}", said) for n in range(3)]
        body = [user(f"{said} {at}"), *results]
        world.answered(body, said, *calls, session_id="s", thread_id=f"thread-{at}", after=0.1)
        world.play.records.clear()
        world.sessions.traces_of("t").read_words()  # the words that wait have a bound of their own
        sizes.append(sum(map(sys.getsizeof, reachable(world.sessions))))
    assert len(world.sessions) == 1
    assert sizes[-1] < MOST_BYTES
    assert sizes[-1] < 1.2 * sizes[len(sizes) * 2 // 3], "it does not grow any more"
