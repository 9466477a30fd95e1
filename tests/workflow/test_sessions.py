"""The books of sessions: what is kept, for how long, and that forgetting is graceful."""

import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.decision import Edge, SessionSource
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import RequestFacts
from gateway.domain.session_ids import numbered_ids
from gateway.requests.facts import read_facts
from gateway.responses.response_text import ResponseText
from gateway.wire.endpoints import classify
from gateway.workflow import session_store as shelf
from gateway.workflow.sessions import Sessions, SessionsConfig
from gateway.workflow.turns import Outcome
from tests.core.playbook import answer, facts, stated
from tests.examples import examples
from tests.given_ids import given as given_id
from tests.workflow.world import World, call, result, said, user

T, OTHER = TenantId("t"), TenantId("other")
FIX = user("Please fix the bug in the parser")


class Book:
    """Sessions without a brain around them."""

    def __init__(self, **settings: Any) -> None:
        self.sessions = Sessions(SessionsConfig(**settings), numbered_ids("p"))
        self.count = 0

    def turn(self, *, tenant=T, now=0.0, ends=True, **fields):
        self.count += 1
        request = RequestId(f"r{self.count}")
        session, ref = self.sessions.arrived(request, tenant, facts(**fields), now=now)
        if ends:
            self.sessions.ended(request, answer(), Outcome.ANSWERED, now=now)
        return session, ref


def test_the_newest_names_of_twins_are_remembered_and_no_more(monkeypatch):
    monkeypatch.setattr(shelf, "MAX_TWINS", 8)
    sessions = Book().sessions
    for name in range(100):
        sessions.twins_found([name])
    assert all(sessions._twins.get(name) for name in range(96, 100)) and len(sessions._twins) <= 8


def test_sessions_and_threads_are_named():
    book = Book()
    session, ref = book.turn()
    assert ref.session == session.id == "s-p1" and ref.thread == "s-p1.1" and ref.edge is Edge.OPENS
    assert ref.source is SessionSource.NEW and ref.confidence == 0.5
    assert list(book.sessions.newest_first()) == [session] and book.sessions.get(session.id) is session


def test_what_never_arrived_neither_learns_nor_ends():
    book = Book()
    book.sessions.learn_id(RequestId("r9"), "call_x", is_call=True)
    book.sessions.ended(RequestId("r9"), None, Outcome.FAILED, now=0)
    assert len(book.sessions) == 0


def test_ids_of_an_answer_are_bounded_the_oldest_go_first():
    book = Book(max_call_ids=2)
    session, _ = book.turn(ends=False)
    for name in ("a", "b", "a", "c"):
        book.sessions.learn_id(RequestId("r1"), given_id(name), is_call=True)
    assert sum(len(turn.minted) for turn in session.log) == 2 and session.log[0].calls == 3
    found = [book.turn(echoed_ids=(name,))[1] for name in "abc"]
    assert [ref.session == session.id for ref in found] == [False, True, False], (
        "the first that goes on is it"
    )
    assert [ref.guess is not None and ref.guess.session == session.id for ref in found] == [
        False,
        False,
        True,
    ]


def test_turns_are_bounded_the_newest_of_each_thread_stay():
    world = World(max_turns=4)
    main = world.answered([FIX], "Step 0.", call("call_maaaaaaaaaaain"), session_id="s", thread_id="main")
    for at in range(9):
        world.answer(world.ask([user(f"Step {at}")], session_id="s", thread_id="sub"), f"Answer number {at}.")
    session = world.sessions.get(main.session)
    assert [turn.thread.name for turn in session.log] == ["main", "sub", "sub", "sub"]
    history = [FIX, said("Step 0.", call("call_maaaaaaaaaaain")), result("call_maaaaaaaaaaain")]
    assert world.ask(history).thread == main.thread


def test_live_turns_are_kept_however_many():
    book = Book(max_turns=2)
    session = [book.turn(explicit=stated("x"), ends=False)[0] for _ in range(3)][-1]
    assert len(session.log) == 3
    book.sessions.ended(RequestId("r1"), answer(), Outcome.ANSWERED, now=0)
    assert [turn.request for turn in session.log] == ["r2", "r3"]


def test_threads_that_clients_name_are_bounded(monkeypatch):
    monkeypatch.setattr("gateway.workflow.session_store.MAX_NAMED", 2)
    world = World()
    for name in "abcd":
        world.ask([FIX], session_id="s", thread_id=name)
    session = world.sessions.get(world.play.session.id)
    assert list(session.named) == ["c", "d"] and session.thread_count == 4


def test_an_idle_session_is_forgotten_and_with_it_all_that_led_to_it():
    world = World(idle_s=60)
    messages, turn = world.talk([FIX], ("Step 0.", call("call_aaaaaaaaaaaa")), x_session_id="s")
    world.answer(turn, "It is all done now, as you wished.")
    world.answer(world.ask([user("A title of it, please")], tools=None, tenant="other"), "Titles are nice.")
    world.play.later(61)
    sessions = world.sessions
    assert len(sessions) == 0 and not sessions._traces and not sessions._by_explicit and not sessions._live
    assert sessions.next_expiry_s() is None
    again = world.ask([*messages, said("It is all done now, as you wished."), user("Go")])
    assert again.source is SessionSource.NEW and again.session != turn.session


def test_too_many_sessions_the_least_recently_seen_go():
    book = Book(max_sessions=2)
    one, two, three = (book.turn()[0] for _ in range(3))
    book.sessions.touch(one, now=1)
    assert book.sessions.expire(now=1) == [(two, "evicted")]
    assert list(book.sessions.newest_first()) == [one, three]


