"""The stream, counted: the ring, closed labels, histograms, and the Prometheus text of it."""

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from itertools import count
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from gateway.config.telemetry import ObjectiveConfig
from gateway.core.snapshot import Gauges
from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, SessionId, TenantId, ThreadId
from gateway.domain.request import Claims, Protocol, Usage
from gateway.domain.timed_record import TimedRecord
from gateway.telemetry.counts import Counts
from gateway.telemetry.histograms import RATIO, Histogram, growing
from gateway.telemetry.label_slots import IDLE_S, LabelSlots
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.objective import Objective
from gateway.telemetry.reused import Reused
from gateway.telemetry.ring import Ring
from tests.telemetry.lines import as_lines

SESSION, REPLICA, TENANT = SessionId("s-secret"), ReplicaId("r0"), TenantId("alice")
TURN: dict[str, Any] = {"at_s": 1.0, "turn": "r-1", "session": SESSION}
THERE: dict[str, Any] = {**TURN, "replica": REPLICA}
USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=2)
END: dict[str, Any] = {"status": 200, "usage": USAGE, "finish_reason": "stop", "duration_ms": 5000.0}


class Strange(TimedRecord, frozen=True, kw_only=True, tag="strange"):
    """Of a type that is newer."""


def text(counts: Counts) -> str:
    class Told:
        def collect(self):
            return counts.families()

    registry = CollectorRegistry()
    registry.register(Told())
    return generate_latest(registry).decode()


def test_records_are_counted():
    counts = Counts()
    strange: Any = Strange(at_s=1.0)
    counts.take([
        rec.TurnArrived(
            **TURN, tenant=TENANT, protocol=Protocol.CHAT, model="client's text", source=SessionSource.NEW,
            confidence=0.95, body_bytes=1, message_count=1, tool_count=0,
            claims=Claims(malformed=("deadline",)),
        ),
        rec.TurnWaited(**TURN, reason=WaitReason.KV_FULL, waiting=1),
        rec.TurnWouldWait(**TURN, reason=WaitReason.KV_FULL),
        rec.Routed(**THERE, reason=PlacementReason.LEAST_LOADED, waited_ms=1500.0),
        rec.GpuFirstToken(**THERE, launch_delay_ms=20.0),
        rec.GpuFirstToken(**THERE, launch_delay_ms=30.0),
        rec.GpuEnd(**THERE, outcome="finished", **END),
        rec.ToolStart(**TURN, names=("bash", "ls", "cat"), ready_ms=(700.0, 50.0)),
        rec.ToolEnd(**TURN, names=("bash",), duration_ms=2000.0),
        rec.Refused(**TURN, tenant=TENANT, reason=RefusalReason.QUEUE_FULL, waited_ms=0.0),
        rec.SessionEnded(at_s=1.0, session=SESSION, turns=1, reason="idle"),
        rec.ReplicaChanged(at_s=1.0, replica=REPLICA, state="up", why="client's text"),
        WindowUpdated(
            at_s=1.0, pool=PoolId("p"), sessions=1.0, kv_budget=None, admitted=1, waiting=0, demand=0.0,
            gpu_pressure=0.0, cpu_pressure=0.0, reason="healthy",
        ),
        rec.PrefilledAhead(
            **THERE, thread=ThreadId("1"), outcome="used", usage=USAGE, used_tokens=5, duration_ms=1.0
        ),
        rec.PrefillLegEnded(**THERE, outcome="ready", usage=USAGE, duration_ms=1.0),
        strange,
    ])  # fmt: skip
    told = text(counts)
    for line in (
        'turnpike_turns_total{protocol="chat",source="new"} 1.0',
        'turnpike_waits_total{reason="kv_full"} 1.0',
        'turnpike_would_wait_total{reason="kv_full"} 1.0',
        'turnpike_placements_total{reason="least_loaded",replica="r0"} 1.0',
        'turnpike_attempts_total{code="200",outcome="finished",replica="r0"} 1.0',
        'turnpike_refusals_total{reason="queue_full"} 1.0',
        'turnpike_malformed_claims_total{claim="deadline"} 1.0',
        'turnpike_sessions_ended_total{reason="idle"} 1.0',
        'turnpike_window_updates_total{pool="p",reason="healthy"} 1.0',
        'turnpike_replica_changes_total{replica="r0",state="up"} 1.0',
        'turnpike_records_total{type="gpu_1st_token"} 2.0',
        'turnpike_records_total{type="strange"} 1.0',
        'turnpike_prefill_ahead_total{outcome="used"} 1.0',
        'turnpike_prefill_ahead_tokens_total{what="computed"} 6.0',
        'turnpike_prefill_ahead_tokens_total{what="used"} 5.0',
        'turnpike_remote_prefills_total{outcome="ready",replica="r0"} 1.0',
        "turnpike_queue_seconds_sum 1.5",
        'turnpike_queue_seconds_bucket{le="1.0"} 0.0',
        'turnpike_queue_seconds_bucket{le="3.0"} 1.0',
        'turnpike_engine_ttft_seconds_bucket{le="0.01",replica="r0"} 0.0',
        'turnpike_engine_ttft_seconds_bucket{le="0.03",replica="r0"} 2.0',
        'turnpike_engine_ttft_seconds_bucket{le="+Inf",replica="r0"} 2.0',
        'turnpike_engine_ttft_seconds_count{replica="r0"} 2.0',
        'turnpike_turn_seconds_sum{replica="r0"} 5.0',
        "turnpike_tool_phase_seconds_sum 2.0",
        "turnpike_decode_after_call_seconds_sum 0.75",
        "turnpike_decode_after_call_seconds_count 2.0",
        'turnpike_session_confidence_bucket{le="0.9"} 0.0',
        'turnpike_session_confidence_bucket{le="0.95"} 1.0',
        'turnpike_tokens_total{kind="prompt",replica="r0"} 10.0',
        'turnpike_tokens_total{kind="cached",replica="r0"} 4.0',
        'turnpike_tokens_total{kind="output",replica="r0"} 2.0',
    ):
        assert f"\n{line}\n" in told, line
    for private in ("s-secret", "alice", "client's text", "bash"):
        assert private not in told


