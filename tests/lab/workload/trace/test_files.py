"""Workload files, from the command line too: what is written, what is wrong, what is taken."""

import json
import re

import pytest

from gateway.__main__ import main
from lab.workload.trace.files import read_workload, write_workload
from lab.workload.trace.format import Header, Session, Source, Thread, Tool, Turn
from lab.workload.trace.selection import Selection
from tests.lab.workload.corpora import said
from tests.lab.workload.trace.made import session
from tests.project.layout import ROOT

HEADER = Header(name="made", sources=(Source(what="sessions", origin="here", how="by hand"),), seed=3)
HEAD = b'{"turnpike_workload":1,"name":"made"}\n'
ONE = b'{"id":"a","threads":[{"turns":[{"input_tokens":1,"output_tokens":1}]}]}\n'


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz", "w.jsonl.xz"])
def test_what_is_written_is_read(tmp_path, name):
    file = str(tmp_path / name)
    made = [session("a"), session("b", arrival_s=2.0, tenant="t")]
    assert write_workload(file, HEADER, iter(made)) == 2
    header, sessions = read_workload(file)
    assert (header, list(sessions)) == (HEADER, made)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "line 1: not the header of a workload: "),
        (ONE, "line 1: not the header of a workload: .*turnpike_workload"),
        (b"\nnonsense\n", "line 2: not the header of a workload: "),
        (
            b'{"turnpike_workload":3,"name":"m","new":1}',
            "line 1: a workload of version 3; this program reads 1 to 2",
        ),
        (b'{"turnpike_workload":1,"name":"m","odd":1}', "line 1: not the header .*odd"),
        (HEAD + b"{}", "line 2: .*missing required field `id`"),
        (HEAD + b"\n" + ONE.replace(b':1,"out', b':0,"out'), "line 3: .*>= 1"),
        (HEAD + ONE + ONE, "line 3: session 'a': its id has been used above"),
        (
            HEAD + ONE.replace(b"{", b'{"arrival_s":2,', 1) + ONE.replace(b'"a"', b'"b"'),
            "line 3: session 'b': arrives at 0.0, before the one above",
        ),
        (
            HEAD + ONE.replace(b'"output_tokens":1', b'"output_tokens":1,"prefix_tokens":1'),
            "line 2: session 'a', thread 0, turn 0: a prefix of nothing",
        ),
        (HEAD + ONE.replace(b'"a"', b'"a","more":1'), "line 2: .*unknown field `more`"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path, content, complaint):
    file = tmp_path / "w.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"w.jsonl, {complaint}"):
        list(read_workload(str(file))[1])


def test_the_documented_example_is_a_workload(tmp_path):
    page = (ROOT / "docs/contribute/workloads.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    header, session = example.split("\n", 1)
    file = tmp_path / "w.jsonl"
    file.write_text(header + "\n" + session.replace("\n", ""))
    assert [s.turns for s in read_workload(str(file))[1]] == [2]


def test_a_workload_is_one_file(tmp_path):
    with pytest.raises(ValueError, match="holds no workload"):
        read_workload(str(tmp_path))
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(HEAD + ONE)
    with pytest.raises(ValueError, match="holds more than one file"):
        list(read_workload(str(tmp_path))[1])


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        ([session("a"), session("a")], "its id has been used above"),
        ([session("a", arrival_s=1.0), session("b")], "arrives at 0.0, before the one above"),
    ],
)
def test_nothing_invalid_is_written(tmp_path, made, complaint):
    with pytest.raises(ValueError, match=complaint):
        write_workload(str(tmp_path / "w.jsonl"), HEADER, made)
    assert list(tmp_path.iterdir()) == []


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


def _lengths(selection, *made):
    return [(s.id, [len(t.turns) for t in s.threads]) for s in selection.apply(made)]


A, B, C = session("a", 100, 120, 140), session("b", 200, 220), session("c", 100)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), [("a", [3]), ("b", [2]), ("c", [1])]),
        (Selection(match="[ab]"), [("a", [3]), ("b", [2])]),
        (Selection(first_prompt_max=199), [("a", [3]), ("c", [1])]),
        (Selection(first_prompt_max=200), [("a", [3]), ("b", [2]), ("c", [1])]),
        (Selection(turns_max=2), [("a", [2]), ("b", [2]), ("c", [1])]),
        (Selection(context_max=130), [("a", [2]), ("c", [1])]),
        (Selection(context_max=129), [("a", [1]), ("c", [1])]),
        (Selection(turns_min=2), [("a", [3]), ("b", [2])]),
        (Selection(turns_max=2, turns_min=3), []),
        (Selection(limit=2), [("a", [3]), ("b", [2])]),
        (Selection(turns_min=2, limit=2), [("a", [3]), ("b", [2])]),
    ],
)
def test_each_choice(selection, expected):
    assert _lengths(selection, A, B, C) == expected


def test_a_long_pause_of_a_person_ends_the_session():
    def turn(pause_s, *, is_human):
        return Turn(input_tokens=9, output_tokens=1, pause_s=pause_s, is_pause_human=is_human)

    made = Session(
        id="s",
        threads=(Thread(turns=(turn(0, is_human=False), turn(99, is_human=False), turn(60, is_human=True))),),
    )
    assert _lengths(Selection(human_gap_max_s=60), made) == [("s", [3])]
    assert _lengths(Selection(human_gap_max_s=59), made) == [("s", [2])]


def test_limits_of_the_main_conversation_leave_sub_agents_alone():
    starts = Turn(input_tokens=5, output_tokens=5, tools=(Tool(name="agent", starts_thread=1),))
    more = Turn(input_tokens=9, output_tokens=1, pause_s=9, is_pause_human=True)
    made = Session(id="s", threads=(Thread(turns=(starts, more, more)), Thread(turns=(more, more))))
    assert _lengths(Selection(turns_max=1, human_gap_max_s=1), made) == [("s", [1, 2])]
    assert _lengths(Selection(context_max=9), made) == []
