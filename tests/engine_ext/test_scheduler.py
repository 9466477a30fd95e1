"""The plugin in vLLM's real scheduler and KV cache manager, without a model, on a virtual clock."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from lab.engine.simulated import SimulatedEngine, SimulatedOptions
from turnpike_vllm.hints import ACTION_TYPE, ACTION_VERSION, Hint, ServiceClass
from turnpike_vllm.retain.pool import host_blocks
from turnpike_vllm.step_planner import LOOK_EVERY

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SIZE = 16
Make = Callable[..., SimulatedEngine]


@pytest.fixture(scope="module")
def make() -> Make:

    def build(**options: Any) -> SimulatedEngine:
        defaults: dict[str, Any] = {"blocks": 101, "block_size": SIZE, "max_batched_tokens": 512}
        return SimulatedEngine(SimulatedOptions(**{**defaults, **options}))

    return build


def prompt(seed: int, tokens: int) -> list[int]:
    return [(seed * 7_919 + place * 31) % 15_000 for place in range(tokens)]


def balanced(engine: SimulatedEngine) -> None:
    """What the pool's own records say, and what we tell of them."""
    assert sum(engine.account()) == engine.total_blocks
    if engine.plugin is not None:
        told = engine.plugin.snapshot()["blocks"]
        free, used, retained = engine.account()  # what was told let go of what had expired
        size = {} if engine.copies is None else {"host": engine.copies.memory.blocks}
        size = size if host_blocks(engine.scheduler) else {}  # before 0.28 vLLM does not say
        assert told == {"total": engine.total_blocks, "free": free, "used": used, "retained": retained} | size


def counters(engine: SimulatedEngine) -> Any:
    return engine.plugin.counters()


