"""Of one session, whatever its client sends, a bounded number of bytes is kept."""

import gc
import sys
from types import FunctionType, ModuleType

import pytest

from tests.workflow.world import World, call, result, user

MOST_BYTES = 2**20
"""Of a session of the default settings that does its worst; an ordinary one takes ten thousand."""


def reachable_bytes(*roots: object) -> int:
    seen: set[int] = set()
    found, size = list(roots), 0
    while found:
        each = found.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        size += sys.getsizeof(each)
        found += gc.get_referents(each)
    return size


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
        turn = world.ask(body, session_id="s", thread_id=f"thread-{at}", after=0.1)
        world.answer(turn, said, *calls)
        world.play.records.clear()
        world.sessions.traces_of("t").read_words()  # the words that wait have a bound of their own
        sizes.append(reachable_bytes(world.sessions))
    assert len(world.sessions) == 1
    assert sizes[-1] < MOST_BYTES
    assert sizes[-1] < 1.2 * sizes[len(sizes) * 2 // 3], "it does not grow any more"
