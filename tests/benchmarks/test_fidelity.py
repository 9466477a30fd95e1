"""The parts of the comparison between live and simulated, without anything live."""

import pytest

from benchmarks.fidelity import CALIBRATION, LONGEST, POLICIES, TEST, disagreements, drawn, simulated
from benchmarks.fidelity_profile import Costs, fitted
from gateway.cost.roofline import Batch, context_product, step_s
from gateway.workload.trace.format import check

COSTS = Costs(
    step_s=0.01, token_s=1e-4, context_token_s=1e-8, sequence_s=2e-3, request_s=0.5, prompt_token_s=1e-4
)


@pytest.mark.parametrize("kind", [CALIBRATION, TEST])
def test_workloads_are_workloads_and_always_the_same(kind):
    sessions = drawn(kind, 20)
    for session in sessions:
        check(session)
        assert session.peak_tokens <= LONGEST
    assert sessions == drawn(kind, 20)


def test_a_step_costs_what_is_said():
    profile = COSTS.profile(chunk_tokens=2048, kv_tokens=10_000)
    one = step_s(profile, Batch(new_tokens=1, decode_context_tokens=1_000))
    assert one == pytest.approx(0.01 + 2e-3 + 1e-5, rel=0.01)
    prefill = step_s(profile, Batch(new_tokens=2_000, prefill_context_products=context_product(2_000, 500)))
    assert prefill == pytest.approx(0.01 + 0.2 + 1e-8 * 2_000 * 1_500, rel=0.01)


def test_costs_are_found_again():
    def play(costs: Costs) -> dict[str, float]:
        return {
            str(tokens): 3 * (costs.step_s + tokens * costs.token_s) + costs.request_s
            for tokens in (10, 100, 1_000, 10_000)
        }

    found = fitted(play, play(COSTS))
    for name, seconds in play(COSTS).items():
        assert play(found)[name] == pytest.approx(seconds, rel=0.15)


def test_only_policies_that_differ_are_ranked():
    lived = {"a": 10.0, "b": 10.2, "c": 20.0}
    assert disagreements(lived, {"a": 3.0, "b": 2.0, "c": 4.0}) == (2, 0)
    assert disagreements(lived, {"a": 5.0, "b": 2.0, "c": 4.0}) == (2, 1)


@pytest.mark.filterwarnings("ignore")  # vLLM's
def test_policies_differ_where_it_is_simulated():
    means = {name: simulated(drawn(TEST, 8), Costs(), policy).mean for name, policy in POLICIES.items()}
    assert max(means.values()) > 1.2 * min(means.values())
