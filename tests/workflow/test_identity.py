"""Stated ids, groups, forks and rewinds (CLIENTS: rules 1, 10, 11; an id that several runs share)."""

import json
from typing import Any

import pytest

from gateway.domain.decision import Edge, SessionSource
from tests.workflow.world import TOOLS, call, result, said, user
from tests.workflow.world import GuessingWorld as World

FIX, OTHER = user("Please fix the bug in the parser"), user("Now write the documentation, please")


# --- stated ids ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "source"),
    [("session_id", SessionSource.CLIENT_ID), ("x_turnpike_session", SessionSource.TURNPIKE_HEADER)],
)
def test_a_stated_id_names_the_run(header, source):
    world = World()
    x: Any = {header: "x"}
    y: Any = {header: "y"}
    first = world.answered([FIX], "It is fixed now.", **x)
    again = world.ask([FIX, said("It is fixed now."), user("Thanks")], **x)
    assert (again.session, again.thread, again.parent) == (first.session, first.thread, first.turn)
    assert again.source is source and again.edge is Edge.CONTINUES
    assert world.ask([FIX], **y).session != first.session
    assert world.ask([FIX], tenant="other", **x).session != first.session


def test_an_answers_own_name_of_a_session_leads_back_to_it():
    world = World()
    first = world.answered([FIX], "It is fixed now.")
    names: Any = {"x_turnpike_session": first.session}
    for messages in ([OTHER], [FIX, said("It is fixed now."), user("Thanks")], [OTHER, user("More")]):
        assert world.ask(messages, **names).session == first.session
    assert world.ask([OTHER], tenant="other", **names).session != first.session
    stated = world.answered([FIX], "It is fixed, too.", session_id="x")
    both: Any = {"session_id": "x", "x_turnpike_session": stated.session}
    again = world.ask([FIX, said("It is fixed, too."), user("Thanks")], **both)
    assert (again.session, again.thread) == (stated.session, stated.thread) and again.edge is Edge.CONTINUES


def test_what_the_client_states_wins_over_what_it_echoes():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")))
    stated = world.ask(messages, session_id="x")
    assert stated.session != turn.session and stated.source is SessionSource.CLIENT_ID


def test_threads_of_a_run_are_told_by_name():
    world = World()
    main = world.answered([FIX], "Step 0.", session_id="s", thread_id="s")
    subs = [world.ask([OTHER], session_id="s", thread_id=name, after=0) for name in "ab"]
    assert {sub.session for sub in subs} == {main.session} and {sub.edge for sub in subs} == {Edge.SPAWNED}
    assert len({main.thread, *(sub.thread for sub in subs)}) == 3
    again = world.ask([user("Anything")], session_id="s", thread_id="a")
    assert (again.thread, again.parent, again.edge) == (subs[0].thread, subs[0].turn, Edge.CONTINUES)


def test_sub_agents_without_a_thread_name_are_told_by_content():
    world = World()
    first = world.answered([FIX], "Step 0.", call("call_aaaaaaaaaaaa", prompt="do it"), x_session_id="s")
    sub = world.ask([OTHER], x_session_id="s")
    assert (sub.session, sub.edge) == (first.session, Edge.SPAWNED) and sub.thread != first.thread


def test_a_sub_agent_with_an_id_of_its_own_joins_the_run_that_it_names():
    world = World()
    main = world.ask([FIX], x_session_id="ses_1")
    sub = world.ask([OTHER], x_session_id="ses_2", x_parent_session_id="ses_1")
    assert (sub.session, sub.edge, sub.parent) == (main.session, Edge.SPAWNED, main.turn)
    world.answer(sub, "Yes, of course.")
    again = world.ask([OTHER, said("Yes, of course."), user("More")], x_session_id="ses_2")
    assert (again.session, again.thread) == (main.session, sub.thread) != (main.session, main.thread)
    lone = world.ask([OTHER], x_session_id="ses_3", x_parent_session_id="unknown")
    assert lone.session != main.session
    assert world.ask([OTHER], x_session_id="ses_4", x_parent_session_id="ses_4").edge is Edge.OPENS


def test_side_requests_under_the_runs_id_are_in_its_thread():
    world = World()
    title = world.ask(
        [user("Write a title for it")], tools=None, system="You write titles.", x_session_id="s"
    )
    first = world.answered([FIX], "Step 0.", x_session_id="s")
    side = world.ask([user("Write a commit message")], tools=None, system="You write.", x_session_id="s")
    assert {title.thread, first.thread, side.thread} == {first.thread}
    assert (first.edge, side.edge, side.parent) == (Edge.OPENS, Edge.SERVES, first.turn)


