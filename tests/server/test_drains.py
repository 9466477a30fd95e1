"""The last word on a replica counts at all gateways, whatever each of them missed."""

from collections.abc import Mapping

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId
from gateway.server.drains import Drain, Drains

X, Y = ReplicaId("x"), ReplicaId("y")


class Gateways:
    """Some, and what stands in their store."""

    def __init__(self, count: int, members: tuple[ReplicaId, ...] = (X, Y)) -> None:
        self.store: dict[ReplicaId, Drain] = {}
        self.members = [set(members) for _ in range(count)]
        self.draining: list[dict[ReplicaId, bool]] = [{} for _ in range(count)]
        self.drains = [self._make(number) for number in range(count)]

    def _make(self, number: int) -> Drains:
        def take(event: ev.Event) -> None:
            assert isinstance(event, ev.ReplicaDrained)
            self.draining[number][event.replica] = event.is_draining

        return Drains(self.members[number], take)

    def tell(self, *numbers: int) -> None:
        for number in numbers:
            missing: Mapping[ReplicaId, Drain | None] = self.drains[number].hear(dict(self.store))
            for replica, drain in missing.items():
                if drain is None:
                    del self.store[replica]
                else:
                    self.store[replica] = drain


def test_who_was_away_cannot_bring_back_what_was_lifted():
    many = Gateways(2)
    many.drains[0].say(X, is_draining=True)
    many.tell(0, 1)
    many.drains[1].say(X, is_draining=False)
    many.tell(1)
    many.tell(0)
    assert many.draining == [{X: False}] * 2 and many.store == {X: Drain(2, False)}


def test_a_store_that_lost_it_gets_it_again_and_one_that_went_back_is_put_right():
    many = Gateways(2)
    many.drains[0].say(X, is_draining=True)
    many.tell(0, 1)
    before = dict(many.store)
    many.drains[0].say(X, is_draining=False)
    many.tell(0, 1)
    for lost in ({}, before):
        many.store = dict(lost)
        many.tell(1, 0)
        assert many.store == {X: Drain(2, False)} and many.draining == [{X: False}] * 2


def test_of_two_words_at_once_the_drain_counts():
    many = Gateways(2)
    many.drains[0].say(X, is_draining=False)
    many.drains[1].say(X, is_draining=True)
    many.tell(0, 1, 0)
    assert many.draining == [{X: True}] * 2


def test_one_that_joins_later_is_drained_at_once():
    many = Gateways(2)
    many.drains[0].say(X, is_draining=True)
    many.members[1].discard(X)
    many.tell(0, 1)
    assert many.draining[1] == {}
    many.members[1].add(X)
    many.drains[1].joined(X)
    assert many.draining[1] == {X: True}


def test_one_that_left_all_gateways_is_forgotten():
    many = Gateways(2)
    many.drains[0].say(X, is_draining=True)
    many.tell(0, 1)
    many.members[0].discard(X)
    many.drains[0].left(X)
    many.tell(0, 1)
    assert many.store == {X: Drain(1, True)}, "it is a member at the other one"
    many.members[1].discard(X)
    many.drains[1].left(X)
    many.tell(1, 0)
    assert many.store == {}
    many.draining[0].clear()
    many.members[0].add(X)
    many.drains[0].joined(X)
    assert many.draining[0] == {}
