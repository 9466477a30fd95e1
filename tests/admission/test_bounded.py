"""Bounded concurrency: admit, wait, or turn away; and nothing else."""

from typing import Any

from gateway.admission.bounded import BoundedConcurrency
from gateway.domain.decision import Admit, RefusalReason, Wait, WaitReason
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, RequestId, SessionId
from tests.admission.applicants import POOL, A, answered, applicant, config, room

POLICY = BoundedConcurrency(config(max_running_per_replica=2, max_waiting=3, max_waiting_bytes=100))


def ask(*running: int, body_bytes=10, **of_room) -> Any:
    asked = applicant("r", "s", body_bytes=body_bytes)
    return POLICY.ask(asked, room(running=running, **of_room), now=0.0)


def test_one_replica_with_room_is_enough():
    assert ask(2, 1) == Admit()
    assert POLICY.has_room(ReplicaLoad(ReplicaId("a"), 1))
    assert not POLICY.has_room(ReplicaLoad(ReplicaId("a"), 2))


def test_all_are_full():
    assert ask(2, 3) == Wait(reason=WaitReason.CONCURRENCY_FULL)


def test_nobody_overtakes():
    assert ask(0, must_queue=True) == Wait(reason=WaitReason.CONCURRENCY_FULL)


def test_nobody_is_there():
    assert ask().reason is RefusalReason.NO_REPLICA


def test_the_waiting_room_is_bounded_in_turns_and_in_bytes():
    assert isinstance(ask(2, waiting=2, waiting_bytes=90), Wait)
    refused = [ask(2, waiting=3), ask(2, waiting_bytes=91)]
    assert all(each.reason is RefusalReason.QUEUE_FULL for each in refused)
    assert refused[0].retry_after_s != refused[1].retry_after_s


def test_it_takes_no_notice_of_sessions():
    POLICY.turn_over(RequestId("r"), answered(), now=0.0)
    POLICY.session_over(SessionId("s"), now=0.0)
    POLICY.tools_ran(SessionId("s"), ("bash",), 1.0)
    POLICY.tools_run(1)
    POLICY.engine_reported(POOL, A, EngineSignals(kv_tokens=1), now=0.0)
    POLICY.fleet_changed(POOL, [A], now=0.0)
    assert not POLICY.let_in(now=0.0) and not POLICY.displaced() and not POLICY.said
    assert POLICY.next_deadline_s() is None
