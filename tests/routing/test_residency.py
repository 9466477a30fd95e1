"""Residency: what is held where, by what was left, found, missed and told."""

import pytest

from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.residency import Residency, ResidencyConfig

A, B = ReplicaId("a"), ReplicaId("b")
ONE = (SessionId("s1"), ThreadId("1"))
TWO = (SessionId("s2"), ThreadId("1"))


class Books:
    def __init__(self, **settings):
        self.residency = Residency(ResidencyConfig(**settings))
        self.seen = set()

    def turn(self, conversation=ONE, replica=A, prompt=1000, cached=0, output=100, agent=7):
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
        opens = conversation not in self.seen
        self.seen.add(conversation)
        self.residency.turn_over(conversation, replica, usage, agent=agent, opens=opens)

    def others(self, tokens, replica=A):
        """So much is computed there meanwhile."""
        self.turn(("other", str(len(self.seen))), replica, prompt=tokens, output=0, agent=0)


def test_what_a_turn_leaves_is_held_where_it_ran():
    books = Books()
    books.turn()
    assert books.residency.held(ONE, A) == books.residency.context(ONE) == 1100
    assert books.residency.held(ONE, B) == books.residency.held(TWO, A) == 0
    assert books.residency.context(TWO) == 0


def test_it_is_gone_when_as_much_was_written_behind_it_as_there_is_room_for():
    books = Books()
    books.residency.has_room_for(A, 100_000)
    books.turn()
    books.others(60_000)
    assert books.residency.held(ONE, A) == 1100
    books.others(10_000)
    assert 0 < books.residency.held(ONE, A) < 1100
    books.others(10_000)
    assert books.residency.held(ONE, A) == 0


def test_the_horizon_follows_what_is_found_and_missed():
    books = Books()
    books.residency.has_room_for(A, 100_000)
    books.turn()
    books.others(90_000)
    assert books.residency.held(ONE, A) == 0
    books.turn(prompt=1200, cached=1100)
    books.others(90_000)
    assert books.residency.held(ONE, A) > 0, "it had been there"
    for _ in range(20):
        books.others(40_000)
        books.turn(prompt=1200, cached=0)
    books.others(50_000)
    assert books.residency.held(ONE, A) == 0, "it has not been"


def test_nothing_is_held_by_a_replica_that_was_lost():
    books = Books()
    books.turn()
    books.residency.told(A, {ONE[0]: 500.0})
    books.residency.lost(A)
    assert books.residency.held(ONE, A) == books.residency.shared(7, A) == 0
    books.residency.told(A, None)
    books.turn(prompt=1200)
    assert books.residency.held(ONE, A) == 1300
    books.residency.lost(ReplicaId("unknown"))


def test_an_engine_that_tells_is_believed():
    books = Books()
    books.turn()
    books.residency.told(A, {ONE[0]: 640.0})
    assert books.residency.held(ONE, A) == 640
    books.residency.told(A, {})
    assert books.residency.held(ONE, A) == 0
    books.turn(TWO)
    assert books.residency.held(TWO, A) == 1100, "it may know it by another name"
    books.residency.told(A, None)
    assert books.residency.held(ONE, A) == 1100


def test_what_an_agents_conversations_share_outlives_them():
    books = Books()
    books.turn(ONE)
    assert books.residency.shared(7, A) == 0, "nobody has found any"
    books.turn(TWO, cached=600)
    assert books.residency.shared(7, A) == 600 and books.residency.shared(7, B) == 0
    books.residency.forget(ONE)
    books.residency.forget(TWO)
    assert books.residency.held(ONE, A) == 0 and books.residency.shared(7, A) == 600


def test_a_server_that_says_nothing_of_its_cache_teaches_nothing():
    books = Books()
    books.residency.turn_over(ONE, A, Usage(), agent=7, opens=True)
    assert books.residency.context(ONE) == 0
    books.turn(cached=None)
    assert books.residency.held(ONE, A) == 1100


def test_the_least_recently_used_are_forgotten():
    books = Books(max_conversations=2)
    books.turn(ONE)
    books.turn(TWO)
    books.turn(ONE)
    books.turn(("s3", "1"))
    assert books.residency.context(TWO) == 0 and books.residency.context(ONE) == 1100


@pytest.mark.parametrize("replicas", ["abcdef"])
def test_it_is_remembered_on_few_replicas(replicas):
    books = Books()
    for replica in replicas:
        books.turn(replica=replica)
    assert [bool(books.residency.held(ONE, replica)) for replica in replicas] == [False] * 2 + [True] * 4