class TestPassing:
    """Steps in which nothing changes decide nothing."""

    def settled(self, make: Make, **options: Any) -> SimulatedEngine:
        """Two decode, and a paused session holds its state for a minute."""
        engine = make(blocks=1_001, **options)
        engine.submit(prompt(1, 480), max_tokens=2, hint=Hint(session="paused", seq=1, retain_s=60.0))
        engine.run()
        for name in ("a", "b"):
            engine.submit(prompt(2, 480), max_tokens=2_000, hint=Hint(session=name, seq=1))
        self.schedule(engine, LOOK_EVERY)
        assert engine.plugin.planner.is_steady and engine.account()[2] > 0
        return engine

    @staticmethod
    def schedule(engine: SimulatedEngine, steps: int) -> None:
        """So many more, and on to the first of those that are passed in a row."""
        planner = engine.plugin.planner
        until = planner.steps + steps
        while planner.steps < until or planner.steps % LOOK_EVERY != 1:
            engine.step()

    def looked_at(self, engine: SimulatedEngine, steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
        planner, before_step = engine.plugin.planner, engine.plugin.before_step
        looks, until = list[int](), planner.steps + steps

        def look() -> None:
            looks.append(planner.steps)
            before_step()

        with monkeypatch.context() as patch:
            patch.setattr(engine.plugin, "before_step", look)
            while planner.steps < until:
                engine.step()
        return len(looks)

    def test_one_in_so_many_is_looked_at(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.looked_at(self.settled(make), 10 * LOOK_EVERY, monkeypatch) == 10

    def test_slow_steps_are_looked_at_every_second(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = self.settled(make, step_time=lambda load: 0.26)
        assert self.looked_at(engine, 4 * LOOK_EVERY, monkeypatch) >= LOOK_EVERY

    @pytest.mark.parametrize(
        ("part", "name"), [("retainer", "observe"), ("retainer", "expire"), ("pace", "observe")]
    )
    def test_what_fails_among_passed_steps_leaves_vllm_as_it_was(
        self, make: Make, part: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = self.settled(make)

        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(getattr(engine.plugin, part), name, broken)
            for _ in range(4 * LOOK_EVERY):
                engine.step()
        assert engine.plugin.is_inert
        assert not {"schedule", "update_from_output"} & set(vars(engine.scheduler))
        assert "allocate_slots" not in vars(engine.scheduler.kv_cache_manager)
        engine.run()
        assert [len(each.tokens) for each in engine.done.values()] == [2, 2_000, 2_000]
        assert engine.account() == (engine.total_blocks, 0, 0)

    def test_a_hint_is_seen_at_once(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = self.settled(make)
        assert self.looked_at(engine, 1, monkeypatch) == 0
        engine.hint(Hint(session="a", seq=2, service=ServiceClass.PROACTIVE))
        assert self.looked_at(engine, 1, monkeypatch) == 1

    def test_who_comes_and_goes_is_seen_at_once(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = self.settled(make)
        name = engine.submit(prompt(3, 32), max_tokens=2_000)
        assert self.looked_at(engine, 1, monkeypatch) == 1
        self.schedule(engine, LOOK_EVERY)
        assert self.looked_at(engine, 1, monkeypatch) == 0
        engine.abort(name)
        assert self.looked_at(engine, 1, monkeypatch) == 1

    def test_what_is_due_is_due_in_the_very_step(self, make: Make) -> None:
        engine = self.settled(make)
        engine.hint(Hint(session="paused", seq=2, retain_s=0.02))
        until = engine.now + 0.02
        while engine.now < until:
            assert engine.account()[2] > 0
            engine.step()
        engine.step()
        assert engine.account()[2] == 0 and engine.plugin.planner.steps % LOOK_EVERY > 2

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_the_time_of_a_step_is_measured_in_those_that_are_looked_at(self, make: Make, depth: int) -> None:
        engine = make(blocks=1_001, depth=depth)
        engine.submit(prompt(1, 480), max_tokens=1_700, hint=Hint(session="a", seq=1))
        for _ in range(1_600):
            engine.step()
        pace, steps = engine.plugin.pace, engine.steps
        assert steps / LOOK_EVERY - 2 <= pace.steps <= steps / LOOK_EVERY + 8
        assert pace.predict(rows=1, context=1_000) == pytest.approx(0.004034, rel=0.03)


class TestAsleep:
    def test_without_hints_nothing_is_in_the_way(self, make: Make) -> None:
        engine, stock = make(), make(has_plugin=False)
        for each in (engine, stock):
            for seed in range(20):
                each.submit(prompt(seed, 200), max_tokens=20)
            each.run()
        assert "schedule" not in vars(engine.scheduler)
        assert type(engine.scheduler.waiting) is type(stock.scheduler.waiting)
        assert engine.plugin.snapshot()["state"] == "asleep"
        assert [vars(each) for each in engine.done.values()] == [vars(each) for each in stock.done.values()]
        balanced(engine)

    def test_a_step_costs_no_call_more(self, make: Make) -> None:
        """Time is measured by `benchmarks.plugin cost`; this holds whatever else the machine does."""

        def calls_of_a_step(engine: SimulatedEngine) -> Counter[str]:
            for seed in range(4):
                engine.submit(prompt(seed, 40), max_tokens=100)
            for _ in range(20):
                engine.step()
            found = Counter[str]()

            def note(frame: FrameType, event: str, called: Any) -> None:
                if event in ("call", "c_call"):
                    found[frame.f_code.co_qualname if event == "call" else called.__qualname__] += 1

            def counted(act: Callable[[], Any]) -> Any:
                sys.setprofile(note)
                try:
                    return act()
                finally:
                    sys.setprofile(None)

            output = counted(engine.scheduler.schedule)
            made = engine.make_model_output(output)
            counted(lambda: engine.scheduler.update_from_output(output, made))
            return found

        stock, asleep = (calls_of_a_step(make(has_plugin=each, depth=1)) for each in (False, True))
        assert asleep == stock and sum(stock.values()) > 100

    def test_a_wrong_setting_leaves_vllm_as_it_is(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        engine = make(turnpike={"retention": {"grace": 1}})
        assert engine.plugin is None
        assert len([each for each in caplog.records if each.name == "vllm.turnpike"]) == 1
        name = engine.submit(prompt(1, 50), hint=Hint(session="s", seq=1))
        engine.run()
        assert engine.done[name].finished is not None

    def test_the_first_hint_wakes_it_in_the_middle_of_work(self, make: Make) -> None:
        engine = make()
        for seed in range(30):
            engine.submit(prompt(seed, 200), max_tokens=20)
        for _ in range(5):
            engine.step()
        engine.submit(prompt(99, 64), hint=Hint(session="s", seq=1))
        engine.run()
        assert all(each.finished is not None for each in engine.done.values())
        balanced(engine)


class TestWhatIsAskedForEachRequest:
    """While everybody decodes, nothing is; whoever could be cut, refused or left out is asked about."""

    def watched(self, engine: SimulatedEngine) -> tuple[bool, bool]:
        chunk = engine.scheduler._reserve_prefill_lookahead
        memory = engine.scheduler.kv_cache_manager.allocate_slots
        ours = "turnpike_vllm.scheduler"
        return chunk.__module__ == ours, memory.__module__ == ours

    @pytest.mark.chunk_sizes
    def test_nothing_while_all_decode(self, make: Make) -> None:
        engine = make(depth=1)
        for seed in range(3):
            engine.submit(prompt(seed, 100), max_tokens=100, hint=Hint(session=f"s{seed}", seq=1))
        assert self.watched(engine) == (True, True)
        for _ in range(20):
            engine.step()
        assert self.watched(engine) == (False, False)
        engine.submit(prompt(9, 100), max_tokens=2, hint=Hint(session="s9", seq=1))
        engine.schedule()
        assert self.watched(engine) == (True, True)

    def test_what_is_held_goes_before_anybody_who_runs(self, make: Make) -> None:
        engine = make(depth=1, max_batched_tokens=1_024)
        engine.submit(prompt(1, 20 * SIZE), max_tokens=2, hint=Hint(session="paused", seq=1, retain_s=60))
        engine.run()
        assert engine.account()[2] == 20
        for seed in (2, 3):
            hint = Hint(session=f"s{seed}", seq=1, retain_s=0.0)
            engine.submit(prompt(seed, 4 * SIZE), max_tokens=44 * SIZE, hint=hint)
        engine.run()
        assert counters(engine)["preemptions"] == {}
        assert counters(engine)["releases"] == {"running": 1}
        assert all(len(each.tokens) in (2, 44 * SIZE) for each in engine.done.values())


class TestHints:
    def test_malformed_ones_are_counted_and_the_request_runs(self, make: Make) -> None:
        engine = make()
        for text in ("{", '{"v":9,"session":"s","seq":1}', '{"v":1}', Hint(session="s", seq=2)):
            engine.submit(prompt(1, 40), hint=text)
        engine.submit(prompt(1, 40), hint=Hint(session="s", seq=1))
        engine.run()
        assert all(each.finished is not None for each in engine.done.values())
        assert counters(engine)["hints"] == {"malformed": 2, "unknown": 1, "followed": 1, "stale": 1}

    def test_in_an_envelope(self, make: Make) -> None:
        from types import SimpleNamespace

        engine = make()
        action = SimpleNamespace(
            action_type=ACTION_TYPE,
            action_version=ACTION_VERSION,
            payload={"hint": Hint(session="s", seq=1, retain_s=9.0).as_json()},
        )
        name = engine.submit(prompt(1, 64))
        engine.scheduler.requests[name].kv_hints = SimpleNamespace(actions=[action])
        engine.plugin.arriving(engine.scheduler.requests[name])
        engine.run()
        assert counters(engine)["hints"] == {"followed": 1}
        assert counters(engine)["holds"] == {"held": 1}


class TestRetention:
    def warm(self, make: Make, **options: Any) -> tuple[SimulatedEngine, list[int], str]:
        """A session whose first turn has just ended: the engine, its history, the turn's id."""
        engine = make(**options)
        first = prompt(1, 480)
        name = engine.submit(first, max_tokens=16, hint=Hint(session="s", seq=1, retain_s=10.0))
        engine.run()
        return engine, first + engine.done[name].tokens, name

    def turn_2(self, engine: SimulatedEngine, history: list[int]) -> int:
        hint = Hint(session="s", seq=9)
        name = engine.submit([*history, *prompt(5, 40)], hint=hint)
        engine.run()
        return engine.done[name].cached_tokens

    def crowd(self, engine: SimulatedEngine) -> None:
        for seed in range(12):
            engine.submit(prompt(50 + seed, 480), max_tokens=16)
            engine.run(until=engine.now + 0.004)
        engine.run()

    def test_the_state_of_a_pause_survives_a_crowd(self, make: Make) -> None:
        engine, history, _ = self.warm(make)
        stock, stock_history, _ = self.warm(make, has_plugin=False)
        for each in (engine, stock):
            self.crowd(each)
        balanced(engine)
        assert self.turn_2(stock, stock_history) == 0
        assert self.turn_2(engine, history) == 480
        assert counters(engine)["releases"] == {"returned": 1}
        told = engine.plugin.snapshot()
        assert told["acted"]["retention"] >= 1 and told["saved_s"]["retention"] > 0.0
        engine.submit(prompt(99, 400), hint=Hint(session="s", seq=99))  # as behind a compaction
        engine.run()
        assert engine.plugin.snapshot()["saved_s"] == told["saved_s"], "what it does not find, nobody saved"

    def test_the_hold_ends_by_itself_even_when_nothing_runs(self, make: Make) -> None:
        engine, _, _ = self.warm(make)
        assert engine.plugin.snapshot()["next_deadline_s"] == pytest.approx(10.0, abs=0.1)
        engine.idle(10.0)
        assert engine.plugin.snapshot()["blocks"]["retained"] == 0
        assert engine.account()[2] == 0
        assert counters(engine)["releases"] == {"expired": 1}

    def test_later_hints_extend_shorten_and_end_it(self, make: Make) -> None:
        engine, _, _ = self.warm(make)
        engine.hint(Hint(session="s", seq=2, retain_s=60.0))
        engine.idle(30.0)
        engine.plugin.tick()
        assert engine.account()[2] == 30
        engine.hint(Hint(session="s", seq=1, retain_s=0.0))  # late: it was sent before the other
        engine.hint(Hint(session="s", seq=2, retain_s=0.0))  # the same again
        assert engine.account()[2] == 30
        engine.hint(Hint(session="s", seq=3, is_finished=True))
        assert engine.account()[2] == 0
        assert counters(engine)["releases"] == {"finished": 1}
        assert counters(engine)["hints"]["stale"] == 2

    def test_no_hold_for_aborted_finished_or_final_turns(self, make: Make) -> None:
        engine = make()
        name = engine.submit(prompt(1, 200), max_tokens=400, hint=Hint(session="a", seq=1))
        for _ in range(9):
            engine.step()
        engine.abort(name)
        engine.submit(prompt(2, 200), hint=Hint(session="b", seq=1, is_final=True))
        engine.submit(prompt(3, 200), hint=Hint(session="c", seq=1))
        engine.hint(Hint(session="c", seq=2, is_finished=True))
        engine.run()
        assert counters(engine)["holds"] == {}
        balanced(engine)

    def test_a_final_turn_with_a_time_is_held(self, make: Make) -> None:
        engine = make()
        engine.submit(prompt(2, 200), hint=Hint(session="b", seq=1, is_final=True, retain_s=3.0))
        engine.submit(prompt(3, 200), hint=Hint(session="c", seq=1, is_final=True, prefetch_in_s=3.0))
        engine.run()
        assert counters(engine)["holds"] == {"held": 2}

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_a_waiting_one_takes_after_a_second(self, make: Make, policy: str) -> None:
        engine, _, _ = self.warm(make, policy=policy)
        runner = engine.submit(prompt(8, 160), max_tokens=600)
        engine.run(until=engine.now + 0.1)
        newcomer = engine.submit(prompt(9, 1_000), max_tokens=4)
        engine.run(until=engine.now + 0.9)
        assert engine.done[newcomer].first_token is None
        engine.run(until=engine.now + 0.3)
        assert engine.done[newcomer].first_token is not None
        assert engine.done[runner].finished is None
        assert counters(engine)["releases"] == {"waited": 1}

    def test_a_hint_that_is_none_wakes_nobody(self, make: Make) -> None:
        engine = make()
        engine.submit(prompt(1, 100), hint="{")
        engine.run()
        assert engine.plugin.snapshot()["state"] == "asleep" and "schedule" not in vars(engine.scheduler)
        assert counters(engine)["hints"] == {"malformed": 1}

    def test_who_waits_for_memory_waits_once_and_not_one_after_the_other(self, make: Make) -> None:
        engine = make(blocks=401, max_batched_tokens=2_048)
        for seed in range(9):
            engine.submit(prompt(seed, 640), max_tokens=4, hint=Hint(session=f"p{seed}", seq=1, retain_s=60))
            engine.run()
        engine.submit(prompt(99, 100), max_tokens=1_500)
        engine.step()
        crowd = [engine.submit(prompt(100 + number, 780), max_tokens=400) for number in range(6)]
        engine.run(until=engine.now + 2.0)
        waited = [engine.done[each].ttft_s for each in crowd]
        assert max(waited) < 1.3 and sum(each > 1.0 for each in waited) >= 3
        assert counters(engine)["releases"]["waited"] >= 3

    def test_nothing_is_taken_that_would_not_help(self, make: Make) -> None:
        engine, _, _ = self.warm(make)
        engine.submit(prompt(8, 700), max_tokens=400)
        engine.run(until=engine.now + 0.1)
        newcomer = engine.submit(prompt(9, 1_300), max_tokens=4)
        engine.run(until=engine.now + 1.5)
        assert engine.done[newcomer].first_token is None
        assert counters(engine)["releases"] == {}

    def test_an_engine_with_nothing_else_to_do_makes_room_at_once(self, make: Make) -> None:
        engine, _, _ = self.warm(make)
        newcomer = engine.submit(prompt(9, 1_400), max_tokens=4)
        engine.run(until=engine.now + 0.2)
        assert engine.done[newcomer].first_token is not None
        assert counters(engine)["releases"] == {"alone": 1}

    def test_a_reset_empties_everything(self, make: Make) -> None:
        engine, history, _ = self.warm(make)
        assert engine.scheduler.reset_prefix_cache()
        assert engine.account() == (engine.total_blocks, 0, 0)
        assert self.turn_2(engine, history) == 0
        assert counters(engine)["releases"] == {"reset": 1}

    @pytest.mark.parametrize("gap_s", [0.0, 0.001, 0.005])
    def test_a_tool_faster_than_its_hints_finds_its_state(self, make: Make, gap_s: float) -> None:
        """What a gateway says about each pause comes 200 ms late, doubled and out of order."""
        engine = make()
        history, late = prompt(1, 300), list[tuple[float, Hint]]()
        for turn in range(8):
            hint = Hint(session="s", seq=10 * turn, retain_s=2.0)
            name = engine.submit(history, max_tokens=16, hint=hint)
            engine.run()
            assert engine.done[name].cached_tokens >= (0 if turn == 0 else len(history) - 16 - 2 * SIZE)
            history += engine.done[name].tokens
            about = [Hint(session="s", seq=10 * turn + n, retain_s=n * 3.0) for n in (2, 1, 2)]
            late += [(engine.now + 0.2, each) for each in about]
            engine.idle(gap_s)
            for due, hint in [each for each in late if each[0] <= engine.now]:
                engine.hint(hint)
                late.remove((due, hint))
            balanced(engine)
        for _, hint in late:
            engine.hint(hint)
        engine.idle(20.0)
        engine.plugin.tick()
        assert engine.account() == (engine.total_blocks, 0, 0)

    def test_threads_of_a_session_keep_their_state_apart(self, make: Make) -> None:
        engine = make()
        for number, thread in enumerate(("main", "sub")):
            engine.submit(prompt(number, 160), hint=Hint(session="s", thread=thread, seq=1, retain_s=9.0))
        engine.run()
        told = engine.plugin.snapshot()
        assert told["sessions"]["s"]["retained"] == told["blocks"]["retained"] == 20
        assert told["sessions"]["s"]["resident"] == 20


class TestOrder:
    def test_the_next_call_of_an_old_task_goes_before_long_prompts_of_new_ones(self, make: Make) -> None:
        order = {}
        for biased in (False, True):
            engine = make(blocks=2_000, has_plugin=biased)
            for seed in range(4):
                engine.submit(prompt(seed, 5_000), max_tokens=2, hint=Hint(session=f"long{seed}", seq=1))
            old = Hint(session="old", seq=1, age_s=20.0)
            short = engine.submit(prompt(9, 100), max_tokens=2, hint=old)
            engine.run()
            order[biased] = engine.done[short].ttft_s
        assert order[True] < 0.2 * order[False]

    def test_classes_and_tasks(self, make: Make) -> None:
        engine = make(blocks=2_000, max_num_seqs=1)
        engine.submit(prompt(0, 100), max_tokens=30, hint=Hint(session="first", seq=1))
        engine.step()
        hints = [
            Hint(session="young", seq=1),
            Hint(session="old", seq=1, age_s=50.0),
            Hint(session="background", seq=1, service=ServiceClass.PROACTIVE, age_s=90.0),
        ]
        names = [engine.submit(prompt(n, 100), max_tokens=2, hint=hint) for n, hint in enumerate(hints, 1)]
        engine.run()
        by_time = sorted(names, key=lambda name: engine.done[name].first_token or 0.0)
        assert by_time == [names[1], names[0], names[2]]

    def test_nobody_waits_for_ever_behind_newcomers(self, make: Make) -> None:
        engine = make(blocks=2_000, max_num_seqs=1)
        engine.submit(prompt(0, 100), max_tokens=50, hint=Hint(session="x", seq=1))
        poor = engine.submit(prompt(1, 4_500), max_tokens=2, hint=Hint(session="poor", seq=1))
        for number in range(400):
            if engine.done[poor].first_token is not None:
                break
            engine.submit(prompt(number, 100), max_tokens=40, hint=Hint(session=f"n{number}", seq=1))
            engine.run(until=engine.now + 0.1)
        assert engine.done[poor].ttft_s < 32.0


@pytest.mark.chunk_sizes
class TestClasses:
    def test_background_work_shares_steps_within_slack_and_still_ends(self, make: Make) -> None:
        engine = make(blocks=8_000, max_batched_tokens=2_048)
        for number in range(24):
            hint = Hint(session=f"b{number}", seq=1, service=ServiceClass.PROACTIVE)
            engine.submit(prompt(number, 2_000), max_tokens=200, hint=hint)
        engine.run(until=1.0)
        for number in range(6):
            engine.submit(prompt(90 + number, 200), max_tokens=60, hint=Hint(session=f"r{number}", seq=1))
            engine.run(until=engine.now + 0.3)
        engine.run()
        assert all(each.finished is not None for each in engine.done.values())
        assert counters(engine)["classes"]["left_out"] > 0

    def test_when_somebody_s_answer_is_done_those_who_stepped_aside_go_on_at_once(self, make: Make) -> None:
        engine = make(blocks=8_000, max_batched_tokens=2_048)
        for number in range(40):
            hint = Hint(session=f"b{number}", seq=1, service=ServiceClass.PROACTIVE)
            engine.submit(prompt(number, 1_000), max_tokens=400, hint=hint)
        engine.run(until=1.0)
        quick = engine.submit(prompt(99, 100), max_tokens=40, hint=Hint(session="r", seq=1))
        while engine.done[quick].finished is None:
            engine.step()
        assert counters(engine)["classes"]["left_out"] > 0
        left_out = counters(engine)["classes"]["left_out"]
        engine.run(until=engine.now + 0.1)
        assert counters(engine)["classes"]["left_out"] <= left_out + 40
