"""The queue of a pool: classes and tenants."""

import itertools

from gateway.admission.classes import ServiceClass
from gateway.admission.fair_share import FairShare, FairShareConfig
from gateway.admission.packing import Entry, PackingConfig
from gateway.admission.queue import SessionQueue
from gateway.domain.ids import SessionId, TenantId
from tests.admission import applicants

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE
numbers = itertools.count()


def make(**packing) -> tuple[SessionQueue, FairShare]:
    fair = FairShare(FairShareConfig())
    return SessionQueue(PackingConfig(order="arrival", **packing), fair, 10.0), fair


def entry(name: str, tenant="t", **fields) -> Entry:
    return applicants.entry(name, tenant, arrived=float(next(numbers)), **fields)


def next_of(queue: SessionQueue, *, now=0.0, may=lambda tenant: True) -> str:
    entry = queue.next(may, is_cpu_bound=False, now=now)
    return entry.session if entry is not None else ""


def test_the_most_entitled_tenant_is_first():
    queue, fair = make()
    for name, tenant in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c")):
        queue.put(entry(name, tenant), REACTIVE)
    fair.hold(TenantId("a"), 2.0)
    fair.hold(TenantId("b"), 1.0)
    assert next_of(queue) == "c1"
    assert next_of(queue, may=lambda tenant: tenant != "c") == "b1"
    assert next_of(queue, may=lambda tenant: tenant == "a") == "a1"
    assert len(queue) == 4 and SessionId("a2") in queue
    assert queue.get(SessionId("a2")) and queue.get(SessionId("x")) is None


def test_a_bounded_number_of_tenants_is_looked_at():
    queue, _ = make()
    for number in range(1000):
        queue.put(entry(f"s{number}", f"t{number}"), REACTIVE)
    looked_at: list[TenantId] = []

    def may(tenant: TenantId) -> bool:
        looked_at.append(tenant)
        return True

    next_of(queue, may=may)
    assert len(looked_at) == 32
    assert len(list(queue.some(10))) == 10
    assert [each.session for each in queue.some(3)] == ["s0", "s1", "s2"]


def entered_before(queue: SessionQueue, fair: FairShare, name: str, *, at_most: int) -> int:
    """How many of ever new tenants enter before the session does, one a second."""
    for count in range(at_most):
        now = 100.0 + count
        queue.put(entry(f"new-{count}", f"new-{count}", since=now), REACTIVE)
        chosen = queue.next(lambda _: True, is_cpu_bound=False, now=now)
        assert chosen is not None
        queue.take(chosen.session)
        queue.entered(chosen, now=now)
        if chosen.session == name:
            return count
        fair.hold(chosen.tenant, 1.0)
    return at_most


def test_newcomers_of_ever_new_tenants_pass_nobody_for_good():
    queue, fair = make(starved_s=50, patience=4)
    fair.hold(TenantId("a"), 1.0)
    fair.hold(TenantId("b"), 1.0)
    queue.put(entry("waits", "a"), REACTIVE)
    assert entered_before(queue, fair, "waits", at_most=300) == 4


def test_but_who_holds_far_more_than_its_share_waits():
    queue, fair = make(starved_s=50, patience=4)
    fair.hold(TenantId("a"), 30.0)
    queue.put(entry("waits", "a"), REACTIVE)
    assert entered_before(queue, fair, "waits", at_most=30) == 30


def test_proactive_ones_wait_for_reactive_ones_until_they_have_aged():
    queue, _ = make()
    queue.put(entry("back", "a"), PROACTIVE)
    queue.put(entry("gone", "a"), PROACTIVE)
    assert next_of(queue) == "back"
    queue.put(entry("front", "b"), REACTIVE)
    assert next_of(queue) == "front"
    queue.take(SessionId("gone"))
    queue.age(now=9.9)
    assert next_of(queue) == "front"
    queue.age(now=10.0)
    assert (back := queue.get(SessionId("back"))) and back.is_aged
    queue.take(SessionId("back"))
    assert next_of(queue) == "front" and len(queue) == 1
    queue.take(SessionId("front"))
    assert next_of(queue) == ""


def test_what_ages_is_forgotten_with_what_waits():
    queue, _ = make()
    for number in range(300):
        queue.put(entry(f"s{number}"), PROACTIVE)
        queue.take(SessionId(f"s{number}"))
    assert len(queue._ageing_heap) <= 66


def test_the_usual_wait_is_that_of_those_that_entered():
    queue, _ = make()
    for number in range(20):
        waiting = entry(f"s{number}", since=float(number))
        queue.put(waiting, REACTIVE)
        queue.entered(queue.take(waiting.session), now=number + 5.0)
    assert 4.0 < queue.usual_wait_s <= 5.0


def test_where_everybody_waits_long_nobody_starves_soon():
    queue, fair = make(starved_s=10.0, patience=3.0)
    for number in range(20):
        waiting = entry(f"s{number}", since=float(number))
        queue.put(waiting, REACTIVE)
        queue.entered(queue.take(waiting.session), now=number + 50.0)
    usual_s = queue.usual_wait_s
    for name in "xyz":
        queue.put(entry(name, since=200.0), REACTIVE)
        queue.entered(queue.take(SessionId(name)), now=200.0 + usual_s)
    fair.hold(TenantId("t"), 1.0)
    queue.put(entry("old", since=0.0), REACTIVE)
    queue.put(entry("new", "u", since=100.0), REACTIVE)
    assert next_of(queue, now=3.0 * usual_s - 1.0) == "new"
    assert next_of(queue, now=3.0 * usual_s + 1.0) == "old"


def test_the_newest_of_the_least_entitled_is_found():
    queue, fair = make()
    assert queue.least_entitled() is None and queue.crowd(TenantId("a")) == 0
    for name, tenant, service_class in (
        ("a1", "a", REACTIVE),
        ("a2", "a", PROACTIVE),
        ("a3", "a", REACTIVE),
        ("b1", "b", REACTIVE),
    ):
        queue.put(entry(name, tenant), service_class)
    assert queue.least_entitled() == "a" and queue.crowd(TenantId("a")) == 3
    assert queue.newest_of(TenantId("a")) is queue.get(SessionId("a2"))  # background work first
    queue.take(SessionId("a2"))
    assert queue.newest_of(TenantId("a")) is queue.get(SessionId("a3"))
    assert queue.newest_of(TenantId("x")) is None
    fair.weights = {TenantId("a"): 4.0}
    assert queue.least_entitled() == "b"
