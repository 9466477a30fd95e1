"""GPU pressure: useful state that is thrown away."""

import pytest

from gateway.admission.gpu_pressure import GpuPressure, loss_that_is_overload
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def read(gpu: GpuPressure, now=0.0):
    return gpu.read(sessions=10, feedback_s=10.0, now=now)


def warm(gpu: GpuPressure, turns: int, *, left=10_000, found=10_000, half_empty=False):
    for _ in range(turns):
        gpu.saw_turn(left, found, is_pool_half_empty=half_empty)


def test_nothing_is_known_at_first():
    reading = read(GpuPressure())
    assert (reading.pressure, reading.reason, reading.is_loss_known) == (0.0, "none", False)


def test_lost_state_is_pressure():
    gpu = GpuPressure()
    warm(gpu, 4, found=0)
    assert read(gpu).pressure == 0.0  # too few turns to say
    warm(gpu, 4)
    reading = read(gpu)
    assert reading.reason == "state_lost" and reading.is_loss_known
    assert reading.loss == pytest.approx(0.5, abs=0.02) and reading.pressure > 1.0


def test_only_more_loss_than_was_reckoned_with_is_pressure():
    def pressure(reckoned_with: float) -> float:
        gpu = GpuPressure()
        gpu.read(sessions=10, feedback_s=1e6, now=0.0)
        for _ in range(20):  # 10 s of 100 s are lost
            gpu.saw_turn(10_000, 10_000 - 1000 - 256, token_s=0.5e-3)
        reading = gpu.read(sessions=10, reckoned_with=reckoned_with, feedback_s=1e6, now=100.0)
        assert reading.is_loss_known
        return reading.pressure

    assert pressure(0.2) == 0.0
    assert pressure(0.05) == pytest.approx(0.5 * pressure(0.0), rel=1e-2)


def test_what_is_lost_counts_by_the_time_that_it_takes_to_compute_it_again():
    def pressure(token_s: float | None, *, sessions=10, replicas=1) -> float:
        gpu = GpuPressure()
        gpu.read(sessions=sessions, feedback_s=1e6, now=0.0)
        for _ in range(20):
            gpu.saw_turn(10_000, 10_000 - 1000 - 256, token_s=token_s)
        return gpu.read(sessions=sessions, replicas=replicas, feedback_s=1e6, now=100.0).pressure

    # Twenty thousand tokens were lost: 10 s of 100 s.
    assert pressure(0.5e-3) == pytest.approx(0.1 / loss_that_is_overload(10), rel=1e-3)
    assert pressure(0.5e-4) == pytest.approx(pressure(0.5e-3) / 10, rel=1e-3)
    assert pressure(0.5e-3, sessions=20) == pytest.approx(2 * pressure(0.5e-3), rel=1e-3)
    assert pressure(0.5e-3, replicas=2) == pytest.approx(pressure(0.5e-3) / 2, rel=1e-3)
    assert pressure(None) == pytest.approx(0.1 / loss_that_is_overload(10), rel=1e-3), (
        "tokens, for want of times"
    )


def test_a_few_blocks_are_no_loss():
    gpu = GpuPressure()
    warm(gpu, 10, found=9_800)
    gpu.saw_turn(0, 0)
    assert read(gpu).pressure == 0.0 and read(gpu).is_loss_known


def test_what_is_lost_in_an_empty_pool_is_the_clients_own_doing():
    gpu = GpuPressure()
    warm(gpu, 200, found=4_000, half_empty=True)
    warm(gpu, 50, found=4_000)
    assert read(gpu).loss < 0.02


def test_old_evidence_fades_and_a_change_starts_afresh():
    gpu = GpuPressure()
    warm(gpu, 20, found=0)
    assert read(gpu, now=0.0).pressure > 1.0
    assert not read(gpu, now=1000.0).is_loss_known
    warm(gpu, 20, found=0)
    gpu.start_afresh()
    assert read(gpu, now=1000.0).pressure == 0.0


