"""A guess causes nothing: whoever acts hears of a session of the turn's own, and of no other."""

from functools import partial
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain import records as rec
from gateway.domain.decision import SessionRef
from gateway.domain.fleet import Abilities
from gateway.routing.placement_policy import Query
from gateway.server.proxy.decision_headers import receipts
from tests.workflow.world import GuessingWorld as World
from tests.workflow.world import call, result, said, user

GREETING = "Hello! How can I help you today?"
LOOKS = ("open_calls", "ready_calls")
ACTIONS = ("admission", "placement", "conversations", "tools")


def listen(world: World) -> list[tuple[str, str]]:
    """What policies are asked and told from now on: the part, and everything that it was given."""
    brain: Any = world.play.brain
    heard: list[tuple[str, str]] = []
    parts = (brain.admission, brain.placement, brain.sessions.conversations, brain.sessions.tools)
    for name, part in zip(ACTIONS, parts, strict=True):
        for method in dir(part):
            if not method.startswith("_") and method not in LOOKS and callable(getattr(part, method)):
                setattr(part, method, partial(_tell, heard, name, getattr(part, method)))
    return heard


def _tell(heard: list[tuple[str, str]], name: str, pass_on: Any, *given: Any, **also: Any) -> Any:
    for each in (*given, *also.values()):
        if isinstance(each, SessionRef):
            heard.append((name, f"{each.session!r} {each.thread!r} {each.parent!r}"))
        elif not isinstance(each, Query):  # which holds a function of the whole request
            heard.append((name, repr(each)))
    return pass_on(*given, **also)


def canned(world: World) -> Any:
    """Somebody is greeted; a stranger's history holds the same greeting."""
    owner = world.answered([user("hi")], GREETING, tools=None)
    return owner, [user("hi"), said(GREETING), user("My flight was cancelled")], {"tools": None}


def counting(world: World) -> Any:
    owner = world.answered([user("Fix the login")], None, call("call_0"))
    return owner, [user("Fix the login"), said(None, call("call_0")), result("call_0")], {}


def replayed(world: World) -> Any:
    made = call("call_aaaaaaaaaaaa")
    messages, owner = world.talk([user("Fix the login")], ("I look.", made))
    return owner, messages, {"agent": "other/2"}


def repeated(world: World) -> Any:
    owner = world.ask([user("What is new?")])
    world.refuse(owner)
    return owner, [user("What is new?")], {}


@pytest.mark.parametrize("scene", [canned, counting, replayed, repeated])
def test_nobody_hears_of_the_session_that_is_guessed(scene):
    world = World()
    owner, history, how = scene(world)
    before = {id(record) for record in world.play.records}
    heard = listen(world)
    stranger = world.ask(history, after=0.5, **how)
    assert stranger.session == owner.session, "else it is no guess"
    acting = world.acts_as(stranger)
    assert (
        acting.session != owner.session and acting.guess is not None and acting.guess.session == owner.session
    )
    world.answer(stranger, "I look into it.", call("call_zzzzzzzzzzzz"))
    foreign = (repr(owner.session), repr(owner.thread))
    for part, told in heard:
        assert not any(name in told for name in foreign), part
    assert {part for part, _ in heard} == set(ACTIONS), "all of them were listened to"
    for record in world.play.records:
        if id(record) not in before and not isinstance(record, rec.TurnArrived):
            assert getattr(record, "session", None) != owner.session, record


@pytest.mark.parametrize("scene", [canned, counting, replayed, repeated])
def test_no_receipt_header_or_hint_names_the_session_that_is_guessed(scene):
    world = World()
    owner, history, how = scene(world)
    replica = world.play.brain.fleet
    for state in replica:
        replica.came_up(
            type(state.facts)(
                id=state.facts.id,
                pool=state.facts.pool,
                models=state.facts.models,
                abilities=Abilities(turnpike_hints=True, session_header=True),
            ),
            now=world.play.now,
        )
    decisions: list[Dispatch] = []
    handle = world.play.brain.handle

    def tapped(event: ev.Event, *, now: float) -> Any:
        commands = handle(event, now=now)
        decisions.extend(each for each in commands if isinstance(each, Dispatch))
        return commands

    world.play.brain.handle = tapped  # type: ignore[method-assign]
    world.ask(history, after=0.5, **how)
    (decision,) = decisions
    assert decision.session is not None and decision.session.session != owner.session
    shown = receipts(decision) + (decision.hint or "").encode()
    assert owner.session.encode() not in shown.replace(decision.session.session.encode(), b"")


def test_a_stranger_does_not_keep_the_owner_from_going_on():
    """Nor from being recognised: its own answer counts for more than who came first."""
    world = World()
    made = call("call_aaaaaaaaaaaa")
    owner = world.answered([user("Fix the login")], "I look.", made)
    history = [user("Fix the login"), said("I look.", made), result("call_aaaaaaaaaaaa")]
    world.answered(history, "Mine now.", call("call_bbbbbbbbbbbb"), agent="other/2", after=0.1)
    again = world.acts_as(world.ask(history, after=0.1))
    assert (again.session, again.thread, again.parent) == (owner.session, owner.thread, owner.turn)
    (end,) = world.play.seen(rec.ToolEnd)
    assert (end.session, end.turn) == (owner.session, again.turn), "its call ran until its own result came"


def test_the_session_of_a_guess_goes_on_as_itself():
    world = World()
    owner, history, how = replayed(world)
    sub = world.ask(history, **how)
    answer = "It rains in Paris, and it will rain until the evening, says the office of meteorology there."
    world.answer(sub, answer)
    again = world.ask([*history, said(answer), user("And tomorrow?")], **how)
    assert world.acts_as(again).session == world.acts_as(sub).session != owner.session
    assert again.session == owner.session, "and may be a part of the same run"
    acting = world.acts_as(sub).session
    assert acting is not None
    world.play.brain.sessions.finish(acting, now=world.play.now)
    assert world.sessions.get(owner.session) is not None


def test_what_ended_the_owner_of_an_answer_ends_no_guess():
    world = World()
    owner, history, how = canned(world)
    stranger = world.ask(history, **how)
    assert world.play.brain.sessions.finish(owner.session, now=world.play.now)
    world.answer(stranger, "I look.")
    assert world.sessions.get(world.acts_as(stranger).session) is not None


def test_a_guess_that_is_forgotten_leads_nowhere():
    """The turn that it may follow is remembered for longer."""
    world = World()
    made = call("call_aaaaaaaaaaaa")
    history = [user("Fix the login"), said("I look.", made), result("call_aaaaaaaaaaaa")]
    owner = world.answered([user("Fix the login")], "I look.", made)
    thief = world.ask(history, agent="other/2")
    world.answer(thief, "Mine now.")
    stolen = world.acts_as(thief).session
    assert stolen is not None
    world.play.brain.sessions.finish(stolen, now=world.play.now)
    later = world.acts_as(world.ask([*history, said("Mine now."), user("Go on")], agent="other/2"))
    assert later.guess is not None and later.guess.session == owner.session, "not the forgotten one"
    assert later.session not in (stolen, owner.session)
    world.play.brain.sessions.finish(owner.session, now=world.play.now)
    world.ask(history, agent="other/2")
