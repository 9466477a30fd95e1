"""Transfers share the cards that they pass, and end when arithmetic says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import ReplicaId
from lab.simulator.kernel import Kernel
from lab.simulator.network import Network, Transfer, fair_rates

A, B, C, D = (ReplicaId(name) for name in "abcd")


def transfer(source: ReplicaId, target: ReplicaId, size: float = 1.0) -> Transfer:
    return Transfer(source, target, size, lambda: None)


def test_the_card_with_the_least_for_each_decides_and_the_rest_is_shared():
    cards = {A: 4.0, B: 10.0, C: 10.0, D: 10.0}
    one, two, three = transfer(A, B), transfer(A, C), transfer(D, C)
    assert fair_rates([one, two, three], cards) == {one: 2.0, two: 2.0, three: 8.0}


def test_a_card_sends_and_receives_at_its_full_rate_at_once():
    cards = {A: 4.0, B: 4.0}
    there, back = transfer(A, B), transfer(B, A)
    assert fair_rates([there, back], cards) == {there: 4.0, back: 4.0}


PAIRS = st.lists(
    st.permutations([A, B, C, D]).map(lambda order: (order[0], order[1])), min_size=1, max_size=12
)


@given(PAIRS, st.lists(st.floats(0.5, 20), min_size=4, max_size=4))
def test_no_card_carries_more_than_it_can_and_nobody_could_have_more(pairs, rates):
    cards = dict(zip((A, B, C, D), rates, strict=True))
    transfers = [transfer(*pair) for pair in pairs]
    found = fair_rates(transfers, cards)
    passing: dict[tuple[ReplicaId, bool], list[Transfer]] = {}
    for each in transfers:
        for card in each.cards:
            passing.setdefault(card, []).append(each)
    load = {card: sum(found[each] for each in some) for card, some in passing.items()}
    assert all(load[card] <= cards[card[0]] * (1 + 1e-9) for card in passing)
    for each in transfers:
        full = [card for card in each.cards if load[card] >= cards[card[0]] * (1 - 1e-9)]
        assert any(found[each] >= max(found[other] for other in passing[card]) - 1e-9 for card in full)


def ends(*, latency_s: float = 0.0, called_off: bool = False) -> dict[str, float]:
    """10 bytes from A to B at 0 s, 5 from A to C at 1 s, over cards of 5 bytes a second."""
    kernel = Kernel()
    network = Network({A: 5.0, B: 5.0, C: 5.0}, latency_s=latency_s, kernel=kernel)
    found: dict[str, float] = {}
    first = network.send(A, B, 10.0, lambda: found.update(first=kernel.now))

    def send_second() -> None:
        network.send(A, C, 5.0, lambda: found.update(second=kernel.now))

    kernel.at(1.0, send_second)
    if called_off:
        kernel.at(2.0, network.call_off, first)
    kernel.run()
    assert network.carried_bytes == pytest.approx(12.5 if called_off else 15.0)
    return found


def test_two_share_a_card_while_both_are_under_way():
    assert ends() == {"first": pytest.approx(3.0), "second": pytest.approx(3.0)}


def test_latency_comes_before_the_first_byte():
    assert ends(latency_s=0.5) == {"first": pytest.approx(3.5), "second": pytest.approx(3.5)}


def test_one_that_is_called_off_does_not_end_and_leaves_its_share():
    assert ends(called_off=True) == {"second": pytest.approx(2.5)}


def test_one_that_is_called_off_before_its_first_byte_carries_nothing():
    kernel = Kernel()
    network = Network({A: 5.0, B: 5.0}, latency_s=1.0, kernel=kernel)
    network.call_off(network.send(A, B, 5.0, lambda: pytest.fail("it ended")))
    kernel.run()
    assert network.carried_bytes == 0.0
