"""Conversations that quote others: sub-agents, tasks, summaries, side requests (CLIENTS: 6, 8, 10 to 12)."""

from typing import Any

import pytest

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.records import TurnArrived
from tests.workflow.world import TOOLS, call, result, said, user
from tests.workflow.world import GuessingWorld as World

FIX = user("Please fix the bug in the parser")
TASK = "SUBTASK: list files and report"
WORKER = "You are a worker."
SUB_TOOLS = [*TOOLS, {"type": "function", "function": {"name": "report"}}]


def spawn(world: World, *tasks: str, **how: Any) -> tuple[list[Any], TurnArrived]:
    calls = [call(f"call_{at}aaaaaaaaaaa", "agent", prompt=task) for at, task in enumerate(tasks)]
    turn = world.answered([FIX], "Step 0.", *calls, **how)
    return [FIX, said("Step 0.", *calls), *(result(c["id"]) for c in calls)], turn


# --- sub-agents ------------------------------------------------------------------------------------


def test_a_sub_agent_is_a_thread_of_its_parents_session():
    world = World()
    history, parent = spawn(world, TASK)
    sub = world.ask([user(f"<env>\n{TASK}")], system=WORKER)
    assert (sub.session, sub.edge, sub.parent) == (parent.session, Edge.SPAWNED, parent.turn)
    assert sub.thread != parent.thread and sub.source is SessionSource.QUOTE
    world.answer(sub, "All of it is done.")
    back = world.ask(history)
    assert (back.thread, back.edge) == (parent.thread, Edge.CONTINUES)


def test_parallel_sub_agents_with_one_prompt_are_threads_of_their_own():
    world = World()
    _, parent = spawn(world, TASK, TASK)
    subs = [world.ask([user(TASK)], system=WORKER, after=0) for _ in range(2)]
    assert {sub.session for sub in subs} == {parent.session}
    assert len({sub.thread for sub in subs} | {parent.thread}) == 3
    for at, sub in enumerate(subs):
        world.answer(sub, "Step 0.", call(f"call_sub{at}aaaaaaaa"))
    for at, sub in enumerate(subs):
        history = [
            user(TASK),
            said("Step 0.", call(f"call_sub{at}aaaaaaaa")),
            result(f"call_sub{at}aaaaaaaa"),
        ]
        assert world.ask(history, system=WORKER).thread == sub.thread


def test_a_call_starts_one_agent():
    world = World()
    spawn(world, TASK)
    subs = [world.ask([user(TASK)], system=WORKER, after=0) for _ in range(2)]
    assert [sub.edge for sub in subs] == [Edge.SPAWNED, Edge.OPENS]


def test_twin_parents_get_a_sub_agent_each():
    world = World()
    parents = [spawn(world, TASK)[1], spawn(world, TASK)[1]]
    subs = [world.ask([user(TASK)], system=WORKER, after=0) for _ in range(2)]
    assert {sub.session for sub in subs} == {parent.session for parent in parents}


def test_an_agent_may_start_after_its_call_returned_but_not_long_after():
    world = World()
    history, parent = spawn(world, TASK, TASK)
    world.ask(history)
    assert world.ask([user(TASK)], system=WORKER).session == parent.session
    assert world.ask([user(TASK)], system=WORKER, after=60).session != parent.session


