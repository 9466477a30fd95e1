"""Recordings through several gateways: who receives an exchange makes no difference."""

import msgspec
import pytest

from lab.evaluation.gateways import SharedReplays
from lab.evaluation.metrics import score
from lab.evaluation.recording import Exchange
from lab.evaluation.replay import Placed, replay
from tests.lab.evaluation.recordings import Recorder


@pytest.fixture
def exchanges() -> list[Exchange]:
    recorder = Recorder()
    for run in range(6):
        recorder.run(f"run-{run}", steps=4)
    for run in range(4):
        recorder.run(f"named-{run}", steps=3, headers={"x-turnpike-session": f"named-{run}"})
    lines = sorted(recorder.lines, key=lambda line: hash_of(line["truth"]["session"], line["t"]))
    for at, line in enumerate(lines):  # all at once, each run in its own order
        length = line["t_end"] - line["t"]
        line["t"] = line["t_first_byte"] = 1000.0 + at
        line["t_end"] = line["t"] + length
    return msgspec.convert(lines, list[Exchange])


def hash_of(session: str, at_s: float) -> tuple[float, str]:
    return at_s % 4, session


def places(found: list[Placed]) -> list[tuple[int, int | None, str, int]]:
    """Without the names of sessions, which are each gateway's own."""
    sessions: dict[str, int] = {}
    return [(p.number, p.parent, p.edge, sessions.setdefault(p.session, len(sessions))) for p in found]


@pytest.mark.parametrize("without_ids", [False, True])
def test_who_receives_an_exchange_makes_no_difference(exchanges, without_ids):
    one = replay(exchanges, without_ids=without_ids)
    with SharedReplays("memory://", count=3, without_ids=without_ids) as several:
        for _ in range(3):
            assert places(several(exchanges)) == places(one)


def test_where_all_are_busy_nothing_that_is_acted_upon_is_lost(exchanges):
    one = score(replay(exchanges, without_ids=True)).acted_upon
    with SharedReplays("memory://", count=3, without_ids=True, are_busy=True) as several:
        found = score(several(exchanges)).acted_upon
    assert (found.right, found.found) == (one.right, one.found)


def test_sessions_go_on_when_a_gateway_is_killed(exchanges):
    one = score(replay(exchanges, without_ids=True)).acted_upon
    with SharedReplays("memory://", count=3, without_ids=True, kills_one=True) as several:
        for _ in range(3):
            found = score(several(exchanges)).acted_upon
            assert found.right == found.found == one.right
