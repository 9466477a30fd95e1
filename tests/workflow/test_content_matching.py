"""Which turn a request follows: minted ids, echoes, prefixes, retries (CLIENTS: rules 2 to 6, 13)."""

from typing import Any

import pytest

from gateway.domain.decision import Edge, SessionSource
from tests.workflow.world import TOOLS, call, result, said, user
from tests.workflow.world import GuessingWorld as World

FIX = user("Please fix the bug in the parser")


# --- ids that we minted ----------------------------------------------------------------------------


def test_a_call_that_comes_back_names_its_turn():
    world = World()
    messages, _ = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")))
    last = world.play.seen(type(world.ask([FIX])))[1]
    assert (last.edge, last.source, last.parent) == (Edge.CONTINUES, SessionSource.CALL_ID, "1")
    assert last.confidence == 0.99 and len(messages) == 3


def test_it_does_so_though_everything_else_changed():
    world = World()
    _, first = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa", x=1)))
    kept = [said(None, call("call_aaaaaaaaaaaa", x=1)), result("call_aaaaaaaaaaaa"), user("More")]
    turn = world.ask([user("Summary"), *kept], system="Other.", tools=None, agent="agent/2")
    assert turn.session == first.session


def test_answers_without_calls_may_follow_the_one_that_made_them():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")), ("Done.",))
    again = world.ask([*messages, user("And now?")])
    assert (again.parent, again.edge, again.thread) == (turn.turn, Edge.CONTINUES, turn.thread)


def test_previous_response_ids_lead_back():
    world = World()
    first = world.ask("Weather in Paris?", path="responses")
    world.answer(first, "It is sunny.", state="resp_1234567890abc")
    turn = world.ask("And Rome?", path="responses", body={"previous_response_id": "resp_1234567890abc"})
    assert (turn.session, turn.source, turn.parent) == (first.session, SessionSource.STATE_ID, first.turn)
    assert turn.thread == first.thread


def test_the_same_words_behind_another_response_are_no_retry():
    world, firsts = World(), []
    for state in ("resp_1234567890abc", "resp_2234567890abc"):
        firsts.append(world.ask(f"Begin {state}", path="responses"))
        world.answer(firsts[-1], f"Began {state}.", state=state)
    failed = world.ask("Go on", path="responses", body={"previous_response_id": "resp_1234567890abc"})
    world.refuse(failed)
    turn = world.ask("Go on", path="responses", body={"previous_response_id": "resp_2234567890abc"})
    assert (turn.session, turn.source) == (firsts[1].session, SessionSource.STATE_ID)


def test_counters_as_ids_need_the_conversation_too():
    world = World()
    one, _ = world.talk([user("Fix the first bug")], ("Step 0.", call("call_0")))
    two, second = world.talk([user("Fix the second bug")], ("Step 0.", call("call_0")))
    first_again = world.ask([*one, user("Go on")])
    second_again = world.ask([*two, user("Go on")])
    assert first_again.session != second_again.session == second.session
    stranger = world.ask([user("Another"), said("Hm.", call("call_0")), result("call_0")])
    assert stranger.session not in (first_again.session, second_again.session)


def test_a_counter_of_one_session_is_no_id_either():
    world = World()
    world.talk([FIX], ("Step 0.", call("call_0")))
    stranger = [user("Write the documentation"), said("Hm.", call("call_0")), result("call_0")]
    assert world.ask(stranger).source is SessionSource.NEW
    alone = world.ask([result("call_0")])
    assert alone.source is SessionSource.CALL_ID, "no conversation says otherwise"


def test_counters_in_one_conversation_are_told_apart_by_the_answer():
    world = World()
    for text in ("Let me look around.", "I shall read the parser."):
        world.answer(world.ask([FIX]), text, call("call_0"))
    turn = world.ask([FIX, said("I shall read the parser.", call("call_0")), result("call_0")])
    assert turn.parent == "2" and turn.source is SessionSource.ECHO


def test_twins_whose_counters_and_answers_are_the_same_are_a_choice():
    world = World()
    for _ in range(2):
        world.answer(world.ask([FIX]), "Step 0.", call("call_0"))
    history = [FIX, said("Step 0.", call("call_0")), result("call_0")]
    turns = [world.ask(history, after=0.1), world.ask(history, after=0.1)]
    assert [turn.parent for turn in turns] == ["1", "2"] and turns[0].confidence == 0.6


# --- echoes and prefixes ---------------------------------------------------------------------------


def test_an_answer_behind_its_conversation_is_an_echo():
    world = World()
    first = world.answered([FIX], "It is fixed now.")
    turn = world.ask([FIX, said("It is  fixed now.\n"), user("Thanks")])
    assert (turn.session, turn.source, turn.edge) == (first.session, SessionSource.ECHO, Edge.CONTINUES)


def test_a_prefix_that_a_fleet_shares_links_nobody():
    world = World()
    boilerplate = [user("Here are some examples"), said("I see, thanks.")]
    first = world.answered([*boilerplate, user("Fix the first bug")], "The first is fixed now.")
    second = world.ask([*boilerplate, user("Fix the second bug")])
    assert second.session != first.session and second.source is SessionSource.NEW


