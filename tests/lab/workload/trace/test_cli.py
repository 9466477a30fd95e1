"""`turnpike workload import` of workloads, from the command line to the file."""

import json

import pytest

from gateway.__main__ import main
from lab.workload.trace.files import read_workload
from lab.workload.trace.format import Header
from tests.lab.workload.corpora import said

CORPUS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0,{100 + second},{second + 1}\n" for second in range(10)
)


@pytest.fixture
def arrivals(tmp_path):
    file = tmp_path / "azure.csv"
    file.write_text(CORPUS)
    return file


@pytest.fixture
def talks(tmp_path):
    talk = [said("user", "hello"), said("assistant", "yes?"), said("user", "x"), said("assistant", "y")]
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps({"task_id": n, "traj": talk}) + "\n" for n in range(3)))
    return file


def _import(tmp_path, *arguments, out="out.jsonl"):
    return main(["workload", "import", *map(str, arguments), "-o", str(tmp_path / out)])


def _read(tmp_path, out="out.jsonl") -> tuple[Header, list]:
    header, sessions = read_workload(str(tmp_path / out))
    return header, list(sessions)


def test_a_corpus_becomes_a_workload(tmp_path, arrivals, capsys):
    assert _import(tmp_path, "azure", arrivals) == 0
    header, sessions = _read(tmp_path)
    assert len(sessions) == 10
    assert capsys.readouterr().out == f"{tmp_path}/out.jsonl: 10 turn(s) of 10 session(s)\n"
    assert header.name == "azure"
    (source,) = header.sources
    assert source.origin == "Azure LLM inference trace 2023 (CC-BY-4.0)"
    assert (
        source.how == "file azure.csv; arrivals and lengths as recorded; every request a session of its own"
    )


def test_a_kind_that_can_be_either_is_exchanges_unless_asked(tmp_path, talks, capsys):
    assert _import(tmp_path, "tau-bench", talks) == 0
    assert "6 exchange(s) of 3 session(s)" in capsys.readouterr().out
    assert _import(tmp_path, "tau-bench", talks, "--as", "workload", "--seed", 3) == 0
    header, sessions = _read(tmp_path)
    assert (header.seed, [s.turns for s in sessions]) == (3, [2, 2, 2])
