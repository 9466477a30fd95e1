"""Prompts have the tokens that they should have, and share what they should share."""

from lab.simulator.live.prompts import TOKEN_IDS, Prompts
from lab.workload.trace.format import Session, Thread, Turn, TurnRef

FIRST, SECOND = TurnRef(0, 0), TurnRef(0, 1)


def session(name: str, **second) -> Session:
    turns = (Turn(input_tokens=40, output_tokens=5), Turn(input_tokens=60, output_tokens=5, **second))
    return Session(id=name, threads=(Thread(turns=turns, shared_key="agent", shared_tokens=30),))


def test_a_prompt_goes_on_where_the_answer_ended():
    prompts, one = Prompts(), session("one", prefix_of=FIRST, prefix_tokens=45)
    first = prompts.prompt(one, FIRST)
    assert len(first) == 40 and set(first) <= set(TOKEN_IDS)
    prompts.answered(one, FIRST, first, [1, 2, 3, 4, 5])
    second = prompts.prompt(one, SECOND)
    assert second[:45] == [*first, 1, 2, 3, 4, 5] and len(second) == 60


def test_what_is_shared_is_the_same_everywhere_and_nothing_else_is():
    prompts, others = Prompts(), Prompts()
    one, two = prompts.prompt(session("one"), FIRST), others.prompt(session("two"), FIRST)
    assert one[:30] == two[:30] and one[30:] != two[30:]
    assert one == others.prompt(session("one"), FIRST)


def test_nothing_is_kept_of_what_is_over():
    prompts, one = Prompts(), session("one")
    prompts.answered(one, FIRST, prompts.prompt(one, FIRST), [])
    assert len(prompts) == 1
    prompts.forget("one")
    assert len(prompts) == 0
