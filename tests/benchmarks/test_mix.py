"""Agent.xpu's mix: what is asked when, and that a run of it measures what it says."""

import pytest

from benchmarks.simulations.mix import TRACE_S, Ground
from gateway.config.profiles import load_profile
from gateway.cost.roofline import Batch, step_s
from lab.workload.trace.format import ServiceClass


def test_requests_of_both_classes_come_at_their_rates_and_in_order():
    made = [Ground("8b", 3, 6).sessions(seed) for seed in range(20)]
    for session_class, per_minute in ((ServiceClass.REACTIVE, 3), (ServiceClass.PROACTIVE, 6)):
        count = sum(session.service_class is session_class for run in made for session in run)
        assert count == pytest.approx(20 * per_minute * TRACE_S / 60, rel=0.1)
    for run in made:
        assert [each.arrival_s for each in run] == sorted(each.arrival_s for each in run)
        assert len({each.id for each in run}) == len(run)


@pytest.mark.parametrize(("model", "decode_s", "tokens_per_s"), [("8b", 0.112, 158), ("3b", 0.048, 369)])
def test_the_device_is_as_fast_as_the_paper_says(model, decode_s, tokens_per_s):
    profile = load_profile(Ground(model, 1, 1).fleet(is_pair=False).replicas[0].profile)
    assert step_s(profile, Batch(new_tokens=1)) == pytest.approx(decode_s, rel=0.01)
    assert 256 / step_s(profile, Batch(new_tokens=256)) == pytest.approx(tokens_per_s, rel=0.01)