@pytest.mark.parametrize("names", [{"session_id": "s", "thread_id": "s"}, {"x_session_id": "s"}])
def test_a_compaction_under_an_id_stays_in_its_session_and_in_a_thread_that_is_named(names: Any):
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")), **names)
    world.answer(turn, "Done with half of it.")
    history = [*messages, said("Done with half of it."), user("Summarise.")]
    ask = world.ask(history, tools=None, **names)
    world.answer(ask, "The parser shall be fixed, and half of it is.")
    new = world.ask([user("The parser shall be fixed, and half of it is.")], **names)
    is_named = "thread_id" in names
    assert new.session == turn.session and (new.thread == turn.thread) is is_named
    assert new.edge is (Edge.COMPACTS if is_named else Edge.OPENS)


@pytest.mark.parametrize("header", ["x_session_id", "x_turnpike_session"])
def test_behind_a_compaction_sub_agents_are_the_runs_own_and_the_id_stays_its(header: str):
    world = World()
    names: Any = {header: "s"}
    first = world.answered([FIX], "Half of it is done.", **names)
    new = [user("In short: half of it is done.")]
    main = world.ask(new, **names)
    made = [call(f"call_{name}aaaaaaaaaaaa", "task", prompt=name) for name in "ab"]
    world.answer(main, "They shall do it.", *made)
    subs = [world.ask([user(f"Sub {name}")], **names, system="You work.", after=0) for name in "ab"]
    assert {sub.edge for sub in subs} == {Edge.SPAWNED} and {sub.parent for sub in subs} == {main.turn}
    for name, sub in zip("ab", subs, strict=True):
        world.answer(sub, f"Sub {name} looked into it.")
        world.ask(
            [user(f"Sub {name}"), said(f"Sub {name} looked into it."), user("Go")],
            **names,
            system="You work.",
        )
    back = world.ask(
        [*new, said("They shall do it.", *made), *(result(each["id"]) for each in made)], **names
    )
    assert {first.session, back.session, *(sub.session for sub in subs)} == {"s-1"}
    assert (back.thread, back.edge) == (main.thread, Edge.CONTINUES)
    assert world.sessions.get("s-1").group is None


@pytest.mark.parametrize(
    ("what", "edge"),
    [
        ("retry", Edge.CONTINUES),
        ("title", Edge.SERVES),
        ("edited", Edge.CONTINUES),
        ("beside", Edge.CONTINUES),
        ("after a title", Edge.OPENS),
    ],
)
def test_only_a_prompt_without_answers_behind_an_answer_compacts_a_named_thread(what: str, edge: Edge):
    world = World()
    names: Any = {"session_id": "s", "thread_id": "s"}
    titles: Any = {"tools": None, "system": "You write titles."} if what == "after a title" else {}
    first = world.ask([FIX], **names, **titles)
    if what == "retry":
        world.refuse(first, 503)
    elif what != "beside":
        world.answer(first, "I fix it.")
    history = [FIX, said("I shall not."), user("Go on")] if what == "edited" else [user("Something else")]
    turn = world.ask(history, **names, tools=None if what == "title" else TOOLS, after=20)
    assert (turn.thread, turn.edge) == (first.thread, edge)


def test_a_stored_response_of_a_forgotten_turn_still_names_the_session():
    world = World(max_call_ids=1)
    first = world.ask("Weather in Paris?", path="responses")
    world.answer(first, "It is sunny.", state="resp_1234567890abc")  # one of its two ids is forgotten
    turn = world.ask("And?", path="responses", body={"previous_response_id": "resp_1234567890abc"})
    assert (turn.session, turn.source, turn.edge) == (first.session, SessionSource.STATE_ID, Edge.CONTINUES)


# --- groups ----------------------------------------------------------------------------------------


def keyed(world: World, messages: list, **how):
    return world.ask(messages, body={"prompt_cache_key": "my-app"}, **how)


def test_a_constant_cache_key_is_a_group():
    world = World()
    runs = {}
    for name in ("first", "second", "third"):
        task = user(f"Please fix the {name} bug in the parser")
        turn = keyed(world, [task])
        world.answer(turn, "Step 0.", call(f"call_{name}aaaaaaaa"))
        history = [task, said("Step 0.", call(f"call_{name}aaaaaaaa")), result(f"call_{name}aaaaaaaa")]
        if name != "first":
            runs[name] = keyed(world, history).session
        else:
            world.answer(keyed(world, history), "It is all done now.")
            runs[name] = turn.session
        assert runs[name] == turn.session
    assert len(set(runs.values())) == 3
    groups = {world.sessions.get(session).group for session in runs.values()}
    assert groups == {("t", "prompt_cache_key", "my-app")}
    for session in runs.values():
        assert keyed(world, [user("Go")], x_turnpike_session=session).session == session, "its own name"


