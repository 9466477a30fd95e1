"""The KV ledger: where conversations live, what is held where, and that the sums are right."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import SessionRef, SessionSource
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.kv_ledger import KvLedger
from gateway.workflow.aeg.graphs import AegConfig, Graphs

A, B = ReplicaId("a"), ReplicaId("b")
ONE = (SessionId("s1"), ThreadId("1"))
TWO = (SessionId("s2"), ThreadId("1"))


def ref(session: str, thread: str = "1") -> SessionRef:
    return SessionRef(
        session=SessionId(session), thread=ThreadId(thread), source=SessionSource.NEW, confidence=0.5
    )


class Books:
    def __init__(self, most: int = 100):
        self.graphs = Graphs(AegConfig())
        self.ledger = KvLedger(most, self.graphs)
        self.residency_reported = self.ledger.residency_reported

    def turn(self, conversation=ONE, replica=A, prompt=1000, cached=0, output=100, agent=0):
        self.ledger.settle(ref(*conversation), replica, agent=AgentKey(TenantId("t"), agent))
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
        self.ledger.turn_over(conversation, replica, usage)

    def others(self, tokens, replica=A):
        self.turn(("other", "1"), replica, prompt=tokens, output=0)


def test_what_a_turn_leaves_is_held_where_it_ran():
    books = Books()
    books.turn()
    assert books.ledger.held(ONE, A) == books.ledger.context(ONE) == 1100
    assert books.ledger.held(ONE, B) == books.ledger.held(TWO, A) == books.ledger.context(TWO) == 0
    books.turn(replica=B, prompt=1200)
    assert (books.ledger.held(ONE, A), books.ledger.held(ONE, B)) == (1100, 1300)
    assert books.ledger.sums(A).sessions == 0 and books.ledger.sums(B).held == 1300, "it lives there now"


def test_it_is_gone_when_as_much_was_written_behind_it_as_there_is_room_for():
    books = Books()
    books.ledger.engine_reported(A, EngineSignals(kv_tokens=100_000))
    books.turn()
    books.others(60_000)
    assert books.ledger.held(ONE, A) == 1100
    books.others(10_001)
    assert books.ledger.held(ONE, A) == 0


def test_what_was_found_is_not_written_again():
    books = Books()
    books.ledger.engine_reported(A, EngineSignals(kv_tokens=100_000))
    books.turn()
    for _ in range(9):
        books.turn(TWO, prompt=50_000, cached=49_900)
    assert books.ledger.held(ONE, A) == 1100
    books.turn(TWO, prompt=160_000, cached=None)
    assert books.ledger.held(ONE, A) == 0, "half of it, for all we know"


def test_of_prompts_that_change_no_more_is_expected_than_is_found_nor_of_others_of_their_type():
    books, new, other = Books(), (SessionId("new"), ThreadId("1")), (SessionId("other"), ThreadId("1"))
    for turn in range(4):
        for conversation in (ONE, TWO):
            books.turn(conversation, cached=300 if turn else 0, agent=1)
    left = books.ledger.held(ONE, A, if_nothing_was_evicted=True)
    assert left == books.ledger.held(ONE, A) == pytest.approx(300, abs=40)
    books.turn(new, agent=1)
    books.turn(other, agent=2)
    for cached in (0, 300):
        books.ledger.settle(ref("adopted"), A)  # another gateway's: whose it is is not known
        books.ledger.turn_over(
            (SessionId("adopted"), ThreadId("1")), A, Usage(prompt_tokens=1000, cached_tokens=cached)
        )
    assert UNKNOWN_AGENT not in [graph.agent for graph in books.graphs], "it would teach all tenants"
    assert books.ledger.held(new, A) == pytest.approx(510, abs=60) and books.ledger.held(other, A) == 1100


def test_nothing_is_held_by_a_replica_that_was_lost():
    books = Books()
    books.turn()
    books.ledger.replica_lost(A)
    assert books.ledger.held(ONE, A) == 0
    books.turn()
    books.residency_reported(A, {ONE[0]: 500.0})
    books.ledger.replica_lost(A)
    assert books.ledger.held(ONE, A) == 0
    books.turn(prompt=1200)
    assert books.ledger.held(ONE, A) == 0, "its engine has not said so yet"
    books.residency_reported(A, None)
    assert books.ledger.held(ONE, A) == 1300
    books.ledger.replica_lost(ReplicaId("unknown"))


def test_an_engine_that_tells_is_believed():
    books = Books()
    books.turn()
    books.residency_reported(A, {ONE[0]: 640.0})
    assert books.ledger.held(ONE, A) == 640
    books.residency_reported(A, {})
    assert books.ledger.held(ONE, A) == 0
    books.turn(TWO)
    assert books.ledger.held(TWO, A) == 1100, "it may know it by another name"
    books.residency_reported(A, None)
    assert books.ledger.held(ONE, A) == 1100


def test_of_few_sessions_it_is_remembered_that_an_engine_named_them():
    books = Books(2)
    books.turn()
    for name in ("s1", "s2", "s3", "s4"):
        books.residency_reported(A, {SessionId(name): 640.0})
    assert len(books.ledger.replicas[A].named) == 2
    assert books.ledger.held(ONE, A) == 1100, "not that it named this one"


def test_a_server_that_says_nothing_teaches_nothing():
    books = Books()
    books.ledger.settle(ref(*ONE), A)
    books.ledger.turn_over(ONE, A, Usage())
    assert books.ledger.context(ONE) == 0
    books.turn(cached=None)
    assert books.ledger.held(ONE, A) == 1100


def test_a_prompt_that_went_ahead_is_held_there_but_lives_at_home():
    books = Books()
    books.turn()
    books.ledger.turn_over(ONE, B, Usage(prompt_tokens=1000, cached_tokens=0, output_tokens=1))
    assert books.ledger.held(ONE, B) == 1001
    assert books.ledger.sums(A).held == 1100 and books.ledger.sums(B).sessions == 0


def test_a_turn_of_a_session_that_is_over_is_held_by_nobody():
    books = Books()
    books.turn()
    books.ledger.session_ended(ONE[0])
    books.ledger.turn_over(ONE, A, Usage(prompt_tokens=1000))
    assert books.ledger.context(ONE) == 0 and not books.ledger.sessions_at


def test_memory_is_bounded_and_the_oldest_goes_first():
    books = Books(2)
    for conversation in (ONE, TWO, ONE, (SessionId("s3"), ThreadId("1"))):
        books.turn(conversation)
    assert books.ledger.sessions_at == {"a": 2}
    assert books.ledger.home(ref(*TWO)) is None and books.ledger.context(TWO) == 0
    assert books.ledger.home(ref(*ONE)) == "a" and books.ledger.context(ONE) == 1100


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["settle", "turn", "end", "silence"]),
            st.sampled_from("stuv"),
            st.sampled_from("12"),
            st.sampled_from("abc"),
            st.integers(1, 100_000),
        ),
        max_size=60,
    )
)
def test_the_books_balance(steps):
    ledger, now = KvLedger(5), 0.0
    for what, session, thread, replica, tokens in steps:
        match what:
            case "end":
                ledger.session_ended(SessionId(session))
            case "silence":
                now += 200.0
                ledger.pass_time(now=now)
            case "turn":
                usage = Usage(prompt_tokens=tokens, output_tokens=1)
                ledger.turn_over((SessionId(session), ThreadId(thread)), ReplicaId(replica), usage)
            case _:
                ledger.settle(ref(session, thread), ReplicaId(replica), now=now)
        assert len(ledger._conversations) <= 5
        expected = [each for each in ledger._sessions.values() if each.works is not None]
        homes = [ledger._conversations[each.first].home for each in expected]
        assert ledger.sessions_at == Counter(homes)
        for name in "abc":
            there = [each for each, home in zip(expected, homes, strict=True) if home == name]
            sums = ledger.sums(ReplicaId(name))
            assert sums.held == pytest.approx(sum(each.tokens for each in there))
            assert sums.wanted == pytest.approx(sum(max(each.tokens, each.grows_to) for each in there))
        for name, each in ledger._sessions.items():
            assert all((name, thread) in ledger._conversations for thread in each.others or ())
