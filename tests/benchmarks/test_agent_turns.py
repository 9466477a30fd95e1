import json
import signal
from collections.abc import Iterator

import pytest

from benchmarks import agent_turns
from benchmarks.processes import Pinning


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_last_line_is_json_and_the_status_tells_what_was_missed(monkeypatch, capsys):
    def run(plan, options, verdict, tell):
        assert plan.rounds == 3
        tell("a table")
        verdict.at_most("cost", 60.0, 50)

    monkeypatch.setattr(agent_turns, "run", run)
    assert agent_turns.main(["--quick", "--rounds", "3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "a table" in lines
    assert json.loads(lines[-1])["cost"] == {"value": 60.0, "target": "<= 50", "ok": False}
    agent_turns.main(["--json", "--rounds", "3"])
    [last] = capsys.readouterr().out.splitlines()
    assert json.loads(last)["cost"] == json.loads(lines[-1])["cost"]


def test_gateway_and_load_do_not_share_a_core_where_there_are_two(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7})
    pinning = Pinning.of_this_machine()
    assert (sorted(pinning.gateway), sorted(pinning.others)) == ([2], [5, 7])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    pinning = Pinning.of_this_machine()
    assert (sorted(pinning.gateway), sorted(pinning.others)) == ([3], [3])
