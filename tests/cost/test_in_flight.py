import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cost.estimator import Estimator, Load, Prediction, TurnWork
from gateway.cost.formula import context_product
from gateway.cost.in_flight import InFlight


def predicted(new: float, cached: float = 0.0) -> Prediction:
    return Estimator().predict(TurnWork(new_tokens=new, cached_tokens=cached), Load())


def test_an_idle_replica_has_no_load() -> None:
    assert InFlight().load(now=5.0) == Load()


def test_a_turn_queues_and_then_decodes() -> None:
    flying = InFlight()
    flying.sent("a", predicted(1_000, 500), now=1.0)
    assert flying.load(now=1.0) == Load(
        queued_tokens=1_000, queued_products=context_product(1_000, 500), queued_prompt_tokens=1_500
    )
    flying.first_token("a", now=2.0)
    assert flying.load(now=2.0) == Load(decoding=1, decoding_context_tokens=1_500)
    flying.ended("a")
    assert flying.load(now=3.0) == Load() and len(flying) == 0


def test_of_the_first_in_the_queue_what_should_be_done_is_taken_off() -> None:
    flying, long = InFlight(), predicted(10_000)
    flying.sent("a", long, now=0.0)
    flying.sent("b", predicted(2_000), now=0.0)
    assert flying.load(now=0.0).queued_tokens == 12_000
    half = flying.load(now=long.prefill_s / 2)
    assert half.queued_tokens == pytest.approx(7_000)
    assert half.queued_prompt_tokens == pytest.approx(7_000)
    assert half.queued_products == pytest.approx(context_product(10_000, 0) / 2 + context_product(2_000, 0))
    assert flying.load(now=9 * long.prefill_s).queued_tokens == pytest.approx(2_000)


def test_the_next_one_starts_when_the_first_has_its_token() -> None:
    flying, second = InFlight(), predicted(2_000)
    flying.sent("a", predicted(10_000), now=0.0)
    flying.sent("b", second, now=0.0)
    flying.first_token("a", now=7.0)
    assert flying.load(now=7.0).queued_tokens == pytest.approx(2_000)
    assert flying.load(now=7.0 + second.prefill_s / 2).queued_tokens == pytest.approx(1_000)


def test_a_first_token_is_told_once() -> None:
    flying = InFlight()
    flying.sent("a", predicted(1_000), now=0.0)
    flying.first_token("a", now=1.0)
    flying.first_token("a", now=2.0)
    assert flying.load(now=2.0).decoding == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["sent", "first", "end"])), max_size=60))
def test_the_books_balance(steps: list[tuple[int, str]]) -> None:
    flying, queued, decoding = InFlight(), dict[int, float](), dict[int, float]()
    for now, (turn, step) in enumerate(steps):
        if step == "sent" and turn not in queued and turn not in decoding:
            queued[turn] = 100.5 * (turn + 1)
            flying.sent(turn, predicted(queued[turn]), now=now)
        elif step == "first" and turn in queued:
            decoding[turn] = queued.pop(turn)
            flying.first_token(turn, now=now)
        elif step == "end" and (turn in queued or turn in decoding):
            queued.pop(turn, None)
            decoding.pop(turn, None)
            flying.ended(turn)
        load = flying.load(now=now)
        assert len(flying) == len(queued) + len(decoding) and load.decoding == len(decoding)
        assert load.decoding_context_tokens == pytest.approx(sum(decoding.values()))
        assert -1e-6 <= load.queued_tokens <= sum(queued.values()) + 1e-6


def test_what_others_prompts_took_since_the_first_token_is_told_at_the_end() -> None:
    """Decoding stands still meanwhile, so it is no part of what decoding takes."""
    flying, long, short = InFlight(), predicted(10_000), predicted(2_000)
    flying.sent("before", predicted(4_000), now=0.0)
    flying.first_token("before", now=1.0)
    flying.sent("a", predicted(1_000), now=1.0)
    flying.first_token("a", now=2.0)
    for turn, prompt in (("b", long), ("c", short)):
        flying.sent(turn, prompt, now=2.0)
        flying.first_token(turn, now=3.0)
    flying.sent("d", long, now=3.0)
    assert flying.ended("a") == pytest.approx(long.prefill_s + short.prefill_s)
    assert flying.ended("c") == 0.0 and flying.ended("d") == 0.0
