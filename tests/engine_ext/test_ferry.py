"""The host tier on vLLM's real scheduler and the real scheduler side of its native offload."""

from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from lab.engine.simulated_host import HostMemory
from tests.engine_ext.test_scheduler import balanced, prompt
from turnpike_vllm.hints import Hint
from turnpike_vllm.retention import Thread

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SIZE, BLOCKS = 64, 101
TURN = 3_000
"""Tokens: 47 blocks, and 0.06 s to copy them."""
HOST = HostMemory(blocks=1_000, bytes_per_s=5e9)


def build(**options: Any) -> SimulatedEngine:
    defaults: dict[str, Any] = {"blocks": BLOCKS, "block_size": SIZE, "host": HOST}
    return SimulatedEngine(SimulatedOptions(**{**defaults, **options}))


def pause(engine: SimulatedEngine, **more: Any) -> list[int]:
    """Session a says its first turn; returns what its next prompt begins with."""
    first = engine.submit(prompt(1, TURN), hint=Hint(session="a", seq=1, reuse=0.9, **more))
    engine.run()
    return prompt(1, TURN) + engine.done[first].tokens


def strangers(engine: SimulatedEngine, number: int, seed: int = 100) -> None:
    for each in range(number):
        engine.submit(prompt(seed + each, TURN), hint=Hint(session=f"s{seed + each}", seq=1, is_final=True))


def sent_away(**options: Any) -> tuple[SimulatedEngine, list[int]]:
    """It pauses for 20 s, and a crowd needs its blocks."""
    engine = build(**options)
    history = pause(engine, prefetch_in_s=20.0)
    strangers(engine, 12)
    return engine, history


def come_back(engine: SimulatedEngine, history: list[int]) -> str:
    name = engine.submit(history + prompt(9, 60), hint=Hint(session="a", seq=2))
    engine.run()
    return name


def counts(engine: SimulatedEngine) -> dict[str, int]:
    found: dict[str, int] = engine.plugin.counters()["host_tier"]
    return found


class TestLeaving:
    def test_without_an_offload_it_is_off_and_nothing_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = build(host=None)
        assert engine.plugin.features["host_tier"] == "no KV offload is configured"
        assert [each for each in caplog.records if each.name == "vllm.turnpike"] == []
        assert engine.plugin.snapshot()["host_tier"] is None

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"host_tier": False}, "switched off"),
            ({"retention": False}, "retention is switched off"),
            ({}, "on"),
        ],
    )
    def test_what_it_says_of_itself(self, settings: dict[str, Any], why: str) -> None:
        assert build(turnpike=settings).plugin.features["host_tier"] == why

    def test_while_nobody_needs_the_blocks_they_stay(self) -> None:
        engine = build()
        pause(engine, prefetch_in_s=20.0)
        engine.idle_until(10.0)
        assert engine.account()[2] == 47 and counts(engine) == {}

    def test_somebody_who_waits_sends_away_a_long_gap_at_once(self) -> None:
        engine, _ = sent_away()
        engine.run(until=engine.now + 0.9)  # less than retention.wait_s
        assert counts(engine)["gave_way"] == 1
        assert engine.plugin.counters()["releases"] == {"demoted": 1}
        balanced(engine)

    def test_a_short_gap_stays(self) -> None:
        engine = build()
        pause(engine, prefetch_in_s=0.1)
        strangers(engine, 2)
        engine.run(until=engine.now + 0.05)
        assert counts(engine) == {} and engine.account()[2] == 47

    @pytest.mark.parametrize(("gap_s", "goes"), [(20.0, True), (0.1, False)])
    def test_under_pressure_a_long_gap_goes_before_anybody_asks(self, gap_s: float, goes: bool) -> None:
        engine = build(host=HostMemory(blocks=1_000, bytes_per_s=1e9))
        engine.submit(prompt(50, 80 * SIZE), max_tokens=600, hint=Hint(session="long", seq=1))
        engine.run(until=1.0)
        said = Hint(session="a", seq=1, reuse=0.9, prefetch_in_s=gap_s)
        name = engine.submit(prompt(1, 600), max_tokens=4, hint=said)
        while engine.done[name].finished is None:
            engine.step()
        ended = engine.now
        engine.run(until=ended + 0.15)
        assert counts(engine).get("demoted", 0) == goes
        assert engine.account()[2] == (0 if goes else 9)