def test_nothing_is_told_of_a_replica_that_left():
    counts = Counts()
    for replica in (REPLICA, ReplicaId("stays")):
        there = {**TURN, "replica": replica}
        counts.take([
            rec.ReplicaChanged(at_s=1.0, replica=replica, state="up", why="is healthy"),
            rec.Routed(**there, reason=PlacementReason.LEAST_LOADED, waited_ms=1500.0),
            rec.GpuFirstToken(**there, launch_delay_ms=20.0),
            rec.GpuEnd(**there, outcome="finished", **END),
        ])  # fmt: skip
    before = text(counts)
    counts.take([rec.ReplicaChanged(at_s=2.0, replica=REPLICA, state="left", why="is no member any more")])
    told = text(counts)
    assert 'replica="r0"' in before and 'replica="r0"' not in told
    assert before.count('replica="stays"') == told.count('replica="stays"') == before.count('replica="r0"')
    assert "\nturnpike_queue_seconds_count 2.0\n" in told


def test_many_are_counted_on_the_way():
    counts = Counts()
    for _ in range(1000):
        counts.take([rec.ToolNum(at_s=1.0, active=1)])
        assert len(counts._fresh) <= 256
    assert '\nturnpike_records_total{type="tool_num"} 1000.0\n' in text(counts)


def test_everything_is_told():
    now = Gauges(at_s=1.0, session_count=3, running=2, waiting=1, active_tools=1)
    outcome = Objective(ObjectiveConfig(), max_sessions=1)
    metrics = Metrics(lambda: now, {"stream_dropped": ("Records not written", lambda: 5)}, outcome=outcome)
    metrics.take([rec.ToolNum(at_s=1.0, active=1)])
    metrics.overhead.add(0.00005)
    metrics.loop_lag.add(0.5)
    text = metrics.render().decode()
    for line in (
        'turnpike_records_total{type="tool_num"} 1.0',
        "turnpike_sessions 3.0",
        "turnpike_stream_dropped_total 5.0",
        'turnpike_request_overhead_seconds_bucket{le="0.0001"} 1.0',
        "turnpike_loop_lag_seconds_sum 0.5",
    ):
        assert f"\n{line}\n" in text, line
    assert "turnpike_build_info{version=" in text and "\nprocess_cpu_seconds_total " in text


def test_who_comes_late_has_the_slot_of_who_was_not_seen_for_long():
    gone: list[tuple[str, ...]] = []
    slots: LabelSlots[tuple[str, ...]] = LabelSlots(2, gone.append)
    assert slots.take(("a",), now=0.0) and slots.take(("b",), now=1.0)
    assert not slots.take(("c",), now=2.0)
    assert slots.take(("a",), now=IDLE_S)
    assert slots.take(("c",), now=IDLE_S + 1) and gone == [("b",)]
    assert not slots.take(("b",), now=IDLE_S + 2), "series do not come and go with every request"


def test_who_has_few_gets_one_of_who_has_many_and_keeps_it():
    gone: list[tuple[str, ...]] = []
    slots: LabelSlots[tuple[str, ...]] = LabelSlots(4, gone.append, itemgetter(1))
    assert all(slots.take((name, "a"), now=0.0) for name in "1234") and not slots.take(("5", "a"), now=1.0)
    assert slots.take(("1", "b"), now=1.0) and slots.take(("2", "b"), now=2.0)
    assert not slots.take(("3", "b"), now=3.0), "they have two each"
    assert slots.take(("1", "c"), now=4.0) and not slots.take(("2", "c"), now=5.0)
    assert gone == [("1", "a"), ("2", "a"), ("3", "a")]
    assert slots.take(("6", "a"), now=IDLE_S) and gone[-1] == ("4", "a")


