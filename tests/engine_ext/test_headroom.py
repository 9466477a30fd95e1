"""What steps of vLLM's real scheduler leave to a better class and to background work, without a model."""

from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions, StepLoad
from tests.engine_ext.test_configurations import with_adapters
from tests.engine_ext.test_scheduler import prompt
from turnpike_vllm.hints import Hint, ServiceClass

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE
STEP, SIZE, LONG, SHORT = 512, 16, 8_000, 100


class Watched(SimulatedEngine):
    def __init__(self, **options: Any) -> None:
        given: dict[str, Any] = {"blocks": 2_001, "block_size": SIZE, "max_batched_tokens": STEP}
        super().__init__(SimulatedOptions(**{**given, **options}))
        self.given: list[dict[str, int]] = []

    def schedule(self) -> Any:
        output = super().schedule()
        self.given.append(dict(output.num_scheduled_tokens))
        return output

    def ask(self, prompt: list[int], service: ServiceClass, session: str) -> str:
        return self.submit(prompt, max_tokens=2, hint=Hint(session=session, seq=1, service=service))

    def while_a_long_prompt_runs(
        self,
        asked: list[int],
        *,
        long: int = LONG,
        runs: ServiceClass = PROACTIVE,
        comes: ServiceClass = REACTIVE,
    ) -> tuple[str, str]:
        """A step of the long prompt alone; then another asks, and one more step begins."""
        first = self.ask(prompt(1, long), runs, "long")
        self.step()
        assert self.given[-1] == {first: STEP}
        second = self.ask(asked, comes, "short")
        self.step()
        return first, second


def held_back(made: SimulatedEngine) -> int:
    return int(made.plugin.counters()["order"].get("headroom", 0))


@pytest.mark.parametrize("classes", [True, False])
def test_who_waits_gets_its_tokens_of_the_very_step(classes: bool) -> None:
    ttft_s = {}
    for share in (0.5, 0.0):
        made = Watched(turnpike={"classes": classes, "coordinator": {"headroom": share}})
        long, comes = made.while_a_long_prompt_runs(prompt(2, SHORT))
        # One of a step's tokens is for the long prompt, should it decode.
        assert made.given[-1] == ({long: STEP - SHORT - 1, comes: SHORT} if share else {long: STEP})
        assert held_back(made) == (share > 0.0)
        made.run()
        ttft_s[share] = made.done[comes].ttft_s
    assert ttft_s[0.5] < 0.2 * ttft_s[0.0]


@pytest.mark.parametrize(("share", "left"), [(0.25, STEP * 3 // 4 - 1), (1.0, SIZE)])
def test_of_a_step_it_is_no_more_than_the_share_and_the_long_prompt_goes_on(share: float, left: int) -> None:
    made = Watched(turnpike={"classes": False, "coordinator": {"headroom": share}})
    long, comes = made.while_a_long_prompt_runs(prompt(2, 5_000))
    assert made.given[-1] == {long: left, comes: STEP - left}


def test_nothing_is_left_for_what_is_in_the_cache() -> None:
    made = Watched()
    made.ask(prompt(2, 480), REACTIVE, "before")
    made.run()
    long, comes = made.while_a_long_prompt_runs(prompt(2, 480) + prompt(3, SHORT))
    assert made.given[-1] == {long: STEP - SHORT - 1, comes: SHORT}


@pytest.mark.parametrize(
    ("runs", "comes"), [(REACTIVE, REACTIVE), (REACTIVE, PROACTIVE), (PROACTIVE, PROACTIVE)]
)
def test_equals_and_worse_ones_wait(runs: ServiceClass, comes: ServiceClass) -> None:
    made = Watched()
    long, _ = made.while_a_long_prompt_runs(prompt(2, SHORT), runs=runs, comes=comes)
    assert made.given[-1] == {long: STEP}
    assert held_back(made) == 0


def test_who_waits_behind_it_may_have_the_rest() -> None:
    made = Watched()
    comes, long = made.ask(prompt(2, SHORT), REACTIVE, "short"), made.ask(prompt(1, LONG), PROACTIVE, "long")
    made.step()
    assert made.given == [{comes: SHORT, long: STEP - SHORT}]


def test_nothing_is_left_where_no_place_is() -> None:
    made = Watched(policy="priority", max_num_seqs=1)  # where nobody is displaced
    long, _ = made.while_a_long_prompt_runs(prompt(2, SHORT))
    assert made.given[-1] == {long: STEP}


def test_nothing_is_left_for_who_waits_for_memory() -> None:
    made = Watched(blocks=101)
    long, comes = made.while_a_long_prompt_runs(prompt(2, 1_500), long=1_400)
    assert made.given[-1] == {long: STEP // 2 - 1}, "it was not known yet"
    while len(made.given) < 3:
        made.step()
    assert made.given[-1] == {long: STEP}
    made.run()
    assert made.done[comes].finished is not None


def test_nothing_is_left_where_it_was_not_tried() -> None:
    """Who waits for an adapter's place could not use it."""
    made = Watched(configure=with_adapters)
    long, _ = made.while_a_long_prompt_runs(prompt(2, SHORT))
    assert made.given[-1] == {long: STEP}
    assert made.plugin.features["headroom"] != "on"


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
    from turnpike_vllm.compatibility import reasons

    class NixlConnector: ...

    class Scheduler:
        connector = NixlConnector()
        block_size = hash_block_size = 16

    off = {name for name, why in reasons(Scheduler()) if "connector" in why}
    assert {"classes", "retention"} <= off
    assert not [why for _, why in reasons(Scheduler(), ("NixlConnector",)) if "connector" in why]