def test_a_cache_key_per_run_is_its_id():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")), body={"prompt_cache_key": "k"})
    assert turn.source is SessionSource.CLIENT_ID and world.sessions.get(turn.session).group is None
    sub = world.ask([OTHER], body={"prompt_cache_key": "k"})
    world.answer(turn, "Step 1.", call("call_bbbbbbbbbbbb", prompt="Write it"))
    sub = world.ask([OTHER], body={"prompt_cache_key": "k"})
    assert sub.tenant == "t" and len(messages) == 3


def test_a_harness_id_that_runs_two_conversations_at_once_is_a_group():
    world = World()
    first = world.ask([FIX], session_id="s")
    second = world.ask([OTHER], session_id="s", after=0)
    assert first.session != second.session
    for turn, text in ((first, "I fix it now."), (second, "I write it now.")):
        world.answer(turn, text)
    assert world.ask([FIX, said("I fix it now."), user("Go")], session_id="s").session == first.session
    assert world.ask([OTHER, said("I write it now."), user("Go")], session_id="s").session == second.session


def test_conversations_that_take_turns_under_one_id_are_told_apart():
    world = World()
    one, two = [FIX], [OTHER]
    sessions = []
    for at in range(4):
        pair = []
        for history in (one, two):
            turn = world.ask(history, session_id="s")
            text = f"Answer {at} of {history[0]['content']}"
            world.answer(turn, text)
            history += [said(text), user("Go on")]
            pair.append(turn.session)
        sessions.append(pair)
    assert sessions[0][0] == sessions[0][1], "nothing tells yet"
    assert sessions[-1][0] != sessions[-1][1]
    assert sessions[-1] == sessions[-2]


def test_a_new_conversation_under_a_harness_id_is_no_group():
    world = World()
    first = world.answered([FIX], "It is fixed now.", session_id="s")
    cleared = world.ask([OTHER], session_id="s")
    world.answer(cleared, "It is written now.")
    again = world.ask([OTHER, said("It is written now."), user("More")], session_id="s")
    assert first.session == cleared.session == again.session
    assert first.thread != cleared.thread == again.thread


def test_our_own_header_is_never_a_group():
    world = World()
    turns = [world.ask([task], x_turnpike_session="s", after=0) for task in (FIX, OTHER)]
    assert turns[0].session == turns[1].session and turns[0].thread != turns[1].thread


# --- forks and rewinds -----------------------------------------------------------------------------


def test_a_second_branch_while_the_first_runs_is_a_fork():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")))
    branch = world.ask([*messages, user("Do it differently")])
    assert (branch.session, branch.edge, branch.parent) == (turn.session, Edge.FORKS, "1")
    assert branch.thread != turn.thread
    world.answer(turn, "Done the one way.")
    done = "Done the other way: the parser is as it was, and whoever calls it looks at the result first."
    world.answer(branch, done)
    other = [*messages, user("Do it differently"), said(done), user("Go")]
    assert world.ask(other).thread == branch.thread
    assert world.ask([*messages, said("Done the one way."), user("Go")]).thread == turn.thread


def test_a_second_branch_after_the_first_rests_is_a_rewind():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")), ("All done.",))
    back = world.ask([*messages[:3], user("Do it differently")])
    assert (back.thread, back.edge, back.parent) == (turn.thread, Edge.REWINDS, "1")


def test_a_handoff_keeps_the_conversation():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa", "transfer")))
    world.leave(turn)
    other = world.ask(messages, system="You are billing.", tools=[{"type": "function", "name": "refund"}])
    assert (other.session, other.thread) == (turn.session, turn.thread)


# --- other protocols -------------------------------------------------------------------------------


def test_claude_with_its_moving_cache_marks():
    world = World()
    block = {"type": "text", "text": FIX["content"], "cache_control": {"type": "ephemeral"}}
    ids = {"metadata": {"user_id": json.dumps({"session_id": "s"})}}
    first = world.ask([{"role": "user", "content": [block]}], path="messages", system="", body=ids)
    world.answer(first, "Step 0.", call("toolu_aaaaaaaaaaaa"))
    use = {"type": "tool_use", "id": "toolu_aaaaaaaaaaaa", "name": "bash", "input": {}}
    came = {"type": "tool_result", "tool_use_id": "toolu_aaaaaaaaaaaa", "content": "ok"}
    history = [
        {"role": "user", "content": [{"type": "text", "text": FIX["content"]}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Step 0."}, use]},
        {"role": "user", "content": [{**came, "cache_control": {"type": "ephemeral"}}]},
    ]
    for body in (ids, None):
        turn = world.ask(history, path="messages", system="", body=body)
        assert (turn.session, turn.thread, turn.parent) == (first.session, first.thread, first.turn)
        world.answer(turn, "Fine.")
