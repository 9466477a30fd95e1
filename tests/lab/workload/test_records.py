"""Records in the lines of a member, or in the whole of it."""

import msgspec

from lab.workload.problems import Problems
from lab.workload.records import lines_as, whole_as
from tests.lab.workload.corpora import member


class _Point(msgspec.Struct):
    x: int


def test_lines_keep_their_numbers_and_bad_ones_are_problems():
    problems = Problems()
    corpus = member({"x": 1}, b"  ", b"{", {"x": "one"}, b'{"x": "\xff"}', {"x": 6}, name="points")
    assert list(lines_as(_Point, corpus, problems)) == [(1, _Point(1)), (6, _Point(6))]
    assert problems.count == 3
    assert problems.shown[0].startswith("points, line 3: ")
    assert problems.shown[1] == "points, line 4: Expected `int`, got `str` - at `$.x`"


def test_a_whole_member_is_one_record():
    problems = Problems()
    assert whole_as(_Point, member(b"{", b'"x": 1', b"}"), problems) == _Point(1)
    assert whole_as(_Point, member(b"[]", name="points"), problems) is None
    assert problems.shown == ["points: Expected `object`, got `array`"]
