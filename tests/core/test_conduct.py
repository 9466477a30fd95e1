"""Prompts that change from turn to turn: found by the real readers, and by nothing that only grows."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.snapshot import take_gauges
from gateway.domain import records as rec
from tests.workflow.world import TOOLS, World, call, result, said, user

TASK = "Fix the bug in price.py, and try it."
LONG = "You are a careful engineer. " * 40
MANY = [{"type": "function", "function": {"name": f"tool_{n}", "description": "x" * 50}} for n in range(8)]
Prompt = Callable[[int], dict[str, Any]]


def clock(n: int) -> dict[str, Any]:
    return {"system": f"{LONG}Now it is 10:00:{n:02}. {LONG}"}


def counter(n: int) -> dict[str, Any]:
    return {"system": f"{LONG}Step {9 + n} of 99. {LONG}"}


def shuffled(n: int) -> dict[str, Any]:
    return {"system": LONG, "tools": random.Random(n).sample(MANY, len(MANY))}


def one_tool(n: int) -> dict[str, Any]:
    new = {"type": "function", "function": {"name": "tool_3", "description": f"asked {n} times"}}
    return {"system": LONG, "tools": [new if each is MANY[3] else each for each in MANY]}


def grown(n: int) -> dict[str, Any]:
    return {"system": LONG, "tools": MANY}


def marked(n: int) -> dict[str, Any]:
    text = [{"type": "text", "text": LONG}, {"type": "text", "text": "Be brief."}]
    text[n % 2]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    return {"system": text}


def dialogue(n: int, task: str = TASK) -> list[dict[str, Any]]:
    items = [user(task)]
    for at in range(n):
        items += [said(f"Step {at}.", call(f"call_of_step_{at}")), result(f"call_of_step_{at}", f"done {at}")]
    return items


def run(prompt: Prompt, turns: int = 4, cached: int | None = 100, **how: Any) -> World:
    world = World()
    for n in range(turns):
        turn = world.ask(dialogue(n), **{**prompt(n), **how})
        usage = 1000 + 100 * n, cached
        world.answer(turn, f"Step {n}.", call(f"call_of_step_{n}"), usage=usage)
    assert len({each.session for each in world.play.seen(rec.TurnArrived)}) == 1
    return world


def conduct(world: World) -> list[tuple[str, int, int, int]]:
    """Where prompts changed: in which part, at what place, how often, and of how many turns."""
    views = take_gauges(world.play.brain, now=0.0).conduct
    return [(each.part, each.at, each.changed, each.turns) for each in views if each.changed]


@pytest.mark.parametrize(
    ("prompt", "part", "at"),
    [(clock, "system", 1024), (counter, "system", 1024), (shuffled, "tool_order", 0), (one_tool, "tools", 3)],
)
def test_what_changes_is_found_with_its_place_and_its_cost(prompt, part, at):
    world = run(prompt, agent="claude-cli/2.1 (x)")
    (view,) = take_gauges(world.play.brain, now=0.0).conduct
    assert (view.client, view.part, view.at) == ("claude-cli", part, at)
    assert (view.turns, view.changed, view.unlinked) == (3, 3, 0)
    assert (view.measured, view.again_tokens) == (
        3,
        900 + 1000 + 1100,
    )  # the prompts before, less what was cached


@pytest.mark.parametrize("prompt", [grown, marked])
def test_nothing_is_found_where_only_messages_are_added(prompt):
    world = run(prompt, turns=6)
    assert take_gauges(world.play.brain, now=0.0).conduct == ()


def test_a_clock_in_the_first_message_is_found():
    world = World()
    for n in range(4):
        turn = world.ask(dialogue(n, f"{TASK} It is 10:0{n}."), x_session_id="one")
        world.answer(turn, f"Step {n}.", call(f"call_of_step_{n}"))
    (view,) = take_gauges(world.play.brain, now=0.0).conduct
    assert (view.part, view.changed) == ("message", 2)  # of the first two nothing stood behind it in both
    assert (view.measured, view.again_tokens) == (0, 0)  # no engine said what it had cached


def summary(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [user("This goes on from a summary: the bug is found, steps 0 to 3 are done."), *items[-2:]]


def first_kept(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [items[0], user("Summary: steps 0 to 3 are done."), *items[-2:]]


def oldest_dropped(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items[4:]


@pytest.mark.parametrize("compact", [summary, first_kept, oldest_dropped])
def test_a_compaction_is_no_change(compact):
    world = run(grown, turns=5, x_session_id="one")
    turn = world.ask(compact(dialogue(5)), **grown(5), x_session_id="one")
    world.answer(turn, "Step 5.", usage=(500, 100))
    assert conduct(world) == []


def test_side_requests_and_sub_agents_are_compared_with_none_of_the_others():
    world = World()
    for n in range(4):
        turn = world.ask(dialogue(n), system=LONG, tools=MANY, x_session_id="one")
        world.answer(turn, f"Step {n}.", call(f"call_of_step_{n}"))
        side = world.ask([user(f"A title for step {n}?")], system="Titles.", tools=None, x_session_id="one")
        world.answer(side, "A title")
    assert conduct(world) == []


@pytest.mark.parametrize("path", ["messages", "responses"])
def test_it_is_found_in_the_other_protocols(path):
    name = "system" if path == "messages" else "instructions"
    world = World()
    for n in range(3):
        items = [
            user(TASK),
            *(each for at in range(n) for each in (said(f"Step {at}."), user(f"Go on {at}."))),
        ]
        body = {name: f"{LONG}Now it is 10:00:{n:02}. {LONG}"}
        turn = world.ask(items, path=path, system="", tools=None, body=body, x_session_id="one")
        world.answer(turn, f"Step {n}.", usage=(1000, 0))
    assert conduct(world) == [("system", 1024, 2, 2)]


def test_instructions_that_change_behind_stored_state_are_found():
    world = World()
    for n in range(3):
        body = {"instructions": f"{LONG}Now it is 10:00:{n:02}.", "store": True}
        body |= {"previous_response_id": f"resp_{n - 1}"} if n else {}
        turn = world.ask([user(f"Go on {n}.")], path="responses", system="", tools=None, body=body)
        world.answer(turn, f"Step {n}.", state=f"resp_{n}")
    assert conduct(world) == [("system", 1024, 2, 2)]


def test_it_is_found_where_the_session_is_but_a_guess():
    world, items = World(), []
    for n in range(4):  # people who chat: no ids, no tools
        items.append(user(f"question {n}, which nobody else would ask"))
        turn = world.ask(items, **clock(n), tools=None)
        world.answer(turn, f"an answer like no other, {n * 7919}", usage=(1000, 0))
        items.append(said(f"an answer like no other, {n * 7919}"))
    (view,) = take_gauges(world.play.brain, now=0.0).conduct
    assert (view.changed, view.unlinked, view.turns, view.again_tokens) == (3, 3, 3, 3000)


def test_what_is_remembered_is_bounded():
    world = World()
    for agent in range(100):
        for n in range(2):
            turn = world.ask(
                dialogue(n, f"{TASK} {agent}"), **clock(n), agent=f"agent{agent}/1", x_session_id=f"s{agent}"
            )
            world.answer(turn, f"Step {n}.", call(f"call_of_step_{n}"), usage=(1000 + agent, 0))
    shown = take_gauges(world.play.brain, now=0.0).conduct
    assert [each.client for each in shown] == [f"agent{n}" for n in range(36, 100)]
    turn = world.ask([user("x")], system="s" * 100_000, tools=[TOOLS[0]] * 900)
    (head,) = [each.main.head for each in world.sessions.newest_first() if each.id == turn.session]
    assert sum(map(len, (head.tools, head.system, head.opening))) <= 4 * (65 + 65 + 4)


def test_a_change_once_is_counted_among_the_turns_that_went_on():
    world = World()
    for n in range(8):
        turn = world.ask(dialogue(n), system=LONG + ("Plan first. " if n < 3 else "Now act. "))
        world.answer(turn, f"Step {n}.", call(f"call_of_step_{n}"))
    assert conduct(world) == [("system", 1024, 1, 7)]


def test_turns_that_nothing_links_are_counted_where_they_bring_an_answer():
    world = World()
    for n in range(4):  # ids are dropped, and what the model said is written anew
        world.answer(world.ask([user(f"{TASK} {n}")], agent="shop/2"), f"An answer, the {n}. of many.")
        items = [user(f"{TASK} {n}"), said(f"what a rewriter made of it, {n * 7919}"), user(f"Go on, {n}")]
        world.answer(world.ask(items, agent="shop/2"), "ok")
    (view,) = take_gauges(world.play.brain, now=0.0).conduct
    assert (view.client, view.unlinked, view.turns) == ("shop", 4, 4)


def test_who_leaves_before_an_answer_is_seen_with_how_long_it_took():
    world = World()
    for n in range(10):
        turn = world.ask([user(f"{TASK} {n}")], agent="impatient/1")
        world.play.now += 60.0 + n / 100
        world.leave(turn)
    turn = world.ask([user(TASK)], agent="impatient/1")
    _ = world.play >> ev.ResponseStarted(turn.turn, 200) >> ev.FirstTokenSeen(turn.turn)
    world.play.now += 5.0
    world.leave(turn)  # it had something: no patience was at its end
    (view,) = take_gauges(world.play.brain, now=0.0).conduct
    assert (view.client, view.left_after_s) == ("impatient", [round(60.0 + n / 100, 2) for n in range(2, 10)])
