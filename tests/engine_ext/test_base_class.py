"""The plugin goes before the scheduler class that vLLM itself would have taken."""

from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from lab.engine.simulated_config import Parts

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("is_async", [True, False])
def test_it_overlaps_steps_where_vllm_does(is_async: bool) -> None:
    def configure(parts: Parts) -> None:
        parts.is_async = is_async

    def build(**options: Any) -> Any:
        return SimulatedEngine(SimulatedOptions(configure=configure, **options)).scheduler

    stock, biased = build(is_biased=False), build()
    assert type(stock).__name__ == ("AsyncScheduler" if is_async else "Scheduler")
    # What is between them is the plugin alone.
    added = [each.__name__ for each in type(biased).__mro__ if each not in type(stock).__mro__]
    assert set(added) == {"TurnpikeScheduler", "TurnpikeMixin"}
    assert biased.turnpike is not None


def test_as_vllm_finds_it_by_name() -> None:
    """Some versions look whether the class is an `AsyncScheduler` before they overlap steps."""
    from vllm.config import SchedulerConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    config = SchedulerConfig(
        max_model_len=128,
        is_encoder_decoder=False,
        scheduler_cls="turnpike_vllm.scheduler.TurnpikeScheduler",
    )
    assert issubclass(config.get_scheduler_cls(), AsyncScheduler)


def test_a_queue_that_lacks_what_vllm_s_queues_have_is_not_used() -> None:
    """Registered as a subclass, it passes `isinstance` whatever it lacks."""
    from abc import abstractmethod

    from vllm.v1.core.sched.request_queue import RequestQueue

    from turnpike_vllm.detection import queue_lacks

    class Newer(RequestQueue):  # type: ignore[misc]
        @abstractmethod
        def rotate_requests(self) -> None: ...

    assert queue_lacks(RequestQueue) is None
    assert queue_lacks(Newer) == "our queue has no rotate_requests"


def test_then_the_coordinator_is_off_and_the_rest_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnpike_vllm.hints import Hint
    from turnpike_vllm.waiting import RankedQueue

    monkeypatch.delattr(RankedQueue, "prepend_request")
    engine = SimulatedEngine(SimulatedOptions())
    features = engine.biases.features
    assert features["coordinator"] == features["victims"] == "our queue has no prepend_request"
    assert features["retention"] == features["opportunist"] == "on"
    engine.submit([1, 2, 3], hint=Hint(session="s", seq=1))
    engine.run()
    assert type(engine.scheduler.waiting).__name__ == "FCFSRequestQueue"
    assert engine.done["r0"].finished is not None
