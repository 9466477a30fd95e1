"""Should a bias fail, vLLM goes on as if the plugin were not there; what is remembered is bounded."""

from collections.abc import Callable
from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from lab.engine.simulated_config import Parts
from tests.engine_ext.test_scheduler import balanced, prompt
from turnpike_vllm.hints import Hint, ServiceClass
from turnpike_vllm.method_patches import MAX_RETRIES, RETRY_AFTER_S

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SIZE = 16


class InjectedError(Exception):
    pass


def build(**options: Any) -> SimulatedEngine:
    defaults: dict[str, Any] = {
        "blocks": 101,
        "block_size": SIZE,
        "max_num_seqs": 6,
        "max_batched_tokens": 256,
        "reserve_full_input": False,
    }
    return SimulatedEngine(SimulatedOptions(**{**defaults, **options}))


def raises_at_call(number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise InjectedError
        return original(*args, **kwargs)

    return broken


def work(engine: SimulatedEngine) -> None:
    """Every bias has something to do: pauses, a crowd, a better class, more than fits."""
    for number in range(4):
        hint = Hint(session=f"p{number}", seq=1, retain_s=20.0, prefetch_in_s=0.5, reuse=0.9)
        engine.submit(prompt(number, 200), max_tokens=8, hint=hint)
    engine.run(until=engine.now + 0.2)
    for number in range(8):
        hint = Hint(session=f"b{number}", seq=1, service=ServiceClass.PROACTIVE, age_s=9.0 * number)
        engine.submit(prompt(20 + number, 300), max_tokens=120, hint=hint)
    engine.run(until=engine.now + 0.3)
    for number in range(8):
        engine.submit(prompt(40 + number, 150), max_tokens=30, hint=Hint(session=f"r{number}", seq=1))
        engine.run(until=engine.now + 0.02)
    for number in range(4):
        engine.hint(Hint(session=f"p{number}", seq=2, retain_s=9.0))
        engine.submit(prompt(number, 260), max_tokens=8, hint=Hint(session=f"p{number}", seq=3))
    for number in range(8):
        engine.submit(prompt(60 + number, 300), max_tokens=20)
        engine.run(until=engine.now + 0.02)
    engine.run(max_steps=20_000)


def is_vllm_s_own(engine: SimulatedEngine) -> None:
    """Nothing on any object that vLLM did not put there."""
    scheduler, manager = engine.scheduler, engine.scheduler.kv_cache_manager
    from vllm.v1.core.sched.request_queue import FCFSRequestQueue

    assert type(scheduler.waiting) is FCFSRequestQueue
    replaced = {
        "scheduler": {"schedule", "update_from_output", "_reserve_prefill_lookahead"} & set(vars(scheduler)),
        "manager": {"allocate_slots"} & set(vars(manager)),
        "pool": {"get_new_blocks"} & set(vars(manager.block_pool)),
        "connector": {"update_connector_output"} & set(vars(scheduler.connector or engine)),
    }
    assert replaced == {"scheduler": set(), "manager": set(), "pool": set(), "connector": set()}


FAULTS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "arriving": lambda plugin: (plugin, "arriving"),
    "before_step": lambda plugin: (plugin.planner, "before_step"),
    "after_step": lambda plugin: (plugin, "after_step"),
    "output_arrived": lambda plugin: (plugin, "output_arrived"),
    "chunk": lambda plugin: (plugin.planner, "chunk"),
    "starved": lambda plugin: (plugin.retainer, "make_room"),
    "preempting": lambda plugin: (plugin.planner, "invalidate"),
    "freeing": lambda plugin: (plugin.retainer, "turn_ended"),
    "admitted": lambda plugin: (plugin.retainer, "admitted"),
    "hint": lambda plugin: (plugin.retainer, "apply_hint"),
    "observe": lambda plugin: (plugin.retainer, "observe"),
    "rank": lambda plugin: (plugin.planner.queue, "_rank"),
    "next_rise": lambda plugin: (plugin.planner.queue, "_next_rise"),
    "hold": lambda plugin: (plugin.pool, "hold"),
    "let go": lambda plugin: (plugin.retainer.retention, "drop"),
}


