"""Exchanges put through: checked, cleaned, chosen."""

import json

from lab.workload.problems import Problems
from lab.workload.recorded import recorded
from tests.lab.workload.corpora import member


def _line(t, session="s1", **more):
    return {"t": t, "path": "/v1/responses", "truth": {"client": "c", "session": session}, **more}


def _read(*records, match="*", limit=None):
    problems = Problems()
    return list(recorded([member(*records, name="file")], problems, match=match, limit=limit)), problems


def test_good_lines_come_through_clean():
    found, problems = _read(
        _line(1.0, headers={"Authorization": "Bearer secret"}, unknown=1),
        b"",
        _line(1.0, body={"input": "x"}),
    )
    assert [x.t for x in found] == [1.0, 1.0]
    assert found[0].headers == {"Authorization": "<redacted>"}
    assert found[1].body == {"input": "x"}
    assert problems.count == 0


def test_bad_lines_are_named():
    found, problems = _read(_line(5.0), b"nonsense", _line(4.0), _line(6.0, t_end=5.5), _line(7.0))
    assert [x.t for x in found] == [5.0, 7.0]
    assert [problem.partition(": ")[0] for problem in problems.shown] == [
        "file, line 2",
        "file, line 3",
        "file, line 4",
    ]
    assert problems.shown[1] == "file, line 3: t 4.0 is before the line above (5.0)"


def test_sessions_are_chosen_by_name_and_number():
    lines = [_line(t, s) for t, s in enumerate(["a1", "b1", "a2", "a1", "a3", "a2"])]
    found, _ = _read(*lines, match="a*", limit=2)
    assert [x.truth.session for x in found] == ["a1", "a2", "a1", "a2"]


def test_every_member_has_its_own_clock():
    members = [member(json.dumps(_line(t)).encode(), name=str(t)) for t in (9.0, 1.0)]
    problems = Problems()
    assert len(list(recorded(members, problems, match="*", limit=None))) == 2
    assert problems.count == 0
