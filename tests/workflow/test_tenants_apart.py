"""What one tenant does changes nothing of what is known of another."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.decision import SessionSource
from gateway.domain.records import StepPredicted
from tests.core.playbook import Playbook
from tests.workflow.world import GuessingWorld as World
from tests.workflow.world import call, result, said, user

SAME = [user("Fix the login bug of the web shop")]


def test_a_flood_of_one_tenant_is_forgotten_before_anything_of_others():
    world = World(max_sessions=20)
    made = call("call_aaaaaaaaaaaa")
    first = world.answered(SAME, "I look.", made, tenant="quiet")
    for at in range(200):
        flood = world.ask([user(f"One shot {at}")], tenant="loud", after=0.01)
        if at % 2:
            world.answer(flood, "Done.")
        else:
            world.refuse(flood)
    again = world.ask([*SAME, said("I look.", made), result("call_aaaaaaaaaaaa")], tenant="quiet")
    assert world.acts_as(again).session == first.session
    kept = [session.tenant for session in world.sessions.newest_first()]
    assert kept.count("loud") == 19 and len(kept) == 20


def test_the_same_bytes_of_two_tenants_never_meet():
    world = World()
    made = call("call_aaaaaaaaaaaa")
    history = [*SAME, said("I look.", made), result("call_aaaaaaaaaaaa")]
    first = world.answered(SAME, "I look.", made, tenant="one")
    other = world.ask(history, tenant="two")
    assert other.source is SessionSource.NEW and other.guess is None
    assert world.acts_as(world.ask(history, tenant="one")).session == first.session


def busy(world: World) -> None:
    """Two programs of the tenant are done, and a third one is at work."""
    for at in range(3):
        turn = world.ask([user(f"Program {at} says something long enough")], system=f"kind {at}", after=0.01)
        if at < 2:
            world.answer(turn, f"answer {at}")


def test_how_many_others_work_does_not_make_a_program_the_only_one():
    world = World()
    busy(world)
    plan = world.ask([user("plan the work")], tools=None, system="planner", after=0.01)
    for at in range(9):
        world.answer(world.ask([user(f"other {at}")], tenant=f"o{at}", after=0.001), "fine")
    world.answer(plan, "Topics: 1, 2, 3")
    step = world.ask([user("totally unrelated")], tools=None, system="writer", after=0.05)
    assert step.source is SessionSource.NEW


def test_two_fields_with_one_id_are_two_groups():
    """An application names the same thing in two fields, for two kinds of runs."""
    world = World()
    for field in ("prompt_cache_key", "program_id"):
        for at in range(2):
            world.ask([user(f"{field} {at}: say something")], body={field: "app"}, after=0.1)
    groups = {session.group for session in world.sessions.newest_first()}
    assert groups == {("t", "prompt_cache_key", "app"), ("t", "thunderagent", "app")}
    answer = "It rains in Paris, and it will rain until the evening, says the office of meteorology there."
    first = world.answered([user("in one of them")], answer, body={"prompt_cache_key": "app"})
    history = [user("in one of them"), said(answer), user("And now?")]
    other = world.ask(history, body={"program_id": "app"})
    assert other.session != first.session
    assert world.ask(history, body={"prompt_cache_key": "app"}).session == first.session


CODE = "```bash\nls\n```"
TURNS = st.tuples(
    st.integers(0, 3),  # whose conversation
    st.sampled_from(["bash", "read", "text", "code", "refused"]),
)


def learner(**workflow: Any) -> World:
    world = World()
    world.play = Playbook(workflow={"progress": {"types": {"min_tasks": 0, "min_steps": 0}}, **workflow})
    return world


def converse(world: World, tenant: str, name: str, told: list[Any], what: str, *, after: float) -> None:
    """One more turn of a conversation; `told` is its history."""
    if told and "tool_calls" in told[-1]:
        told.append({"role": "tool", "tool_call_id": told[-1]["tool_calls"][0]["id"], "content": "ok"})
    else:
        told.append(user(f"Task {name}, part {len(told)}"))
    tools = None if what == "code" else [{"type": "function", "function": {"name": "bash"}}]
    turn = world.ask(told, tools=tools, tenant=tenant, after=after, x_turnpike_session=name)
    if what == "refused":
        told.pop()
        return world.refuse(turn)
    if what in ("text", "code"):
        text = CODE if what == "code" else "Done."
        world.answer(turn, text)
        told.append(said(text))
    else:
        made = call(f"call_{name}{len(told):012d}", what)
        world.answer(turn, "Next.", made)
        told.append(said("Next.", made))
    return None


def predicted_of_one(world: World, other: list[tuple[int, str]]) -> list[Any]:
    """What is said of tenant one's steps, while tenant two does this between them."""
    told: list[Any] = []
    theirs: dict[int, list[Any]] = {}
    for at in range(6):
        for number, what in other[at::6]:
            converse(world, "two", f"b{number}", theirs.setdefault(number, []), what, after=0.0)
        converse(world, "one", "a", told, ("bash", "read", "text")[at % 3], after=1.0 + at)
    ours = {turn.turn for turn in world.play.seen(type(world.ask([user("x")]))) if turn.tenant == "one"}
    fields = StepPredicted.__struct_fields__
    return [
        [getattr(step, field) for field in fields if field not in ("session", "thread", "turn")]
        for step in world.play.seen(StepPredicted)
        if step.turn in ours
    ]


ALONE = predicted_of_one(learner(), [])


@given(st.lists(TURNS, max_size=30))
def test_what_is_predicted_of_one_is_the_same_whatever_another_does(other):
    assert len(ALONE) == 6
    assert predicted_of_one(learner(), other) == ALONE


def test_what_is_learned_is_shared_if_the_operator_says_so():
    other = [(number % 4, "text") for number in range(30)]
    assert predicted_of_one(learner(share_learned=True), other) != ALONE


def test_many_short_lies_of_one_tenant_end_nothing_of_another():
    """Else the pause for its first tool would be taken for its end."""
    kept = []
    for lies in (0, 60):
        world = World()
        for at in range(lies):
            lie = world.ask([user(f"Task {at}")], tenant="loud", after=0.01)
            world.answer(lie, "Next.", call(f"call_{at:012d}"))
        world.play.now += 400 - 0.01 * lies
        for at in range(40):
            world.answer(world.ask([user(f"Later {at}")], tenant="loud", after=0.1), "Done.")
        first = world.answered(SAME, "I look.", call("call_aaaaaaaaaaaa"), tenant="quiet")
        known = world.play.brain.sessions.conversations
        thread: Any = known.thread(first.thread) if first.thread is not None else None
        found: Any = known.predict(thread)
        kept.append(found)
    assert kept[0] == kept[1] and kept[0].ends == pytest.approx(0.05)
