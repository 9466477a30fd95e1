"""What a step of vLLM's real scheduler leaves to a better class that waits: without a model, on a virtual
clock. A background prompt that runs could fill each step."""

from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
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
        """Tokens of each step, by request."""

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
    return int(made.biases.counters()["order"].get("headroom", 0))


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
    assert made.biases.features["headroom"] != "on"
