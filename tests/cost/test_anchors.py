import msgspec
import pytest

from gateway.config.profiles import load_profile
from gateway.cost.anchors import Anchor, Ceilings, calibrated, ceilings, step_anchor
from gateway.cost.profile import Engine
from gateway.cost.roofline import Batch, context_product, step_s

PROFILE = load_profile("qwen3-coder-30b-a3b@h200")
HARDWARE = msgspec.structs.replace(PROFILE.hardware, peak_flops=100e12, memory_bytes_per_s=1e12)
DECODING = Batch(new_tokens=8, decode_context_tokens=160_000)
CHUNK = Batch(new_tokens=8192, prefill_context_products=context_product(8192, 16_384))


def test_two_anchors_give_two_roofs() -> None:
    memory = Anchor(flops=1e12, bytes=1e12, seconds=1.25)  # I = 1: 0.8 TB/s of 1
    compute = Anchor(flops=1e15, bytes=1e12, seconds=20.0)  # I = 1000: 50 TFLOP/s of 100
    found = ceilings(memory, compute, HARDWARE)
    assert memory.utilization(HARDWARE) == 0.8 and compute.utilization(HARDWARE) == 0.05
    assert found.b_eff == pytest.approx(0.8e12) and found.p_eff == pytest.approx(50e12)
    assert found.knee == pytest.approx(62.5)
    assert found.latency_s(memory.flops, memory.bytes) == pytest.approx(1.25)
    assert found.latency_s(compute.flops, compute.bytes) == pytest.approx(20.0)


def test_bandwidth_falls_beyond_the_knee() -> None:
    found = Ceilings(p_eff=50e12, b_eff=0.8e12)
    assert found.bandwidth(1) == found.bandwidth(found.knee) == 0.8e12
    assert found.bandwidth(125) == pytest.approx(0.4e12)


def test_no_roof_is_above_its_peak() -> None:
    fast = Anchor(flops=1e15, bytes=1e12, seconds=0.1)
    found = ceilings(fast, fast, HARDWARE)
    assert found == Ceilings(p_eff=100e12, b_eff=1e12)
    assert ceilings(fast, fast, HARDWARE, devices=2) == Ceilings(p_eff=200e12, b_eff=2e12)


@pytest.mark.parametrize("name", ["qwen3-coder-30b-a3b@h200", "llama-3-70b@4xh100"])
def test_a_profile_is_found_again_from_two_of_its_steps(name: str) -> None:
    truth = load_profile(name, Engine(compute_efficiency=0.31, memory_efficiency=0.62))
    believed = load_profile(name)
    memory, compute = (step_anchor(believed, step, step_s(truth, step)) for step in (DECODING, CHUNK))
    found = calibrated(believed, memory, compute)
    assert found.compute_efficiency == pytest.approx(0.31)
    assert found.memory_efficiency == pytest.approx(0.62)
    other = Batch(new_tokens=700, decode_context_tokens=9_000)
    assert step_s(found, other) == pytest.approx(step_s(truth, other))


def test_a_step_that_is_all_overhead_is_no_anchor() -> None:
    with pytest.raises(ValueError, match=r"leaves nothing beside 0\.004 s"):
        step_anchor(PROFILE, DECODING, 0.004)
