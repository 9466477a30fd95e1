"""Session identity: which turns belong together, and how little is enough to forget them."""

import pytest

from gateway.domain.decision import SessionSource
from gateway.domain.ids import SessionId, TenantId
from gateway.workflow.sessions import Sessions, SessionsConfig
from tests.core.playbook import facts, stated

T, OTHER = TenantId("t"), TenantId("other")


def sessions(**settings) -> Sessions:
    return Sessions(SessionsConfig(**settings), id_prefix="p")


def turn(book, *, tenant=T, state_session=None, now=0.0, **fields):
    return book.identify(tenant, facts(**fields), state_session, now=now)


def explicit(book, session, *, tenant=T, now=0.0, **fields):
    return turn(book, tenant=tenant, now=now, explicit=stated(session, **fields))[0]


# --- who is this ---------------------------------------------------------------------------------


def test_a_turn_that_nothing_links_starts_a_session():
    book = sessions()
    first, ref = turn(book)
    second, _ = turn(book)
    assert first is not second
    assert ref.session == first.id == "s-p1" and ref.source is SessionSource.NEW and ref.confidence < 1


@pytest.mark.parametrize(
    ("schema", "source"),
    [("codex", SessionSource.CLIENT_ID), ("x-turnpike-session", SessionSource.TURNPIKE_HEADER)],
)
def test_a_stated_id_names_the_session(schema, source):
    book = sessions()
    first, _ = turn(book, explicit=stated("x", schema=schema))
    again, ref = turn(book, explicit=stated("x", schema=schema))
    assert again is first and ref.source is source


def test_ids_of_other_tenants_schemas_and_threads_are_other_sessions():
    book = sessions()
    found = [
        explicit(book, "x"),
        explicit(book, "x", tenant=OTHER),
        explicit(book, "x", schema="claude-code"),
        explicit(book, "x", thread="sub"),
        explicit(book, "y"),
    ]
    assert len({session.id for session in found}) == 5


def test_what_the_client_states_wins_over_what_it_echoes():
    book = sessions()
    minted, _ = turn(book)
    book.learn_call_id(minted, "c1")
    other, ref = turn(book, explicit=stated("x"), echoed_ids=("c1",), state_session=minted.id)
    assert other is not minted and ref.source is SessionSource.CLIENT_ID


def test_state_wins_over_calls():
    book = sessions()
    one, two = turn(book)[0], turn(book)[0]
    book.learn_call_id(one, "c1")
    found, ref = turn(book, echoed_ids=("c1",), state_session=two.id)
    assert found is two and ref.source is SessionSource.STATE_ID
    found, ref = turn(book, echoed_ids=("c1",), state_session=SessionId("forgotten"))
    assert found is one and ref.source is SessionSource.CALL_ID


def test_call_ids_come_back_within_their_tenant_only():
    book = sessions()
    minted, _ = turn(book)
    book.learn_call_id(minted, "c1")
    assert turn(book, echoed_ids=("unknown", "c1"))[0] is minted
    assert turn(book, tenant=OTHER, echoed_ids=("c1",))[1].source is SessionSource.NEW


# --- call ids that are not unique ----------------------------------------------------------------


def test_a_call_id_of_two_sessions_identifies_neither():
    book = sessions()
    one, two = turn(book)[0], turn(book)[0]
    for session in (one, two, two):
        book.learn_call_id(session, "call_0")
    assert turn(book, echoed_ids=("call_0",))[1].source is SessionSource.NEW


def test_it_stays_so_while_one_of_them_remembers_it():
    book = sessions()
    one, two, three, four = (turn(book)[0] for _ in range(4))
    for session in (one, two, three):
        book.learn_call_id(session, "call_0")
    book.forget(one)
    book.forget(two)
    book.learn_call_id(four, "call_0")
    assert turn(book, echoed_ids=("call_0",))[1].source is SessionSource.NEW, "it may mean three or four"
    book.forget(three)
    book.forget(four)
    fresh, _ = turn(book)
    book.learn_call_id(fresh, "call_0")
    assert turn(book, echoed_ids=("call_0",))[0] is fresh


def test_call_ids_are_bounded_the_oldest_go_first():
    book = sessions(max_call_ids=2)
    session, _ = turn(book)
    for call in ("c1", "c2", "c1", "c3"):
        book.learn_call_id(session, call)
    assert list(session.call_ids) == ["c1", "c3"]
    assert turn(book, echoed_ids=("c2",))[0] is not session
    assert turn(book, echoed_ids=("c1",))[0] is session


# --- parents -------------------------------------------------------------------------------------


def test_a_thread_is_a_child_of_its_session():
    book = sessions()
    main = explicit(book, "x")
    assert explicit(book, "x", thread="sub").parent == main.id


def test_a_parent_is_named_by_thread_before_session():
    book = sessions()
    explicit(book, "x")
    thread = explicit(book, "x", thread="one")
    other = explicit(book, "y")
    assert explicit(book, "x", thread="two", parent="one").parent == thread.id
    assert explicit(book, "z", parent="y").parent == other.id
    assert explicit(book, "w", parent="unknown").parent is None


def test_nobody_is_their_own_parent():
    book = sessions()
    assert explicit(book, "x", parent="x").parent is None
    assert explicit(book, "x", thread="sub", parent="sub").parent == explicit(book, "x").id


# --- forgetting ----------------------------------------------------------------------------------


def test_an_idle_session_is_forgotten_and_with_it_all_that_led_to_it():
    book = sessions(idle_s=60)
    session = explicit(book, "x")
    book.learn_call_id(session, "c1")
    assert book.next_expiry_s() == 60
    assert book.expire(now=59.9) == []
    assert book.expire(now=60) == [(session, "idle")]
    assert len(book) == 0 and book.get(session.id) is None and book.next_expiry_s() is None
    assert not book._by_call and not book._by_explicit
    assert explicit(book, "x") is not session


def test_too_many_sessions_the_least_recently_seen_go():
    book = sessions(max_sessions=2)
    one, two, three = (turn(book)[0] for _ in range(3))
    book.touch(one, now=1)
    assert book.expire(now=1) == [(two, "evicted")]
    assert list(book.newest_first()) == [one, three]


def test_a_session_with_a_live_turn_is_never_forgotten():
    book = sessions(idle_s=60, max_sessions=1)
    one, two = turn(book)[0], turn(book)[0]
    one.live_turns = two.live_turns = 1
    assert book.expire(now=100) == []
    assert book.next_expiry_s() == 160
    one.live_turns = 0
    assert book.expire(now=100) == [(one, "evicted")]


def test_forgetting_many_takes_several_goes():
    book = sessions(idle_s=1)
    for _ in range(100):
        turn(book)
    assert len(book.expire(now=5)) == 64
    due = book.next_expiry_s()
    assert due is not None and due <= 5
    assert len(book.expire(now=5)) == 36
