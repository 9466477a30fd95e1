"""Reasons as sentences."""

from enum import Enum
from typing import Any

import msgspec

from gateway.dashboard.sentences import (
    EDGES,
    PLACEMENTS,
    REFUSALS,
    SOURCES,
    WAITS,
    why_refused,
    why_there,
    why_waited,
)
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import Edge, PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId

POOL, TENANT, SESSION = PoolId("p"), TenantId("t"), SessionId("s")
TURN, A = RequestId("r"), ReplicaId("a")
WINDOW = WindowUpdated(
    at_s=1.0, pool=POOL, sessions=6.0, kv_budget=1000.0, admitted=6, waiting=2, demand=0.0, gpu_pressure=1.25,
    cpu_pressure=0.1, reason="state_lost",
)  # fmt: skip


def wait(reason, waiting=2):
    return rec.TurnWaited(at_s=1.0, turn=TURN, session=SESSION, reason=reason, waiting=waiting)


def test_every_reason_has_a_sentence_and_no_sentence_is_of_none():
    for reasons, sentences in (
        (WaitReason, WAITS),
        (PlacementReason, PLACEMENTS),
        (RefusalReason, REFUSALS),
        (Edge, EDGES),
        (SessionSource, {**SOURCES, "none": ""}),
    ):
        assert {reason.value for reason in reasons} == set(sentences)


def test_waiting():
    assert why_waited([], None, None) == "Nothing has been decided yet."
    assert why_waited([], 0.0, WINDOW).startswith("It did not wait")
    told = why_waited([wait(WaitReason.WINDOW_FULL), wait(WaitReason.CONCURRENCY_FULL, 1)], 12.0, WINDOW)
    assert told == (
        "It waited 12 ms: as many sessions were admitted as the limit allows (`window_full`) (1 more queued)."
        " Then all replicas that could run it were at `max_running_per_replica` (`concurrency_full`) (nobody "
        "else queued). Limit of pool p: 6 sessions, 1,000 KV tokens; 6 active, 2 waiting; last change: "
        "sessions returned, and their KV cache was gone (`state_lost`); GPU pressure 1.25, tool "
        "pressure 0.10."
    )


def test_that_more_may_be_in_than_fit_is_told():
    window = msgspec.structs.replace(WINDOW, overcommit_sessions=True, reason="engines_have_time")
    told = why_waited([wait(WaitReason.WINDOW_FULL)], 12.0, window)
    assert "6 sessions, 1,000 KV tokens, and more that do not fit; 6 active" in told


def test_what_is_newer_is_told_by_its_name():
    class Newer(Enum):
        MOVED_AT_NIGHT = "moved_at_night"

    newer: Any = Newer.MOVED_AT_NIGHT
    routed = rec.Routed(at_s=1.0, turn=TURN, session=SESSION, replica=A, reason=newer, waited_ms=0.0)
    assert why_there(routed, {A: 3}) == "It went to a: moved at night. 3 turns ran there then."
    refused = rec.Refused(
        at_s=1.0, turn=TURN, session=SESSION, tenant=TENANT, reason=RefusalReason.QUEUE_FULL, waited_ms=5.0
    )
    assert why_refused(refused) == "It was refused after 5 ms: the waiting room was full (`queue_full`)."