def test_identical_openers_are_told_apart_by_their_answers():
    world = World()
    texts = ("I will rewrite it in Rust.", "I will delete all the tests.")
    first = [world.ask([FIX]) for _ in texts]
    for turn, text in zip(first, texts, strict=True):
        world.answer(turn, text)
    assert first[0].session != first[1].session
    for turn, text in reversed(list(zip(first, texts, strict=True))):
        assert world.ask([FIX, said(text), user("Go on")]).session == turn.session


def test_an_opener_with_an_answer_that_nobody_gave_is_nobodys():
    world = World()
    world.answer(world.ask([FIX]), "I will rewrite it in Rust.")
    turn = world.ask([FIX, said("No, I shall not do that."), user("Go on")])
    assert turn.source is SessionSource.NEW


def test_a_chat_may_be_taken_back():
    world = World()
    first = world.answered([FIX], "It is fixed now.")
    world.answer(world.ask([FIX, said("It is fixed now."), user("Thanks")]), "Not at all.")
    again = world.ask([FIX, said("It is fixed now."), user("Is it, really?")])
    assert (again.parent, again.edge, again.thread) == (first.turn, Edge.REWINDS, first.thread)


def test_an_answer_alone_is_recognised_when_its_history_was_cut_off():
    world = World()
    first = world.answered([FIX], "It is fixed now, and tested.")
    assert world.ask([said("It is fixed now, and tested."), user("Go on")]).session == first.session
    world.answer(world.ask([user("Another")]), "It is fixed now, and tested.")
    assert world.ask([said("It is fixed now, and tested."), user("Hm")]).source is SessionSource.NEW


def test_a_client_may_edit_an_answer_of_a_conversation_that_we_know():
    world = World()
    first = world.ask([FIX])
    looked = "I looked at all of it, at the parser and at its tests, and this is what is wrong there."
    world.answer(first, looked)
    history = [FIX, said(looked), user("Go on")]
    second = world.answered(history, "And I have fixed it.")
    turn = world.ask([*history, said("[removed]"), user("More")])
    assert (turn.parent, turn.source) == (second.turn, SessionSource.PREFIX)
    assert turn.confidence < second.confidence


REACT: dict[str, Any] = {"tools": None, "system": "Use Action and Action Input."}
WRONG = user("I did it wrong: an action and a final answer at once")


def test_an_answer_that_the_program_rejects_is_followed_all_the_same():
    world = World()
    first = world.answered([FIX], "Action: ask\nAction Input: {}\nFinal Answer: 7", **REACT)
    second = world.ask([FIX, WRONG], **REACT)
    assert (second.parent, second.edge, second.thread) == (first.turn, Edge.CONTINUES, first.thread)
    answer = "Action: ask\nAction Input: {}"
    world.answer(second, answer)
    history = [FIX, WRONG, said(answer + "\nObservation: 7"), user("Go on")]
    third = world.answered(history, "Action: ask\nAction Input: {}\nFinal Answer: 8", **REACT)
    assert world.ask([*history, WRONG], **REACT).parent == third.turn  # not the one whose answer is there


@pytest.mark.parametrize("how", [{"system": "You judge others."}, {"after": 60.0}, {"tools": TOOLS}])
def test_what_another_asks_or_asks_later_follows_no_rejected_answer(how):
    world = World()
    world.answer(world.ask([FIX], **REACT), "Action: ask\nAction Input: {}")
    assert world.ask([FIX, WRONG], **{**REACT, **how}).source is SessionSource.NEW


def test_twins_that_were_answered_with_the_same_ids_go_on_one_by_one():
    world = World()
    twins = [world.ask([FIX]) for _ in range(2)]
    for turn in twins:
        world.answer(turn, "Step 0.", call("call_aaaaaaaaaaaa"))
    history = [FIX, said("Step 0.", call("call_aaaaaaaaaaaa")), result("call_aaaaaaaaaaaa")]
    went_on = [world.ask(history) for _ in twins]
    assert [turn.session for turn in went_on] == [turn.session for turn in twins]
    assert went_on[0].confidence == 0.6


def test_attempts_merged_into_one_history_follow_the_newest():
    world = World()
    turn = world.ask([FIX])
    world.answer(turn, "Step 1.", call("call_aaaaaaaaaaaa"), cut=True)
    again = world.ask([FIX])
    world.answer(again, "Step 1.", call("call_bbbbbbbbbbbb"))
    both = [call("call_aaaaaaaaaaaa"), call("call_bbbbbbbbbbbb")]
    results = [result(c["id"]) for c in both]
    merged = world.ask([FIX, said("Step 1.Step 1.", *both), *results])
    assert again.edge is Edge.RETRIES and merged.parent == again.turn


def test_answers_in_a_row_follow_the_newest():
    world = World()
    first = world.answered([FIX], "One, and a half.", tools=None)
    second = world.ask([FIX, said("One, and a half.")], tools=None)
    world.answer(second, "Two, or a bit more.")
    third = world.ask([FIX, said("One, and a half."), said("Two, or a bit more.")], tools=None)
    assert (second.parent, third.parent) == (first.turn, second.turn)


