"""Agent.xpu's mix: what is asked when, and that a run of it measures what it says."""

import pytest

from benchmarks.simulations.mix import TRACE_S, Arm, Ground, play
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


def test_one_class_comes_as_it_does_whatever_the_other_does():
    def reactive(background: float) -> list[object]:
        sessions = Ground("8b", 3, background).sessions(1)
        return [each for each in sessions if each.service_class is ServiceClass.REACTIVE]

    assert reactive(6) == reactive(12)
    assert Ground("8b", 3, 6).sessions(1) != Ground("8b", 3, 6).sessions(2)


@pytest.mark.parametrize(("model", "decode_s", "tokens_per_s"), [("8b", 0.112, 158), ("3b", 0.048, 369)])
def test_the_device_is_as_fast_as_the_paper_says(model, decode_s, tokens_per_s):
    profile = load_profile(Ground(model, 1, 1).fleet(is_pair=False).replicas[0].profile)
    assert step_s(profile, Batch(new_tokens=1)) == pytest.approx(decode_s, rel=0.01)
    assert 256 / step_s(profile, Batch(new_tokens=256)) == pytest.approx(tokens_per_s, rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # vLLM's imports are loud
def test_what_somebody_waits_for_is_quicker_with_the_plugin_and_background_work_no_slower():
    ground = Ground("8b", 3, 6)
    fcfs, ours = (play(Arm(policy), ground, 1) for policy in ("affinity", "turnpike+plugin"))
    assert fcfs["reactive_alone_s"] == ours["reactive_alone_s"] < ours["reactive_s"]
    assert ours["reactive_s"] < 0.6 * fcfs["reactive_s"]
    assert ours["background_s"] < fcfs["background_s"]
    assert ours["background_tokens_per_s"] == pytest.approx(fcfs["background_tokens_per_s"], rel=0.15)
    serial = play(Arm("affinity", places=1), ground, 1)
    assert serial["reactive_s"] > 20 * serial["reactive_alone_s"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_pair_computes_background_prompts_on_its_second_device():
    ground = Ground("3b", 1, 2)
    pair = play(Arm("agent-xpu", is_pair=True), ground, 1)
    background = [
        session for session in ground.sessions(1) if session.service_class is ServiceClass.PROACTIVE
    ]
    assert pair["legs"] == len(background)
