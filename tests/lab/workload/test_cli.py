"""`turnpike workload import`, from the command line to the file."""

import json

import pytest

from gateway.__main__ import main
from lab.workload.exchange import read_exchange
from tests.lab.workload.corpora import of_sessions, said


@pytest.fixture
def corpus(tmp_path):
    talk = [said("user", "hello"), said("assistant", "yes?"), said("user", "x"), said("assistant", "y")]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"task_id": n, "traj": talk}) + "\n" for n in range(9)))
    return file


def _import(tmp_path, *arguments, out="out.jsonl"):
    status = main(["workload", "import", *map(str, arguments), "-o", str(tmp_path / out)])
    if status:
        return status
    return [read_exchange(line) for line in (tmp_path / out).read_bytes().splitlines()]


def test_a_corpus_becomes_exchanges_that_parse(tmp_path, corpus, capsys):
    exchanges = _import(tmp_path, "tau-bench", corpus)
    assert len(exchanges) == 18
    assert len(of_sessions(exchanges)) == 9
    assert "18 exchange(s) of 9 session(s)\n" in capsys.readouterr().out
    assert _import(tmp_path, "exchanges", tmp_path / "out.jsonl", out="again.jsonl") == exchanges


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(tmp_path, corpus):
    def written(*options):
        _import(tmp_path, "tau-bench", corpus, *options)
        return (tmp_path / "out.jsonl").read_bytes()

    assert written("--seed", 1) == written("--seed", 1) != written("--seed", 2)


def test_sessions_can_be_chosen(tmp_path, corpus):
    exchanges = _import(
        tmp_path, "tau-bench", corpus, "--match", "task-[3-8]-*", "--limit", 2, "--sessions-at-once", 1
    )
    assert [x.truth.session for x in exchanges] == ["task-3-trial-0"] * 2 + ["task-4-trial-0"] * 2


def test_malformed_records_are_reported_and_left_out(tmp_path, corpus, capsys):
    corpus.write_text(corpus.read_text() + "nonsense\n")
    assert len(_import(tmp_path, "tau-bench", corpus)) == 18
    output = capsys.readouterr()
    assert "; 1 malformed record(s) left out" in output.out
    assert output.err.startswith("turnpike: talks, line 10: ")
