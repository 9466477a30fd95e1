"""Which engine of a server with several runs a session's turns."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, SessionId
from gateway.routing.ranks import Ranks
from tests.core.playbook import Playbook, arrived, finished, started, stated

A, B = ReplicaId("a"), ReplicaId("b")


def session(number: int) -> SessionId:
    return SessionId(f"s{number}")


def test_a_session_stays_on_its_rank_and_new_ones_go_where_the_fewest_are():
    ranks = Ranks()
    ranks.replica_has(A, 2)
    assert [ranks.of(session(n), A) for n in (0, 1, 2, 0, 1)] == [0, 1, 0, 0, 1]
    ranks.session_ended(session(0))
    ranks.session_ended(session(2))
    assert [ranks.of(session(n), A) for n in (3, 4, 1)] == [0, 0, 1]


def test_where_there_is_one_engine_nothing_is_said():
    ranks = Ranks()
    ranks.replica_has(A, 1)
    assert ranks.of(session(0), A) is None is ranks.of(session(0), B)


def test_a_server_that_comes_back_with_fewer_ranks_is_asked_for_none_that_it_lacks():
    ranks = Ranks()
    ranks.replica_has(A, 4)
    ranks.replica_has(B, 2)
    for number in range(4):
        assert ranks.of(session(number), A) == number
    ranks.replica_has(A, 2)
    assert {ranks.of(session(number), A) for number in range(4)} == {0, 1}
    ranks.replica_has(A, 1)
    assert ranks.of(session(3), A) is None and ranks.of(session(3), B) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("of"), st.integers(0, 9), st.sampled_from([A, B])),
            st.tuples(st.just("over"), st.integers(0, 9), st.just(A)),
            st.tuples(st.just("has"), st.integers(1, 4), st.sampled_from([A, B])),
            st.tuples(st.just("lost"), st.just(0), st.sampled_from([A, B])),
        ),
        max_size=60,
    )
)
def test_what_is_counted_is_what_is_there(steps):
    ranks = Ranks()
    has = {A: 1, B: 1}
    for what, number, replica in steps:
        match what:
            case "of":
                rank = ranks.of(session(number), replica)
                assert (rank is None) == (has[replica] == 1)
                assert rank is None or 0 <= rank < has[replica]
            case "over":
                ranks.session_ended(session(number))
            case "has":
                ranks.replica_has(replica, number)
                has[replica] = number
            case _:
                ranks.replica_lost(replica)
                has[replica] = 1
        there = Counter(ranks._rank.values())
        assert all(
            there[(replica, rank)] == count
            for replica, counts in ranks.sessions.items()
            for rank, count in enumerate(counts)
        )
        assert sum(there.values()) == sum(map(sum, ranks.sessions.values()))


def test_each_turn_of_a_session_goes_to_the_engine_that_has_its_state():
    play = Playbook(replicas="a")
    _ = play >> ev.EngineReported(A, EngineSignals(ranks=2))
    told = []
    for turn, name in enumerate("stst"):
        arrives = arrived(f"r{turn}", explicit=stated(name, thread="main"))
        command = (play >> arrives).take()
        assert isinstance(command, Dispatch)
        told.append(command.rank)
        _ = play >> ev.EngineReported(A, EngineSignals())  # one that could not be read says nothing of it
        _ = play >> started(f"r{turn}") >> finished(f"r{turn}", f"call_{turn}")
    assert told == [0, 1, 0, 1]
