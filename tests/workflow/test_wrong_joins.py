"""What looked like one run and is two, and what looked like two: seen on recorded traffic, in miniature."""

import pytest

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.records import TurnArrived
from tests.workflow.world import TOOLS, call, result, said, user
from tests.workflow.world import GuessingWorld as World

STEPS = (
    "1. Read and understand the whole issue first\n2. Explore the code and find the files that matter\n"
    "3. Run the test suite and show the final git diff"
)
WORKER = "You are a worker."
WRITER = "You write titles."
LONG_ISSUE = " ".join(f"detail{at} of the {at}th report" for at in range(60))


# --- no hand-over ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt",
    [
        "Please run npm test",
        "When done, npm test",
        "Do this:\nnpm test\nuntil it passes",
        f"Fix it: {LONG_ISSUE}\n- In the end, run npm test",
    ],
)
def test_a_command_that_a_prompt_mentions_is_no_hand_over(prompt):
    world = World()
    first = world.ask([user("Please fix the bug in the parser")])
    world.answer(first, "Testing.", call("call_1aaaaaaaaaaaa", command="npm test"))
    assert world.ask([user(prompt)]).session != first.session


def test_steps_that_every_prompt_lists_are_no_hand_over():
    """An agent copied them into its list of things to do."""
    world = World()
    first = world.ask([user(f"Fix this: {' '.join(f'tab{at} breaks it' for at in range(99))}\n{STEPS}")])
    steps = [{"content": line[3:]} for line in STEPS.splitlines()]
    world.answer(first, "Planning.", call("call_1aaaaaaaaaaaa", "todo", todos=steps))
    assert world.ask([user(f"Fix this: {LONG_ISSUE}\n{STEPS}")]).session != first.session


def test_code_that_both_copied_from_one_issue_is_no_hand_over():
    code = "from fields import TimeDelta\nprint(TimeDelta(precision=3).serialize(345))"
    world = World()
    first = world.ask([user(f"Fix the precision. {LONG_ISSUE} {code}")], system="You edit lines.")
    world.answer(first, "Pasting.", call("call_1aaaaaaaaaaaa", "edit", text=code))
    other = world.ask([user(f"Reproduce and repair this. {LONG_ISSUE} {code}")], system="You edit files.")
    assert other.session != first.session


@pytest.mark.parametrize("prompt", ["SUB mock task", f"Work on this.\nTask:\nmock task\n---\n{LONG_ISSUE}"])
@pytest.mark.parametrize("label", ["", "Current Task: "])
def test_a_short_task_that_a_template_sets_off_is_one(prompt, label):
    world = World()
    first = world.ask([user("Weather in Paris?")])
    world.answer(first, None, call("call_1aaaaaaaaaaaa", "worker", task="mock task"))
    sub = world.ask([user(prompt.replace("mock task", f"{label}mock task"))], system=WORKER, tools=None)
    assert (sub.session, sub.edge) == (first.session, Edge.SPAWNED)


def test_an_agent_of_the_same_kind_is_told_the_task_and_nothing_else():
    world = World()
    first = world.ask([user("Weather in Paris?")])
    world.answer(first, None, call("call_1aaaaaaaaaaaa", "agent", task="mock task"))
    assert world.ask([user("mock task")]).session == first.session


# --- no side request -------------------------------------------------------------------------------


def crew(task: str) -> str:
    return (
        f"Current task: {task}\n\nThis is the expected criteria for your final answer: what was asked for.\n"
        "You must return the actual complete content as the final answer, not a summary.\n\n"
        "This is very important to you, and your job depends on it!"
    )


def test_a_template_makes_no_title():
    world = World()
    first = world.ask([user(crew("say hello to the world"))], tools=None, system="You greet.")
    second = world.ask([user(crew("multiply two numbers for me"))], system="You count.")
    assert second.session != first.session
    title = world.ask([user(f"Title of: {crew('divide two numbers for me')}")], tools=None, system=WRITER)
    assert world.ask([user(crew("divide two numbers for me"))], system="You count.").session == title.session


def test_a_template_makes_no_side_request():
    world = World()
    first = world.ask([user(crew("multiply two numbers for me"))])
    other = world.ask([user(crew("say hello to the world"))], tools=None, system="You greet.", after=0.1)
    assert other.session != first.session
    title = world.ask(
        [user(f"Title of: {crew('multiply two numbers for me')}")], tools=None, system=WRITER, after=0.1
    )
    assert (title.session, title.edge) == (first.session, Edge.SERVES)


def test_a_summary_of_a_conversation_serves_it():
    world = World()
    _, first = world.talk([user("Weather in Paris?")], ("Step 0.", call("call_1aaaaaaaaaaaa")))
    world.answer(first, "Step 1.", call("call_2aaaaaaaaaaaa"))
    world.ask([user("Something else")])
    text = "Extract what matters.\n<messages>\n<message type='human'>Weather in Paris?</message>\n</messages>"
    summary = world.ask([user(text)], tools=None, system="", after=0.4)
    assert (summary.session, summary.edge) == (first.session, Edge.SERVES)
    later = world.ask([user(text.replace("what", "all that"))], tools=None, system="", after=9)
    assert later.session != first.session