class TestCalls:
    def test_it_is_back_before_it_returns(self) -> None:
        engine, history = sent_away()
        engine.idle_until(20.1)
        told = counts(engine)
        assert (told["gave_way"], told["called"], told["brought_back"]) == (1, 1, 1)
        assert engine.account()[2] == 47
        balanced(engine)
        loaded = engine.copies.loaded_blocks if engine.copies else 0
        back = engine.done[come_back(engine, history)]
        assert back.cached_tokens == 47 * SIZE and back.ttft_s < 0.02
        assert engine.copies is not None and engine.copies.loaded_blocks == loaded  # nothing was left to load
        assert counts(engine)["back_here"] == 1
        assert engine.plugin.snapshot()["state"] == "awake"

    def test_without_calls_the_turn_waits_for_its_copy(self) -> None:
        engine, history = sent_away(turnpike={"host_tier": {"max_calls": 0}})
        engine.idle_until(20.1)
        back = engine.done[come_back(engine, history)]
        assert back.cached_tokens == 47 * SIZE and back.ttft_s > 0.05
        assert "called" not in counts(engine) and counts(engine)["back_away"] == 1

    def test_who_returns_while_being_called_waits_for_that_copy_alone(self) -> None:
        engine, history = sent_away()
        engine.idle_until(19.0)
        name = engine.submit(history + prompt(9, 60), hint=Hint(session="a", seq=2))
        assert engine.copies is not None
        loaded = engine.copies.loaded_blocks
        engine.abort(name)
        engine.idle_until(19.6)
        engine.hint(Hint(session="a", seq=3, prefetch_in_s=1.0))
        name = come_back(engine, history)
        assert engine.done[name].cached_tokens == 47 * SIZE
        assert engine.copies.loaded_blocks - loaded <= 47
        balanced(engine)

    def test_a_call_takes_nothing_from_those_who_wait_or_run(self) -> None:
        engine = build()
        pause(engine, prefetch_in_s=3.0)
        strangers(engine, 60)
        engine.run(until=2.9)
        assert engine.scheduler.waiting
        engine.run(until=4.0)
        assert counts(engine)["no_room"] == 1 and "called" not in counts(engine)

    def test_while_somebody_waits_for_a_place_nobody_is_called(self) -> None:
        engine, _ = sent_away(max_num_seqs=2)
        engine.idle_until(19.8)
        for seed in (70, 71, 72):  # small: there is memory enough
            engine.submit(prompt(seed, SIZE), max_tokens=100)
        engine.idle_until(20.09)
        assert counts(engine)["no_room"] == 1
        assert not {"called", "refused"} & counts(engine).keys()

    def test_without_blocks_to_spare_nobody_is_called(self) -> None:
        engine, _ = sent_away()
        engine.idle_until(19.7)
        engine.submit(prompt(70, 60 * SIZE), max_tokens=200)
        engine.idle_until(20.09)
        assert counts(engine)["no_room"] == 1
        assert not {"called", "refused"} & counts(engine).keys()

    def test_what_the_host_has_lost_is_not_called(self) -> None:
        engine, _ = sent_away(host=HostMemory(blocks=100, bytes_per_s=5e9))
        engine.idle_until(20.1)
        assert counts(engine)["not_on_host"] == 1 and "called" not in counts(engine)

    def test_a_reset_while_it_is_on_its_way_leaves_nothing(self) -> None:
        engine, _ = sent_away()
        engine.idle_until(19.98)
        assert engine.plugin.snapshot()["host_tier"]["called"] == 1
        luggage = engine.plugin.retainer.ferry.tier.get(Thread("a", "")).luggage
        engine.scheduler.reset_prefix_cache()
        engine.run()
        assert engine.account() == (engine.total_blocks, 0, 0)
        assert len(engine.plugin.pool.cached_prefix(luggage.hashes)) < luggage.on_host
        assert "brought_back" not in counts(engine)

    def test_a_bias_that_fails_leaves_nothing_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, _ = sent_away()
        engine.idle_until(19.98)

        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(engine.plugin.planner, "before_step", broken)
        strangers(engine, 4, seed=200)
        engine.run()
        assert engine.plugin.snapshot()["state"] == "inert"
        assert engine.account() == (engine.total_blocks, 0, 0)

    def test_a_finished_session_is_not_called(self) -> None:
        engine, _ = sent_away()
        engine.run(until=5.0)
        engine.hint(Hint(session="a", seq=2, is_finished=True))
        engine.idle_until(25.0)
        assert "called" not in counts(engine) and engine.account()[0] == engine.total_blocks

    def test_bandwidth_is_measured(self) -> None:
        engine = build()
        pause(engine, prefetch_in_s=20.0)
        told = engine.plugin.snapshot()["host_tier"]
        assert told["to_host_bytes_per_s"] == pytest.approx(5e9, rel=0.1)