def test_it_is_made_anew_when_it_is_too_old():
    number = count(1)
    reused = Reused(lambda: b"%d" % next(number), max_age_s=0.25)
    assert [reused.get(now=now) for now in (5.0, 5.0, 5.2, 5.25, 5.4, 60.0)] == [
        b"1", b"1", b"1", b"2", b"2", b"3",
    ]  # fmt: skip


def test_without_an_age_it_is_always_made_anew():
    number = count(1)
    reused = Reused(lambda: b"%d" % next(number), max_age_s=0.0)
    assert [reused.get(now=5.0) for _ in range(3)] == [b"1", b"2", b"3"]


def test_what_could_not_be_made_is_tried_again():
    answers: Iterator[bytes | ValueError] = iter([ValueError("no"), b"made"])

    def make() -> bytes:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    reused = Reused(make, max_age_s=1.0)
    with pytest.raises(ValueError, match="no"):
        reused.get(now=0.0)
    assert reused.get(now=0.0) == b"made"


def told_of(numbers: Iterable[int]) -> tuple[bytes, int]:
    return as_lines([rec.ToolNum(at_s=float(number), active=number) for number in numbers])


@given(st.integers(1, 20), st.lists(st.integers(0, 7), max_size=12), st.integers(0, 80), st.integers(0, 30))
def test_what_is_behind_a_number_is_the_newest_that_is_kept(size, batches, number, limit):
    ring, told = Ring(size, 1 << 30), 0
    for batch in batches:
        ring.extend(*told_of(range(told + 1, told + batch + 1)))
        told += batch
    kept = list(range(max(1, told - size + 1), told + 1))
    assert (ring.first, ring.last) == (kept[0] if kept else told + 1, told)
    behind = [each.at_s for each in ring.behind(number, limit)]
    assert behind == [each for each in kept if each > number][:limit]
    assert [each.at_s for each in ring.newest_first()] == kept[::-1]


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(0, 45))
def test_what_is_kept_is_bounded_in_bytes(sizes, number):
    ring = Ring(1000, 500)
    lines = [b"x" * size + b"\n" for size in sizes]
    for line in lines:
        ring.extend(line, 1)
    kept: list[bytes] = []
    for line in reversed(lines):
        if sum(map(len, kept)) + len(line) > 500:
            break
        kept.insert(0, line)
    assert ring._bytes == sum(map(len, kept)) and ring.last == len(lines)
    assert ring.first == len(lines) - len(kept) + 1
    behind = lines[max(number, ring.first - 1) :]
    assert ring.lines_behind(number, 100) == [line.rstrip(b"\n") for line in behind]


def quantile(spread: Histogram, share: float) -> float:
    rank, below = share * sum(spread.counts), 0
    for (low, high), number in zip(itertools.pairwise((0.0, *spread.bounds)), spread.counts, strict=False):
        if below + number >= rank:
            return low + (high - low) * (rank - below) / number
        below += number
    raise AssertionError("beyond the last bound")


def draws(name: str) -> list[float]:
    dice = random.Random(name)
    kinds = {
        "lognormal": lambda: dice.lognormvariate(2.0, 1.0),
        "exponential": lambda: 30 * dice.expovariate(1.0),
        "uniform": lambda: dice.uniform(5, 50),
        "two humps": lambda: dice.gauss(200, 20) if dice.random() < 0.1 else dice.gauss(5, 0.5),
        "long tail": lambda: min(9_000.0, dice.paretovariate(1.2)),
    }
    return [max(0.01, kinds[name]()) for _ in range(20_000)]


@pytest.mark.parametrize("name", ["lognormal", "exponential", "uniform", "two humps", "long tail"])
@pytest.mark.parametrize(("share", "off"), [(0.5, 0.1), (0.95, 0.1), (0.99, 0.2)])
def test_a_quantile_is_right(name, share, off):
    values = draws(name)
    spread = Histogram(growing(0.1, 20_000))
    spread.add_all(values)
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    assert quantile(spread, share) == pytest.approx(true, rel=off)


def test_a_quantile_of_equal_values_is_off_by_a_bucket_at_most():
    for value in (0.5, 1.0, 7.3, 100.0, 1234.5):
        spread = Histogram(growing(0.1, 20_000))
        spread.add_all([value] * 100)
        assert 1 / 1.21 < quantile(spread, 0.95) / value < 1.21


def test_bounds_grow_and_end_where_they_were_told():
    bounds = growing(0.1, 20_000)
    assert (bounds[0], bounds[-1]) == (0.1, 20_000)
    steps = [after / before for before, after in itertools.pairwise(bounds)]
    assert min(steps) > 1.1 and max(steps) < RATIO * 1.01
    assert len(bounds) < 75