@pytest.mark.parametrize("number", [1, 7])
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=pytest.mark.chunk_sizes) if each == "chunk" else each for each in FAULTS],
)
def test_whatever_fails_nobody_is_lost(
    fault: str, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build()
    engine.hint(Hint(session="wakes", seq=1))
    owner, name = FAULTS[fault](engine.plugin)
    broken: Any = raises_at_call(number, getattr(owner, name))
    monkeypatch.setattr(owner, name, broken)
    work(engine)
    assert all(each.finished is not None for each in engine.done.values())
    assert engine.is_idle
    if engine.plugin.is_inert:
        is_vllm_s_own(engine)
        assert engine.account() == (engine.total_blocks, 0, 0)
        state = engine.plugin.snapshot()
        assert state["state"] == "inert"
        errors = [
            each for each in caplog.records if each.name == "vllm.turnpike" and each.levelname == "ERROR"
        ]
        assert len(errors) == 1
        assert "given up: InjectedError" in state["features"].values()
        assert engine.scheduler.reset_prefix_cache()
        monkeypatch.undo()
        comes_back(engine)
    else:
        assert number > 1  # so often, it is not asked
        balanced(engine)


def comes_back(engine: SimulatedEngine) -> None:
    failed = engine.plugin
    engine.submit(prompt(90, 40), hint=Hint(session="too soon", seq=1))
    engine.run()
    assert engine.plugin is failed
    engine.idle(RETRY_AFTER_S)
    engine.submit(prompt(91, 40), hint=Hint(session="again", seq=1, retain_s=9.0))
    engine.run()
    state = engine.plugin.snapshot()
    assert (state["state"], state["failures"]) == ("awake", 1)
    assert "on" in state["features"].values() and state["sessions"]["again"]["retained"] > 0
    balanced(engine)


def test_what_runs_meanwhile_keeps_its_class_and_a_failed_start_is_final(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build()
    hint = Hint(session="w", seq=1, service=ServiceClass.PROACTIVE)
    engine.submit(prompt(1, 200), max_tokens=300, hint=hint)
    engine.run(until=0.1)
    for is_broken in (False, True):
        monkeypatch.setattr(engine.plugin.planner, "before_step", raises_at_call(1, lambda **_: None))
        engine.hint(Hint(session="w", seq=2))
        engine.run(until=engine.now + 0.1)
        assert engine.plugin.is_inert
        engine.idle(10 * RETRY_AFTER_S)
        if is_broken:
            monkeypatch.setattr(engine.scheduler, "_attach", raises_at_call(1, lambda: None))
        engine.submit(prompt(20, 60), hint=Hint(session="x", seq=1))
        if not is_broken:
            assert engine.plugin.planner.live[ServiceClass.PROACTIVE] == 1
    assert engine.plugin.is_inert and "cannot attach again" in caplog.text
    engine.run()
    is_vllm_s_own(engine)


def test_it_comes_back_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build()
    for failures in range(1, 2 + MAX_RETRIES):
        engine.hint(Hint(session="wakes", seq=1))
        running = engine.submit(prompt(failures, 200), max_tokens=300, hint=Hint(session="w", seq=1))
        engine.run(until=engine.now + 0.1)
        monkeypatch.setattr(engine.plugin.planner, "before_step", raises_at_call(1, lambda **_: None))
        engine.hint(Hint(session="wakes", seq=2))  # the next step is looked at
        engine.run(until=engine.now + 0.1)
        assert engine.plugin.is_inert and engine.plugin.failures == failures
        engine.idle(RETRY_AFTER_S * 2**failures)  # the request of the failed one runs on, beside the new one
        engine.submit(prompt(20 + failures, 60), hint=Hint(session="x", seq=1))
        engine.run()
        assert engine.done[running].finished is not None
        assert engine.plugin.is_inert == (failures > MAX_RETRIES)
        assert all(count == 0 for count in engine.plugin.planner.live.values()) or engine.plugin.is_inert


@pytest.mark.parametrize("is_async", [True, False])
def test_it_overlaps_steps_where_vllm_does(is_async: bool) -> None:
    def configure(parts: Parts) -> None:
        parts.is_async = is_async

    def build(**options: Any) -> Any:
        return SimulatedEngine(SimulatedOptions(configure=configure, **options)).scheduler

    stock, biased = build(has_plugin=False), build()
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

    from turnpike_vllm.detection import missing_of_queue

    class Newer(RequestQueue):  # type: ignore[misc]
        @abstractmethod
        def rotate_requests(self) -> None: ...

    assert missing_of_queue(RequestQueue) is None
    assert missing_of_queue(Newer) == "our queue has no rotate_requests"


def test_then_the_coordinator_is_off_and_the_rest_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnpike_vllm.hints import Hint
    from turnpike_vllm.waiting import RankedQueue

    monkeypatch.delattr(RankedQueue, "prepend_request")
    engine = SimulatedEngine(SimulatedOptions())
    features = engine.plugin.features
    assert features["coordinator"] == "our queue has no prepend_request"
    assert features["retention"] == "on"
    engine.submit([1, 2, 3], hint=Hint(session="s", seq=1))
    engine.run()
    assert type(engine.scheduler.waiting).__name__ == "FCFSRequestQueue"
    assert engine.done["r0"].finished is not None
