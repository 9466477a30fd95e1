"""The parts of the comparison between live and simulated, without anything live."""

import pytest

from benchmarks.fidelity.compare import judge_ranks, noise
from benchmarks.fidelity.costs import Asked, Costs, fitted
from benchmarks.live import Completions
from benchmarks.verdict import Verdict
from gateway.cost.formula import context_product
from lab.engine.step_log import Row, Step
from lab.simulator.engine.roofline import Batch, step_s

COSTS = Costs(
    step_s=0.01,
    row_s=2e-3,
    token_s=1e-4,
    prompt_context_token_s=1e-8,
    decode_context_token_s=4e-8,
    request_s=0.5,
    prompt_token_s=1e-4,
    idle_share=0.4,
)


def step_of(*rows: Row) -> Step:
    reading = [row for row in rows if not row.decodes]
    batch = Batch(
        new_tokens=sum(row.new_tokens for row in rows),
        rows=len(rows),
        prefill_context_products=sum(context_product(row.new_tokens, row.tokens_before) for row in reading),
        decode_context_tokens=sum(row.tokens_before for row in rows if row.decodes),
    )
    return Step(0.0, step_s(COSTS.profile(chunk_tokens=2048, kv_tokens=10_000), batch), list(rows))


def test_costs_are_found_again():
    steps = [
        *(step_of(*[Row(1, context, 100)] * rows) for rows in (1, 3, 8) for context in (200, 9_000)),
        *(step_of(Row(new, before, 30_000)) for new in (200, 2_048) for before in (0, 4_000, 20_000)),
        step_of(Row(500, 0, 500), Row(1, 7_000, 100)),
    ]
    requests = [Asked(tokens, 0.5 + 1e-4 * tokens) for tokens in (10, 5_000, 20_000)]
    requests += [Asked(tokens, 0.4 * (0.5 + 1e-4 * tokens), is_beside_idle=True) for tokens in (10, 9_000)]
    found = fitted(steps, requests)
    for name in Costs.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=1e-6), name


def test_a_run_has_the_pace_of_its_own_steps():
    steps = [step_of(Row(1, 200, 100)), step_of(Row(2_048, 4_000, 30_000))]
    slower = [Step(step.began_s, 1.3 * step.took_s, step.rows) for step in steps]
    assert COSTS.pace_of(steps) == pytest.approx(1.0)
    assert COSTS.pace_of(slower) == pytest.approx(1.3)


def test_noise_is_half_of_the_interval():
    assert noise([3.0]) is None
    assert noise([3.0, 3.0]) == 0.0
    assert noise([2.9, 3.1]) == pytest.approx(12.71 * 0.1 / 3.0)


def completions(**seconds: float) -> Completions:
    found = Completions()
    found.seconds = seconds
    return found


SLOW, QUICK = completions(a=10.0, b=30.0), completions(a=8.0, b=25.0)
AS_SLOW = completions(a=11.0, b=29.0)


@pytest.mark.parametrize(
    ("lived", "played", "ranked", "wrong"),
    [
        ([SLOW, QUICK], [SLOW, QUICK], 1, 0),
        ([SLOW, QUICK], [QUICK, SLOW], 1, 1),
        ([QUICK, SLOW], [SLOW, QUICK], 1, 1),
        ([SLOW, AS_SLOW], [QUICK, SLOW], 0, 0),
    ],
)
def test_only_arms_that_differ_live_are_ranked(lived, played, ranked, wrong):
    verdict = Verdict()
    one, other = (dict(zip("xy", ([each] for each in runs), strict=True)) for runs in (lived, played))
    judge_ranks(one, other, verdict, print)
    assert verdict.figures["pairs_ranked"].value == ranked
    assert verdict.figures["pairs_ranked_otherwise"].value == wrong
