"""What a gateway that has just started costs, in a seed of the benchmark."""

import pytest

from benchmarks.cold_start import PLAIN, WITH_PEOPLE, ended, played
from benchmarks.live import drawn
from benchmarks.rivals import KIND, SESSIONS
from lab.workload.trace.format import check


def test_sessions_end_with_an_answer_that_asks_for_nothing_and_people_answer_others():
    sessions = [ended(each, PLAIN) for each in drawn(WITH_PEOPLE, 20)]
    turns = [turn for each in sessions for turn in each.threads[0].turns]
    for session in sessions:
        check(session)
        assert not session.threads[0].turns[-1].tools
    read = sum(not turn.tools for turn in turns) - len(sessions)
    assert read == sum(turn.pause_s > 0 for turn in turns) > 0.2 * len(turns)


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")  # vLLM's
def test_sessions_that_are_over_do_not_keep_others_waiting_when_nothing_is_known_yet():
    sessions = [ended(each, 0.0) for each in drawn(KIND, SESSIONS)]
    assert played(sessions).mean < 1.08 * played(sessions, limits=False).mean
