"""What is shown of a workload."""

from random import Random

from lab.workload.trace.agent_kinds import TEAM
from lab.workload.trace.agents import session_of
from lab.workload.trace.format import Header, Session, Source, Thread, Turn
from lab.workload.trace.summary import summary_of
from tests.lab.workload.trace.made import session

HEADER = Header(name="made", seed=7, sources=(Source(what="sessions", origin="here", how="x" * 999),))


def _shown(*sessions, header=HEADER):
    return list(summary_of(header, sessions))


def test_an_empty_workload_says_so():
    lines = _shown(header=Header(name="w", sources=(Source(what="arrivals", origin="a clock"),)))
    assert lines == ["workload w", "  arrivals: a clock", "no sessions"]


def test_numbers_add_up():
    made = [session("a", 100, 200, tenant="x"), session("b", 300, arrival_s=36.0, tenant="y")]
    text = "\n".join(_shown(*made))
    assert text.startswith("workload made, seed 7\n  sessions: here (xxx")
    assert max(map(len, text.splitlines())) < 400
    for line in (
        "sessions  2: 2 unknown; 2 reactive",
        "arrivals  100.0/h over 36 s",
        "turns     3; per session mean 1.5, p50 2, p90 2, max 2",
        "prompt    mean 200.0, p50 200, p90 300, max 300 tokens",
        "shared    0.183 of all prompt tokens; 0 opening text(s)",
        "gaps      0.3 s per turn on average",
        "            tool: 1 of 1.00 s",
        "            x: 1 session(s), 2 turn(s), 300 prompt tokens",
    ):
        assert line in text.splitlines(), line
    assert "threads" not in text and "persons" not in text


def test_threads_persons_and_openings_are_told():
    team = session_of(TEAM, Random(3), id_="t")
    waits = Turn(input_tokens=5, output_tokens=1, pause_s=30, is_pause_human=True)
    person = Session(id="p", threads=(Thread(turns=(waits,), shared_key="k", shared_tokens=5),))
    text = "\n".join(_shown(team, person))
    assert f"threads   {len(team.threads) + 1}; 1 session(s) with sub-agents" in text
    assert "persons   after 1 turn(s), mean 30.0" in text
    assert "3 opening text(s)" in text
    assert "arrivals  all at once" in text
    assert "shared    1.000 of all prompt tokens; 1 opening text(s)" in _shown(person)


def test_many_kinds_are_not_all_named():
    made = [Session(id=str(n), agent_type=str(n), threads=session().threads) for n in range(20)]
    (line,) = [line for line in _shown(*made) if line.startswith("sessions")]
    assert line == "sessions  20: 1 0, 1 1, 1 2, 1 3, 1 4, 1 5, 1 6, 1 7, …; 20 reactive"
