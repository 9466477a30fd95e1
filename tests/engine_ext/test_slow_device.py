"""Background work beside what somebody waits for, on a device that reads its weights for longer than it
computes a few tokens: in vLLM's real scheduler, without a model, on a virtual clock."""

from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions, StepLoad
from tests.engine_ext.test_scheduler import prompt
from turnpike_vllm.hints import Hint, ServiceClass

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

READS_S, TOKEN_S = 0.110, 0.006
ANSWER, PROMPT = 200, 600


def takes_s(load: StepLoad) -> float:
    return max(READS_S, TOKEN_S * load.tokens)


def engine(**turnpike: Any) -> SimulatedEngine:
    options = SimulatedOptions(
        blocks=2_001, max_batched_tokens=256, step_time=takes_s, depth=1, turnpike=turnpike
    )
    return SimulatedEngine(options)


def reactive(made: SimulatedEngine, seed: int, answer: int = ANSWER) -> str:
    return made.submit(prompt(seed, 100), max_tokens=answer, hint=Hint(session=f"r{seed}", seq=1))


def background(made: SimulatedEngine, seed: int) -> str:
    hint = Hint(session=f"b{seed}", seq=1, service=ServiceClass.PROACTIVE)
    return made.submit(prompt(seed, PROMPT), max_tokens=10, hint=hint)


def taught(made: SimulatedEngine) -> SimulatedEngine:
    for seed in (900, 901):
        background(made, seed)
        reactive(made, seed, answer=60)
        made.run()
    return made


def test_background_prompts_use_what_decoding_leaves_of_the_arithmetic() -> None:
    made = taught(engine(classes={"age_s": 1e6}, coordinator={"max_wait_s": 1e6}))
    began = made.now
    waited_for = reactive(made, 1)
    made.run(until=began + 1.5)  # its prompt is computed
    others = [background(made, seed) for seed in (2, 3)]
    while made.done[waited_for].finished is None:
        made.step()
    alone_s = TOKEN_S * 100 + ANSWER * READS_S
    assert made.now - began < 1.15 * alone_s
    computed = sum(made.done[name].first_token is not None for name in others)
    assert computed == 2, "1,200 tokens at more than ten a step"


def test_aged_background_prompts_do_not_multiply_what_somebody_waits_for() -> None:
    made = taught(engine(classes={"age_s": 0.5}))
    began = made.now
    waited_for = reactive(made, 1)
    made.run(until=began + 1.5)
    others = [background(made, seed) for seed in range(2, 14)]
    while made.done[waited_for].finished is None:
        made.step()
    assert made.now - began < 2.3 * ANSWER * READS_S
    made.run()
    assert all(made.done[name].finished is not None for name in others)


def test_who_comes_is_not_kept_out_by_background_work_that_is_overdue() -> None:
    """It goes before all that wait, and may compute nothing yet."""
    made = taught(engine(classes={"age_s": 0.5, "aged_tpot": 0.0}, coordinator={"max_wait_s": 1.0}))
    reactive(made, 1)
    made.run(until=made.now + 1.5)
    for seed in range(2, 8):
        background(made, seed)
    made.run(until=made.now + 4.0)
    comes = reactive(made, 20, answer=2)
    while made.done[comes].first_token is None:
        made.step()
    assert made.done[comes].ttft_s < TOKEN_S * 100 + 5 * READS_S


def test_a_connector_that_the_operator_has_tried_keeps_no_bias_off() -> None:
    from turnpike_vllm.tried import reasons

    class NixlConnector: ...

    class Scheduler:
        connector = NixlConnector()
        block_size = hash_block_size = 16

    off = {name for name, why in reasons(Scheduler()) if "connector" in why}
    assert {"classes", "retention", "eviction"} <= off
    assert not [why for _, why in reasons(Scheduler(), ("NixlConnector",)) if "connector" in why]