def test_a_session_with_a_live_turn_is_never_forgotten():
    book = Book(idle_s=60, max_sessions=1)
    one, two = book.turn(ends=False)[0], book.turn(ends=False)[0]
    assert book.sessions.expire(now=100) == []
    assert book.sessions.next_expiry_s() == 160
    book.sessions.ended(RequestId("r1"), None, Outcome.FAILED, now=100)
    book.sessions.touch(two, now=101)
    assert book.sessions.expire(now=101) == [(one, "evicted")]


def test_too_many_that_all_live_are_not_looked_at_for_ever():
    """Those of the tenant that holds most go first; the idle time of another passes meanwhile."""
    book = Book(idle_s=60, max_sessions=1)
    for tenant in ("a", "b", "b"):
        book.turn(tenant=TenantId(tenant), ends=False)
    assert book.sessions.expire(now=100) == []
    assert book.sessions.next_expiry_s() == 160


def test_forgetting_many_takes_several_goes():
    book = Book(idle_s=1)
    for _ in range(100):
        book.turn()
    assert len(book.sessions.expire(now=5)) == 64
    due = book.sessions.next_expiry_s()
    assert due is not None and due <= 5
    assert len(book.sessions.expire(now=5)) == 36


def test_an_id_that_another_session_took_over_is_not_taken_from_it():
    book = Book()
    first, _ = book.turn(explicit=stated("x"))
    key = first.explicit_keys[0]
    second, _ = book.turn(explicit=stated("y"))
    book.sessions._by_explicit[key] = second.id
    book.sessions.forget(first)
    assert book.sessions.find_explicit(key) is second


def test_a_parent_that_its_client_names_is_remembered():
    world = World()
    world.ask([FIX], x_session_id="ses_1")
    child = world.ask([FIX], x_session_id="ses_2", x_parent_session_id="ses_1")
    assert list(world.sessions.get(child.session).named) == ["ses_2"]


TASKS = st.sampled_from(["Fix the first bug", "Fix the second bug", "Write the documentation"])
TENANTS = st.sampled_from(["a", "b"])


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_however_runs_interleave_tenants_are_never_merged(data):
    """Runs of several tenants, with the same tasks and the same answers: only minted ids differ."""
    world = World()
    runs: list[dict[str, Any]] = [
        {"tenant": data.draw(TENANTS), "task": data.draw(TASKS), "turns": 0, "seen": []}
        for _ in range(data.draw(st.integers(2, 5)))
    ]
    for run in runs:
        run["history"] = [user(run["task"])]
    for at in data.draw(st.lists(st.integers(0, len(runs) - 1), min_size=4, max_size=20)):
        run = runs[at]
        turn = world.ask(run["history"], tenant=run["tenant"])
        run["seen"].append(turn.session)
        if data.draw(st.integers(0, 4)) == 0:
            continue  # it never ends, and is never continued
        made = call(f"call_{at}_{run['turns']}_aaaaaaaa")
        world.answer(turn, "Step.", made)
        run["turns"] += 1
        run["history"] = [*run["history"], said("Step.", made), result(made["id"])]
    owners: dict[str, set[str]] = {}
    for run in runs:
        for session in run["seen"]:
            owners.setdefault(session, set()).add(run["tenant"])
    assert all(len(tenants) == 1 for tenants in owners.values()), "two tenants in one session"


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=16))
def test_sessions_with_ids_of_their_own_are_never_mixed(order):
    world = World()
    histories = {at: [FIX] for at in range(4)}
    found: dict[int, set[Any]] = {}
    for at in order:
        made = call(f"call_{at}_{len(histories[at])}_aaaaaaaa")
        turn = world.answered(histories[at], "Step.", made)
        histories[at] = [*histories[at], said("Step.", made), result(made["id"])]
        found.setdefault(at, set()).add(turn.session)
    assert all(len(sessions) == 1 for sessions in found.values())
    assert len(set().union(*found.values())) == len(found)


@pytest.mark.slow
def test_a_session_takes_less_than_ten_kilobytes():
    """Of a few hundred; benchmarks/identity.py measures a hundred thousand."""
    sessions, count = Sessions(SessionsConfig(), numbered_ids()), 300
    steps = [[read(at, step) for step in range(9)] for at in range(count)]
    gc.collect()
    tracemalloc.start()
    for at in range(count):
        for step, found in enumerate(steps[at]):
            request = RequestId(f"{at}.{step}")
            sessions.arrived(request, T, found, now=float(at))
            sessions.learn_id(request, given_id(f"call_{at}_{step}_aaaaaa"), is_call=True)
            text = f"I will take step {step} for {at} now"
            utterance = ResponseText(text=hash((at, step)), response_text=text, arguments=())
            sessions.ended(request, answer(utterance=utterance), Outcome.ANSWERED, now=float(at))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sessions) == count and size / count < 10_000


def read(at: int, steps: int) -> RequestFacts:
    messages = [user(f"Please fix bug number {at} in the parser, and then report what you did")]
    for step in range(steps):
        made = call(f"call_{at}_{step}_aaaaaa", x=f"do it {at} {step}")
        messages += [said(f"I will take step {step} for {at} now", made), result(made["id"])]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    return read_facts(classify("POST", "/v1/chat/completions"), [], body)


def test_a_forgotten_session_dies_without_the_garbage_collector():
    """Whose full collections would walk over all the living sessions."""
    book = Book(idle_s=10)
    gc.collect()
    gc.disable()
    try:
        for number in range(50):
            book.turn(now=0.0, echoed_ids=(f"call-{number}",))
        assert len(book.sessions.expire(now=100.0)) == 50
        assert gc.collect() == 0
    finally:
        gc.enable()