def test_a_history_told_as_a_text_is_known_by_the_calls_that_it_names():
    world = World()
    first = world.ask([user("Hi")])
    made = call("call_e3b0c44298fc1c149afb")
    world.answer(first, None, made)
    text = f"Sum up:\n<message><tool_call id='{made['id']}'>{{}}</tool_call></message>"
    summary = world.ask([user(text)], tools=None, system=WRITER, after=300)
    assert (summary.session, summary.edge) == (first.session, Edge.SERVES)


# --- no quote --------------------------------------------------------------------------------------


def test_an_answer_that_its_own_question_holds_is_found_in_whoever_asks_the_same():
    world = World()
    question = [user("Rewrite this query: what is the favorite color?\nExpected: the favorite color")]
    first = world.answered(question, "the favorite color", tools=None)
    assert world.ask(question, tools=None).session != first.session


def test_what_a_model_always_says_is_no_quote():
    phrase = "I now can give a great answer to you. Final answer:"
    world = World()
    for at, answer in enumerate(("hello to all men", "the sum is four")):
        world.answer(world.ask([user(f"Question {at}, please answer it")], tools=None), f"{phrase} {answer}")

    def judge(result: str) -> TurnArrived:
        return world.ask([user(f"Assess: {phrase} {result}")], tools=None, system=WRITER, after=0.11)

    assert judge("addition is counting on").source is SessionSource.NEW
    judged = judge("the sum is four")
    assert (judged.session, judged.source) == ("s-2", SessionSource.QUOTE)


def test_a_quote_that_fits_two_sessions_says_so():
    world = World()
    for name in ("first", "second"):
        turn = world.ask([user(f"Please write the {name} poem")], tools=None)
        world.answer(turn, "Roses are red, violets are blue, as they say.")
    quote = world.ask(
        [user("Judge this: Roses are red, violets are blue, as they say.")],
        tools=None,
        system=WRITER,
        after=0.1,
    )
    assert quote.session == "s-2" and quote.confidence == 0.6


# --- moments ---------------------------------------------------------------------------------------


def test_after_a_long_conversation_comes_another_program():
    world = World()
    _, last = world.talk([user("Hi")], *[(f"{at}.", call(f"call_{at}aaaaaaaaaaa")) for at in range(5)])
    world.answer(last, "Done.")
    other = world.ask([user("Something else")], tools=None, system=WRITER, after=0.05)
    assert other.source is SessionSource.NEW


@pytest.mark.parametrize(("after", "is_step"), [(0.05, True), (0.2, False)])
def test_the_next_step_of_a_workflow_comes_at_once(after, is_step):
    world = World()
    plan = world.answered([user("Plan topics")], "Topics.", tools=None)
    step = world.ask([user("a")], tools=None, system=WRITER, after=after)
    assert (step.session == plan.session) is is_step


def test_whoever_asks_the_same_long_after_a_failure_is_somebody_else():
    world = World()
    first = world.ask([user("Hi")])
    world.refuse(first, 401)
    assert world.ask([user("Hi")], after=14).source is SessionSource.NEW


def test_who_failed_for_long_may_come_back_late():
    world = World()
    first = turn = world.ask([user("Hi")])
    for pause in (1, 2, 4, 9, 19, 32):
        world.refuse(turn, 429)
        turn = world.ask([user("Hi")], after=pause)
        assert turn.session == first.session, pause


def test_who_was_told_to_wait_may_come_then():
    world = World()
    first = world.ask([user("Hi")])
    world.refuse(first, 429, retry_after_s=75)
    assert world.ask([user("Hi")], after=75.02).session == first.session


# --- twins and silence -----------------------------------------------------------------------------


def test_the_last_of_the_twins_is_no_surer_than_the_first():
    world = World()
    firsts = [world.ask([user("Hi")]) for _ in range(3)]
    for first in firsts:
        world.answer(first, "What can I do for you?")
    again = [
        world.ask([user("Hi"), said("What can I do for you?"), user(f"Do {name}")])
        for name in ("x", "y", "z")
    ]
    assert [turn.confidence for turn in again] == [0.6, 0.6, 0.6]
    assert {turn.session for turn in again} == {turn.session for turn in firsts}


@pytest.mark.parametrize("answer", [[said("")], [said(None)], []])
def test_an_answer_that_says_nothing_ends_no_session(answer):
    world = World()
    first = world.answered([user("Please fix the bug")], "")
    again = world.ask([user("Please fix the bug"), *answer, user("Are you there?")])
    assert (again.session, again.edge) == (first.session, Edge.CONTINUES)


def test_silence_that_several_heard_is_nobodys():
    world = World()
    for _ in range(2):
        world.answer(world.ask([user("Please fix the bug")]), "")
    again = world.ask([user("Please fix the bug"), user("Are you there?")])
    assert again.source is SessionSource.NEW


def test_results_without_words_are_no_silence():
    world = World()
    world.answered([user("Hi")], None, call("call_1aaaaaaaaaaaa"), tools=TOOLS)
    history = [user("Hi"), said(None, call("call_1aaaaaaaaaaaa")), result("call_1aaaaaaaaaaaa")]
    assert world.ask(history).source is SessionSource.CALL_ID
