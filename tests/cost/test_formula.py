"""The formula says what the sum of coefficients and features says, for any turn, load and fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.profiles import load_profile
from gateway.cost.estimator import UNKNOWN, Estimator, Load, TurnWork
from gateway.cost.formula import LEAST_S, Formula

tokens = st.floats(0, 2e5)
coefficients = st.floats(0, 5)


@given(
    st.sampled_from(["qwen3-coder-30b-a3b@h200", "llama-3-70b@4xh100", ""]),
    st.lists(coefficients, min_size=9, max_size=9),
    st.lists(coefficients, min_size=5, max_size=5),
    st.tuples(tokens, tokens),
    st.builds(
        Load,
        decoding=st.integers(0, 600),
        decoding_context_tokens=st.floats(0, 1e7),
        queued_tokens=tokens,
        queued_products=st.floats(0, 1e10),
        queued_prompt_tokens=tokens,
    ),
)
def test_it_is_the_sum_multiplied_out(
    name: str, first: list[float], token: list[float], prompt: tuple[float, float], load: Load
) -> None:
    profile = load_profile(name) if name else UNKNOWN
    estimator, work = Estimator(profile), TurnWork(new_tokens=prompt[0], cached_tokens=prompt[1])
    formula = Formula(profile, first, token)

    def of(coefficients: list[float], features: tuple[float, ...]) -> object:
        seconds = sum(c * x for c, x in zip(coefficients, features, strict=True))
        return pytest.approx(max(LEAST_S, seconds), rel=1e-6, abs=2 * LEAST_S)

    alone_s = formula.alone_s(*prompt)
    assert alone_s == of(first, estimator._first_token_features(work, Load()))
    both_s = alone_s + formula.more_s(prompt[0], load)
    assert both_s == of(first, estimator._first_token_features(work, load))
    decoding = (*estimator._decode_steps(sum(prompt), load), profile.step_overhead_s * load.decoding)
    assert formula.token_s(sum(prompt), load) == of(token, decoding)
