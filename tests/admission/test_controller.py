"""Bounded concurrency: admit, wait, or turn away."""

from gateway.admission.controller import AdmissionConfig, BoundedConcurrency, Offer
from gateway.domain.decision import Admit, Refusal, RefusalReason, Wait, WaitReason
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, RequestId

POLICY = BoundedConcurrency(AdmissionConfig(max_running_per_replica=2, max_waiting=3, max_waiting_bytes=100))


def decide(*running: int, must_queue=False, waiting=0, waiting_bytes=0, body_bytes=10):
    offer = Offer(
        request=RequestId("r"),
        body_bytes=body_bytes,
        candidates=[ReplicaLoad(ReplicaId(f"{n}"), load) for n, load in enumerate(running)],
        must_queue=must_queue,
        waiting=waiting,
        waiting_bytes=waiting_bytes,
    )
    return POLICY.decide(offer, now=0.0)


def test_one_replica_with_room_is_enough():
    assert decide(2, 1) == Admit()
    assert POLICY.has_room(ReplicaLoad(ReplicaId("a"), 1))
    assert not POLICY.has_room(ReplicaLoad(ReplicaId("a"), 2))


def test_all_are_full():
    assert decide(2, 3) == Wait(reason=WaitReason.CONCURRENCY_FULL)


def test_nobody_overtakes():
    assert decide(0, must_queue=True) == Wait(reason=WaitReason.CONCURRENCY_FULL)


def test_nobody_is_there():
    refusal = decide()
    assert isinstance(refusal, Refusal) and refusal.reason is RefusalReason.NO_REPLICA


def test_the_waiting_room_is_bounded_in_turns_and_in_bytes():
    assert isinstance(decide(2, waiting=2, waiting_bytes=90), Wait)
    for full in (decide(2, waiting=3), decide(2, waiting_bytes=91)):
        assert isinstance(full, Refusal) and full.reason is RefusalReason.QUEUE_FULL
        assert full.retry_after_s is not None
