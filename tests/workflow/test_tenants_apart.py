"""What one tenant does changes nothing of what is known of another."""

from gateway.domain.decision import SessionSource
from tests.workflow.world import GuessingWorld as World
from tests.workflow.world import call, result, said, user

SAME = [user("Fix the login bug of the web shop")]


def test_a_flood_of_one_tenant_is_forgotten_before_anything_of_others():
    world = World(max_sessions=20)
    made = call("call_aaaaaaaaaaaa")
    first = world.ask(SAME, tenant="quiet")
    world.answer(first, "I look.", made)
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
    first = world.ask(SAME, tenant="one")
    world.answer(first, "I look.", made)
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
    first = world.ask([user("in one of them")], body={"prompt_cache_key": "app"})
    world.answer(first, answer)
    history = [user("in one of them"), said(answer), user("And now?")]
    other = world.ask(history, body={"program_id": "app"})
    assert other.session != first.session
    assert world.ask(history, body={"prompt_cache_key": "app"}).session == first.session
