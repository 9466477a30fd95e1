"""Who goes before whom in a stock engine, and for how long."""

import random

from gateway.domain.ids import ReplicaId, RequestId
from gateway.workflow.engine_order import BEHIND, FIRST, MAX_WAIT_S, EngineOrder

A, B = ReplicaId("a"), ReplicaId("b")


def test_what_can_wait_goes_behind():
    order = EngineOrder()
    assert order.submitted(RequestId("r"), A, False, now=0.0) == FIRST == 0
    assert order.submitted(RequestId("s"), A, True, now=0.0) == BEHIND > FIRST


def test_nobody_is_overtaken_for_ever():
    order = EngineOrder()
    order.submitted(RequestId("old"), A, True, now=0.0)
    order.submitted(RequestId("new"), A, True, now=20.0)
    assert order.submitted(RequestId("1"), A, False, now=MAX_WAIT_S - 1) == FIRST
    assert order.submitted(RequestId("2"), A, False, now=MAX_WAIT_S) == BEHIND, "equals go by arrival"
    assert order.submitted(RequestId("3"), B, False, now=MAX_WAIT_S) == FIRST, "nobody waits there"
    order.runs(RequestId("old"))
    assert order.submitted(RequestId("4"), A, False, now=MAX_WAIT_S) == FIRST
    assert order.submitted(RequestId("5"), A, False, now=20.0 + MAX_WAIT_S) == BEHIND


def test_who_is_sent_elsewhere_waits_there_alone():
    order = EngineOrder()
    order.submitted(RequestId("r"), A, True, now=0.0)
    order.submitted(RequestId("r"), B, True, now=10.0)
    assert order.submitted(RequestId("s"), A, False, now=MAX_WAIT_S) == FIRST
    assert order.submitted(RequestId("s"), B, False, now=10.0 + MAX_WAIT_S) == BEHIND


def test_nothing_is_kept_of_those_that_run():
    order, rng = EngineOrder(), random.Random(1)
    live: list[RequestId] = []
    for number in range(2_000):
        live.append(RequestId(f"r{number}"))
        replica = rng.choice((A, B))
        order.submitted(live[-1], replica, rng.random() < 0.5, now=float(number))
        if rng.random() < 0.6:
            order.runs(live.pop(rng.randrange(len(live))))
            order.runs(RequestId("nobody"))
    for each in live:
        order.runs(each)
    assert not order._behind and not order._replica