def test_an_answer_to_an_empty_conversation_is_known_by_its_agent():
    world = World()
    select = "Select the next role, from: writer, critic."
    first = world.answered([], "I do not know.", system=select, tools=None)
    world.answer(world.ask([], system="Another one altogether.", tools=None, after=9), "I do not know.")
    again = world.ask([said("I do not know."), user("Select!")], system=select, tools=None)
    assert again.session == first.session


# --- retries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["refuse", "leave", "cut", "cut at once"])
def test_the_same_request_after_a_failure_is_a_retry(how):
    world = World()
    first = world.ask([FIX])
    if how == "cut":
        world.answer(first, "Step", cut=True)
    elif how == "cut at once":
        world.answer(first, None, cut=True)
    else:
        getattr(world, how)(first)
    turn = world.ask([FIX], body={"stream": True})
    assert (turn.edge, turn.source, turn.parent) == (Edge.RETRIES, SessionSource.RETRY, first.turn)
    assert (turn.session, turn.thread) == (first.session, first.thread)
    world.refuse(turn)
    assert world.ask([FIX]).parent == turn.turn, "a retry may fail, too"


def test_the_same_request_after_an_answer_is_no_retry():
    world = World()
    first = world.answered([FIX], "It is fixed now.")
    twin = world.ask([FIX])
    assert twin.session != first.session and twin.edge is Edge.OPENS


def test_identical_requests_at_the_same_time_are_no_retries():
    world = World()
    turns = [world.ask([FIX], after=0) for _ in range(3)]
    assert len({turn.session for turn in turns}) == 3


def test_one_failure_is_retried_once():
    world = World()
    first = world.ask([FIX])
    world.refuse(first)
    assert [world.ask([FIX]).edge for _ in range(2)] == [Edge.RETRIES, Edge.OPENS]


def test_a_failure_that_was_continued_is_not_retried():
    world = World()
    first = world.ask([FIX])
    world.answer(first, "Step 0.", call("call_aaaaaaaaaaaa"), cut=True)
    acted = world.ask([FIX, said("Step 0.", call("call_aaaaaaaaaaaa")), result("call_aaaaaaaaaaaa")])
    assert (acted.parent, acted.edge) == (first.turn, Edge.CONTINUES), "its call was executed"
    assert world.ask([FIX]).edge is Edge.OPENS


def test_a_retried_turn_is_continued_at_its_newest_attempt():
    world = World()
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")))
    world.refuse(turn)
    again = world.answered(messages, "Done with all of it.")
    turn = world.ask([*messages, said("Done with all of it."), user("Thanks")])
    assert (turn.parent, turn.edge) == (again.turn, Edge.CONTINUES)


def test_nobody_comes_before_the_moment_that_they_were_told():
    world = World()
    first = world.ask([FIX])
    world.refuse(first, retry_after_s=3)
    assert world.ask([FIX], after=1).edge is Edge.OPENS
    assert world.ask([FIX], after=2).parent == first.turn


def test_of_two_failures_the_one_that_is_due_is_retried():
    world = World()
    early = world.ask([FIX])
    world.refuse(early, retry_after_s=4)
    late = world.ask([FIX], after=1)
    world.refuse(late, retry_after_s=1)
    assert world.ask([FIX], after=1).parent == late.turn
    assert world.ask([FIX], after=2).parent == early.turn


def test_long_waits_are_not_always_obeyed():
    world = World()
    first = world.ask([FIX])
    world.refuse(first, retry_after_s=75)
    assert world.ask([FIX], after=2).parent == first.turn


def test_transports_that_count_say_which_attempt_it_is():
    world = World()
    first = world.ask([FIX], x_stainless_retry_count="0")
    world.refuse(first)
    again = world.ask([FIX], x_stainless_retry_count="1")
    assert again.parent == first.turn
    world.refuse(again)
    assert world.ask([FIX], x_stainless_retry_count="1").edge is Edge.OPENS
    other = world.ask([FIX], x_stainless_retry_count="0")
    assert other.parent == again.turn, "the transport gave up; the application asks anew"
    fresh = world.ask([user("Another")], x_stainless_retry_count="0")
    world.refuse(fresh)
    twin = world.ask([user("Another")], x_stainless_retry_count="0")
    assert twin.edge is Edge.OPENS, "it would have counted"
    world.answer(twin, "Hm, let me", cut=True)
    assert world.ask([user("Another")], x_stainless_retry_count="0").parent == twin.turn


def test_transports_that_never_count_are_believed_nothing():
    world = World()
    first = world.ask([FIX], x_stainless_retry_count="0")
    world.refuse(first)
    assert world.ask([FIX], x_stainless_retry_count="0").parent == first.turn


def test_an_answer_that_ends_in_the_middle_may_be_retried_or_used():
    world = World()
    first = world.ask([FIX])
    world.answer(first, "It is fix", is_whole=False)
    assert world.ask([FIX, said("It is fix"), user("Go on")]).parent == first.turn
    second = world.ask([user("Other")])
    world.answer(second, "It is fix", is_whole=False)
    assert world.ask([user("Other")]).edge is Edge.RETRIES
