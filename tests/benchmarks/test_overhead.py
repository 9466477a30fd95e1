import json
import signal
from collections.abc import Iterator

import pytest

from benchmarks import overhead, peers
from benchmarks.processes import BenchmarkError, Pinning
from benchmarks.verdict import Verdict


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_without_the_rust_peers_there_is_one_line_and_status_2(monkeypatch, capsys):
    def cannot() -> None:
        raise BenchmarkError("the Rust peers cannot be installed: no network")

    monkeypatch.setattr(peers, "install_rust_peers", cannot)
    assert overhead.main(["--quick", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "overhead: the Rust peers cannot be installed: no network\n"


def test_the_last_line_is_json_and_the_status_tells_what_was_missed(monkeypatch, capsys):
    def run(plan: overhead.Plan, seed: int) -> Verdict:
        print("a table")
        verdict = Verdict()
        verdict.at_most("lag", 60.0, 50)
        return verdict

    monkeypatch.setattr(overhead, "run", run)
    assert overhead.main(["--quick"]) == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert table == ["a table"]
    assert json.loads(last)["lag"] == {"value": 60.0, "target": "<= 50", "ok": False}
    overhead.main(["--json"])
    assert capsys.readouterr().out.splitlines() == [last]


def test_gateway_and_load_do_not_share_a_core_where_there_are_two(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7})
    pinning = Pinning.of_this_machine()
    assert (sorted(pinning.gateway), sorted(pinning.others)) == ([2], [5, 7])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    pinning = Pinning.of_this_machine()
    assert (sorted(pinning.gateway), sorted(pinning.others)) == ([3], [3])
