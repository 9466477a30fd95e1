"""A prompt that is computed ahead, on vLLM's real scheduler: for one token, as background work of a thread
that pauses. Nothing else marks it."""

from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from tests.engine_ext.test_scheduler import prompt
from turnpike_vllm.hints import Hint, ServiceClass
from turnpike_vllm.retain.retention import Thread

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SIZE = 64
KNOWN = 6_000
WAITS = ServiceClass.REACTIVE


def build(blocks: int = 400) -> SimulatedEngine:
    return SimulatedEngine(SimulatedOptions(blocks=blocks, block_size=SIZE))


def ahead(engine: SimulatedEngine, tokens: int = KNOWN, **more: Any) -> str:
    hint = Hint(session="a", seq=1, service=ServiceClass.PROACTIVE, retain_s=30.0, reuse=0.9)
    return engine.submit(prompt(1, tokens), max_tokens=1, hint=hint, **more)


def next_turn(engine: SimulatedEngine) -> str:
    hint = Hint(session="a", seq=2, service=WAITS)
    return engine.submit(prompt(1, KNOWN) + prompt(9, 500), hint=hint)


def test_its_one_token_costs_no_step_of_its_own():
    """Which is why nothing ends it sooner: the token comes with the last tokens of the prompt."""
    steps = []
    for tokens in (1, 2):
        engine = build()
        name = engine.submit(prompt(1, KNOWN), max_tokens=tokens)
        engine.run()
        assert engine.done[name].finished is not None
        steps.append((engine.steps, engine.computed_tokens))
    assert steps == [(1, KNOWN), (2, KNOWN + 1)]


def test_what_was_computed_is_held_until_its_turn_comes():
    engine = build(blocks=200)
    ahead(engine)
    engine.run()
    assert engine.plugin.retainer.retention.get(Thread("a", "")) is not None
    for number in range(6):  # each needs a third of all blocks
        engine.submit(prompt(100 + number, 4_000), hint=Hint(session=f"s{number}", seq=1, is_final=True))
        engine.run()
    name = next_turn(engine)
    engine.run()
    assert engine.done[name].cached_tokens >= KNOWN - SIZE
    assert engine.account()[2] == len(engine.plugin.retainer.retention.get(Thread("a", "")).blocks)


def test_who_is_stopped_leaves_what_was_computed_by_then():
    engine = build()
    name = ahead(engine, 20_000)
    engine.run(max_steps=2)
    computed = engine.scheduler.requests[name].num_computed_tokens
    assert KNOWN < computed < 20_000
    engine.abort(name)
    later = next_turn(engine)
    engine.run()
    assert engine.done[later].cached_tokens >= KNOWN - SIZE


@pytest.mark.parametrize("is_told", [True, False], ids=["as background work", "as any other"])
def test_those_that_somebody_waits_for_hardly_notice(is_told):
    """While one decodes and others come: their first token, with a long prompt computed ahead beside them."""
    latest = []
    for with_ahead in (False, True):
        engine = build(blocks=2_000)
        engine.submit(prompt(500, 2_000), max_tokens=600, hint=Hint(session="d", seq=1, service=WAITS))
        engine.run(until=0.3)
        if with_ahead and is_told:
            ahead(engine, 60_000)
        elif with_ahead:
            engine.submit(prompt(1, 60_000), max_tokens=1)
        names = []
        for number in range(8):
            engine.run(until=engine.now + 0.1)
            hint = Hint(session=f"r{number}", seq=1, service=WAITS)
            names.append(engine.submit(prompt(number + 10, 1_500), hint=hint))
        engine.run()
        latest.append(max(engine.done[name].ttft_s for name in names))
    alone, beside = latest
    assert beside < 1.2 * alone if is_told else beside > 3 * alone