def test_turns_that_have_become_so_slow_that_few_end_are_seen_all_the_same():
    gpu, now = GpuPressure(), 0.0
    for _ in range(12):  # two in three feedback times, and each computes everything again
        now += 15.0
        gpu.saw_turn(100_000, 0, token_s=0.25e-3)
        _ = read(gpu, now=now)
    reading = read(gpu, now=now)
    assert reading.is_loss_known and reading.pressure > 1.0 and reading.reason == "state_lost"


def test_engines_without_cached_tokens_tell_by_their_counters():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(prefix_hit=1000))
    for _ in range(12):
        gpu.saw_turn(10_000, None)
    assert not read(gpu).is_loss_known  # no hits at all: perhaps it has no such cache
    gpu.engine_reported(A, EngineSignals(prefix_hit=1000 + 30_000))
    assert read(gpu).loss == pytest.approx(0.75)
    gpu.engine_reported(A, EngineSignals(prefix_hit=50))  # it was started anew
    assert read(gpu).loss == pytest.approx(0.75)


def test_preemptions_are_counted_per_turn():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(preemptions=5))
    gpu.engine_reported(A, EngineSignals(preemptions=9))
    gpu.engine_reported(B, EngineSignals(preemptions=100))  # its first word
    assert read(gpu).pressure == 0.0
    warm(gpu, 10)
    assert read(gpu).reason == "preemptions" and read(gpu).pressure == pytest.approx(4.0)


def test_first_turns_count_among_those_that_preemptions_are_held_against():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(preemptions=0))
    for _ in range(1_000):
        gpu.saw_turn()
    warm(gpu, 10)
    gpu.engine_reported(A, EngineSignals(preemptions=10))
    assert read(gpu).pressure < 0.11


def test_a_queue_behind_a_full_cache_is_pressure_and_one_behind_long_prompts_is_not():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(waiting=10, running=2, kv_used=0.5))
    assert read(gpu).pressure == 0.0
    gpu.engine_reported(A, EngineSignals(waiting=10, running=2, kv_used=0.97))
    assert read(gpu).reason == "kv_full" and read(gpu).pressure > 1.0
    gpu.replica_left(A)
    gpu.replica_left(B)
    assert read(gpu).pressure == 0.0


def test_capacity_is_that_of_the_replicas_that_are_up():
    gpu = GpuPressure()
    assert gpu.capacity([A, B]) is None
    gpu.engine_reported(A, EngineSignals(kv_tokens=1000, host_kv_tokens=1500))
    assert gpu.capacity([A]) == (1000, 500)
    assert gpu.capacity([A, B]) == (2000, 1000)  # one that does not say is like the others
    gpu.engine_reported(B, EngineSignals(kv_tokens=3000))
    assert gpu.capacity([A, B]) == (4000, 500)
    assert gpu.capacity([B]) == (3000, 0)
    gpu.engine_reported(B, EngineSignals(waiting=1))
    assert gpu.capacity([A, B]) == (2000, 1000)


def test_the_hosts_memory_counts_beyond_each_replicas_own_device():
    gpu = GpuPressure()
    gpu.engine_reported(A, EngineSignals(kv_tokens=1000, host_kv_tokens=4000))
    gpu.engine_reported(B, EngineSignals(kv_tokens=3000, host_kv_tokens=500))
    assert gpu.capacity([A, B]) == (4000, 3000)  # and not 500: B's device makes up for nothing on A's host
    assert gpu.capacity([A, B], host_tokens=9000) == (4000, 3000)  # they say it themselves
    gpu.engine_reported(B, EngineSignals(kv_tokens=3000))
    assert gpu.capacity([A, B], host_tokens=9000) == (4000, 9000)


def test_of_many_sessions_less_loss_is_too_much():
    assert loss_that_is_overload(10) == pytest.approx(0.1)
    assert loss_that_is_overload(20) == pytest.approx(0.05)
    assert loss_that_is_overload(1000) == 0.02
    assert loss_that_is_overload(0) == loss_that_is_overload(3) == 0.25
