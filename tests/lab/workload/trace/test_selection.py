"""What is taken of a corpus: each choice alone, and in their order."""

import pytest

from lab.workload.trace.format import Session, Thread, Tool, Turn
from lab.workload.trace.selection import Selection
from tests.lab.workload.trace.made import session


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
