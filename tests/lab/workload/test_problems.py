"""Problems are counted; the first few are kept."""

from lab.workload.problems import SHOWN, Problems


def test_the_first_few_are_shown():
    problems = Problems()
    for number in range(SHOWN + 2):
        problems.add(f"file, line {number}", "what")
    assert problems.count == SHOWN + 2
    assert problems.shown == [f"file, line {number}: what" for number in range(SHOWN)]
    assert Problems().shown == []