def test_what_two_openings_share_makes_no_sub_agent():
    boilerplate = "Solve the task. When you are done, issue: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    world = World()
    first = world.ask([user(f"Fix the first bug. {boilerplate}")])
    world.answer(
        first, "Done.", call("call_aaaaaaaaaaaa", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    )
    world.answer(first := world.ask([user(boilerplate)]), "Done.", call("call_x", command=boilerplate))
    assert world.ask([user(boilerplate)], system="You are helpful.").session != first.session


def test_another_tenant_or_program_is_no_sub_agent():
    world = World()
    _, parent = spawn(world, TASK, TASK)
    assert world.ask([user(TASK)], system=WORKER, tenant="other").edge is Edge.OPENS
    assert world.ask([user(TASK)], system=WORKER, agent="curl/8").session != parent.session


# --- answers that are handed on --------------------------------------------------------------------


def test_the_next_task_embeds_the_last_answer():
    world = World()
    first = world.ask([user("Research the weather in Paris")], system="You research.")
    world.answer(first, "It is sunny in Paris, and it will stay so until Friday.")
    prompt = "Write a poem.\n\nContext:\nIt is sunny in Paris, and it will stay so until Friday."
    second = world.ask([user(prompt)], system="You write.", after=60)
    assert (second.session, second.edge, second.parent) == (first.session, Edge.QUOTES, first.turn)
    assert second.thread != first.thread


def test_what_many_said_names_nobody_unless_one_spoke_last():
    world = World()
    turns = []
    for name in ("first", "second"):
        turn = world.ask([user(f"Write the {name} poem, please")], system=f"You are {name}.")
        world.answer(turn, "Mock answer: short title")
        turns.append(turn)
    assert world.ask([user("Combine: Mock answer: short title")], system="Join.").edge is Edge.OPENS
    turn = world.ask([user("Write the third poem")], system="You are third.", after=60)
    world.answer(turn, "Mock answer: short title")
    assert world.ask([user("Join: Mock answer: short title")], system="Join.").session == turn.session


def test_a_fan_in_joins_one_of_its_twins():
    world = World()
    turns = [world.ask([user("Translate hello")], tools=None, after=0) for _ in range(3)]
    for turn in turns:
        world.answer(turn, "Mock answer: short title")
    joined = world.ask(
        [user("Mock answer: short title\nMock answer: short title")], system="Pick.", after=0.1
    )
    assert joined.session in {turn.session for turn in turns}


def test_a_history_that_was_rewritten_is_recognised_by_what_is_left():
    world = World()
    first = world.ask([user("List the files, then edit notes.")], tools=None)
    world.answer(first, "I will edit the notes as you said, in four steps.")
    history = [
        user("# List the files, then edit notes."),
        said("[cut]\nI will edit the notes as you said, in four steps.\n[/cut]"),
    ]
    resumed = world.ask([*history, user("Now do it again, please")], tools=None, after=300)
    assert (resumed.session, resumed.edge) == (first.session, Edge.CONTINUES)


def test_the_session_of_which_most_is_left_is_the_one():
    world = World()
    for name in ("first", "second"):
        turn = world.ask([user(f"Please write the {name} poem for me")], tools=None)
        world.answer(turn, "I have written it down, as you said.")
        prompt = "Title of: I have written it down, as you said."
        side = world.ask([user(prompt)], tools=None, system="You write titles.", after=0.1)
        world.answer(side, "I have written it down, too, you know.")
    history = [
        user("> Please write the first poem for me"),
        said("[..] I have written it down, as you said. [..]"),
        user("Another"),
    ]
    assert world.ask(history, tools=None, after=60).session == "s-1"


# --- compaction ------------------------------------------------------------------------------------


def test_a_summary_opens_a_new_window_of_the_same_thread():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")), ("It is half done.",))
    ask = world.ask([*messages, user("Summarise all of this.")], tools=None)
    world.answer(ask, "The user wants the parser fixed; half of it is done.")
    window = [FIX, user("Summary: The user wants the parser fixed; half of it is done.")]
    new = world.ask(window)
    assert (ask.edge, new.edge) == (Edge.SERVES, Edge.COMPACTS)
    assert (new.session, new.thread) == (turn.session, turn.thread)


def test_a_transcript_as_text_is_summarised_on_behalf_of_its_thread():
    world = World()
    _, turn = world.talk([FIX], ("I looked at all of the parser.", call("call_aaaaaaaaaaaa")))
    world.answer(turn, "It is half done, more or less.")
    transcript = "USER: fix\nASSISTANT: It is half done, more or less."
    ask = world.ask([user(transcript)], tools=None, system="You summarise.")
    world.answer(ask, "The parser shall be fixed, and half of it is.")
    new = world.ask([user("The parser shall be fixed, and half of it is.")])
    assert (ask.edge, ask.thread) == (Edge.SERVES, turn.thread)
    assert (new.edge, new.session, new.thread) == (Edge.COMPACTS, turn.session, turn.thread)


def test_the_opening_with_a_question_behind_it_is_a_side_request():
    world = World()
    _, turn = world.talk([user("Preamble"), FIX], ("Step 0.", call("call_aaaaaaaaaaaa")))
    ask = world.ask([user("Preamble"), FIX, user("Generate the state snapshot.")], tools=None)
    assert (ask.session, ask.edge) == (turn.session, Edge.SERVES)


# --- side requests ---------------------------------------------------------------------------------

TITLE = "<session>\nPlease fix the bug in the parser\n</session>\nWrite a title for it in sentence case."


def test_a_title_that_is_asked_for_first_waits_for_its_session():
    world = World()
    title = world.answered([user(TITLE)], "Parser bug", tools=None, system="You write titles.")
    first = world.ask([user("<reminder>Be brief.</reminder>"), FIX])
    assert (first.session, first.edge, first.thread) == (title.session, Edge.OPENS, title.thread)
    assert world.ask([FIX]).session != title.session, "one session has one title"


def test_a_title_does_not_wait_for_ever_nor_for_others():
    world = World()
    title = world.ask([user(TITLE)], tools=None, system="You write titles.")
    assert world.ask([user("Do something else altogether, please")]).session != title.session
    assert world.ask([FIX], after=60).session != title.session


def test_a_title_may_come_with_the_first_turn():
    world = World()
    first = world.ask([FIX])
    title = world.ask([user(TITLE)], tools=None, system="You write titles.", after=0.1)
    assert (title.session, title.edge, title.thread) == (first.session, Edge.SERVES, first.thread)
    late = world.ask([user(TITLE + " Now.")], tools=None, system="You write titles.", after=60)
    assert late.session != first.session


def test_sessions_with_one_prompt_have_a_title_each():
    world = World()
    sessions: list[Any] = []
    for _ in range(3):
        title = world.answered([user(TITLE)], "Parser bug", tools=None, system="You write titles.")
        first = world.ask([FIX])
        world.answer(first, "Step 0.", call(f"call_{len(sessions)}aaaaaaaaaaa"))
        assert first.session == title.session
        sessions.append(first.session)
    assert len(set(sessions)) == 3


def test_a_commit_message_is_asked_for_after_the_answer():
    world = World()
    turns = []
    for _ in range(2):
        turn = world.ask([FIX], tools=None, after=0.1)
        turns.append(turn)
    for turn in turns:
        world.answer(turn, "I will change the parser like this: remove it.")
    for turn in reversed(turns):
        prompt = "USER: Please fix\nASSISTANT: I will change the parser like this: remove it."
        commit = world.ask([user(prompt)], tools=None, system="You write commits.", after=0.1)
        assert commit.session in {turn.session for turn in turns}
        world.answer(commit, "Remove the parser, for good.")


# --- neighbours ------------------------------------------------------------------------------------


def step(world: World, name: str, after: float = 0.05, tools: Any = None, **how: Any) -> TurnArrived:
    return world.answered([user("Go")], "ok", system=f"You are {name}.", after=after, tools=tools, **how)


def test_the_steps_of_the_only_program_at_work():
    world = World()
    first, second = step(world, "the planner", 60), step(world, "the writer")
    assert second.session == first.session and second.source is SessionSource.ADJACENT
    assert second.thread != first.thread and second.confidence < 0.8
    main = step(world, "with tools", 60, tools=TOOLS)
    side = step(world, "a judge")
    assert (side.edge, side.thread) == (Edge.SERVES, main.thread)


@pytest.mark.parametrize(
    "how",
    [
        {"after": 0.5},  # another program could have started
        {"agent": "other/1"},  # another program has
        {"tenant": "other"},
        {"name": "the planner"},  # the same again
    ],
)
def test_who_is_no_neighbour(how):
    world = World()
    first = step(world, "the planner", 60)
    assert step(world, how.pop("name", "the writer"), **how).session != first.session


def test_a_second_conversation_of_the_same_kind_is_a_second_run():
    world = World()
    first = step(world, "the planner", 60)
    second = world.ask([user("Go elsewhere")], system="You are the planner.", tools=None, after=0.05)
    assert second.session != first.session


def test_two_programs_have_no_neighbours():
    world = World()
    step(world, "the planner", 60, agent="a")
    step(world, "the writer", 0.5, agent="a")
    assert step(world, "the critic", agent="a").edge is Edge.OPENS


def test_two_agents_with_tools_are_no_neighbours():
    world = World()
    step(world, "the planner", 60, tools=TOOLS)
    assert step(world, "the writer", tools=SUB_TOOLS).edge is Edge.OPENS
