"""Workload files: what is written is read; what is wrong is named by file and line."""

import re

import pytest

from lab.workload.trace.files import read_workload, write_workload
from lab.workload.trace.format import Header, Source
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
    page = (ROOT / "docs/reference/workloads.md").read_text()
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
