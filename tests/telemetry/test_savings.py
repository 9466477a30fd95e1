"""What was not computed again: against nothing cached, and against a balancer that knows no sessions."""

from typing import Any

import msgspec
import pytest

from gateway.domain import records as rec
from gateway.domain.decision import Edge
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.telemetry import savings
from gateway.telemetry.played_costs import Correction
from gateway.telemetry.savings import UNCHECKED, Saved, Savings
from tests.telemetry.turns import over, turn

FLEET = [ReplicaId("r0"), ReplicaId("r1")]


class Linear:
    """A second for 1,000 tokens of a prompt; a step takes 0.01 s. `bars`: of first tokens."""

    def __init__(self, *, known: bool = True, bars: tuple[float, float] = (1.0, 1.0)) -> None:
        self.known = known
        self._bars = bars

    def prefill_s(self, replica: ReplicaId, usage: Usage) -> float | None:
        return ((usage.prompt_tokens or 0) - (usage.cached_tokens or 0)) / 1000 if self.known else None

    def step_s(self, replica: ReplicaId, rows: int, context_tokens: float) -> float | None:
        return 0.01 if self.known else None

    def first_token_bars(self, replica: ReplicaId) -> tuple[float, float] | None:
        return self._bars if self.known else None


def of(watched: Any = None, *, fits: int | None = None, fleet: Any = FLEET, per_s: float = 1e9) -> Savings:
    return Savings(watched or Linear(), kv_tokens=lambda _: fits, replicas=lambda _: fleet, turns_per_s=per_s)


def told(made: Savings) -> Saved:
    made.settle()
    return made.saved()[PoolId("p")]


def talk(
    session: str, turns: int, *, began_s: float = 0.0, replica: str = "r0", grows: int = 1000
) -> list[rec.Record]:
    """Each turn brings so much more, and finds all that was there; every answer has 101 tokens."""
    found: list[rec.Record] = []
    at_s, cached, prompt = began_s, 0, 2000
    for number in range(turns):
        took_s = (prompt - cached) / 1000
        found += turn(
            f"{session}-{number}", session, at_s, prefill_s=took_s, decode_s=1.0, replica=replica,
            prompt=prompt, cached=cached, agent=session,
            edge=Edge.CONTINUES if number else Edge.OPENS, parent=f"{session}-{number - 1}",
        )  # fmt: skip
        at_s += took_s + 1.0 + 5.0  # its tool takes 5 s
        cached = prompt + 101
        prompt = cached + grows
    return found


def test_what_was_found_cached_was_not_computed():
    made = of()
    made.take(talk("s", 3))
    found = told(made)
    assert found.turns == 3
    assert found.prompt_tokens == 2000 + 3101 + 4202
    assert found.cached_tokens == 2101 + 3202
    assert found.cached_s == pytest.approx(5.303)
    assert found.computed_tokens == pytest.approx(2000 + 1000 + 1000)


def test_a_balancer_without_sessions_finds_half_of_it_on_two_replicas():
    made = of()
    made.take(talk("s", 3))
    found = told(made)
    # Round robin: the second turn runs where nothing is, the third where the first left 2,101 tokens.
    assert found.blind_tokens == pytest.approx(2000 + 3101 + (4202 - 2101))
    assert found.tokens == pytest.approx(2101 + 1101)
    assert found.busy_s == pytest.approx(4 + 3.0) and found.seconds == pytest.approx(3.202)
    assert found.error_s == pytest.approx(UNCHECKED * 3.202, abs=0.01), "what can be checked is exact here"


def test_on_one_replica_nothing_is_saved():
    made = of(fleet=FLEET[:1])
    made.take(talk("s", 5))
    assert told(made).seconds == pytest.approx(0.0, abs=1e-6)


def test_its_memory_is_as_small_as_theirs():
    """One after another, two conversations of 6,000 tokens each do not fit on a replica that holds 7,000."""
    both = [*talk("s", 4), *talk("u", 4, replica="r1"), *talk("v", 4)]  # of two, round robin keeps each apart
    both.sort(key=lambda record: record.at_s)
    roomy, tight = of(), of(fits=7_000)
    roomy.take(both)
    tight.take(both)
    assert told(tight).blind_tokens > told(roomy).blind_tokens


@pytest.mark.parametrize("is_over", [False, True])
def test_an_agent_that_waits_for_longer_sends_later(is_over):
    made, records = of(), talk("s", 2)
    made.take(records[:5])
    if is_over:
        made.settle()
    made.take(records[5:])
    made.settle()
    blind = made._left[RequestId("s-1")].blind
    # Its first turn ends as it did; 5 s later its tool is done, as it was.
    assert blind.sent_s == pytest.approx(3.0 + 5.0)
    assert blind.ended_s == pytest.approx(8.0 + 3.101 + 1.0), "all of it is computed"


def test_round_robin_takes_turns_as_they_arrive_not_as_those_before_them_end():
    """Of two agents the one that is answered first has the slower tool: it is the second to come again."""
    made = of()
    both = [
        *turn("s-0", "s", 0.0, prompt=1000, agent="s"), *turn("u-0", "u", 0.5, prompt=2000, agent="u"),
        *turn("s-1", "s", 50.0, prompt=1101, cached=0, edge=Edge.CONTINUES, parent="s-0"),
        *turn("u-1", "u", 20.0, prompt=2101, cached=0, edge=Edge.CONTINUES, parent="u-0"),
    ]  # fmt: skip
    made.take(sorted(both, key=lambda record: record.at_s))
    # s begins on r1 and u on r0; u comes next, to r1, where nothing of its is; and then s, to r0.
    assert told(made).blind_tokens == 1000 + 2000 + 1101 + 2101


def stretched(records: list[rec.Record], *, prompts: float = 1.0, answers: float = 1.0) -> list[rec.Record]:
    """The turns of a `talk` take so much longer than it has them."""
    found: list[rec.Record] = []
    late_s = first_ms = 0.0
    for record in records:
        changed = record
        if isinstance(record, rec.GpuFirstToken):
            late_s += (prompts - 1) * record.launch_delay_ms / 1e3
            first_ms = record.launch_delay_ms * prompts
            changed = msgspec.structs.replace(record, launch_delay_ms=first_ms)
        elif isinstance(record, rec.GpuEnd):
            late_s += answers - 1.0
            changed = msgspec.structs.replace(record, duration_ms=first_ms + answers * 1e3)
        found.append(msgspec.structs.replace(changed, at_s=record.at_s + late_s))
    return found


def test_long_prompts_take_what_they_really_took():
    """The gateway has learned too little of them: in truth they take a fifth longer."""
    made = of()
    made.take(stretched(talk("s", 40, grows=5000), prompts=1.2))
    learned, found = of(), told(made)
    learned.take(talk("s", 40, grows=5000))
    expected = told(learned)
    assert found.tokens == expected.tokens > 1e5
    assert found.seconds == pytest.approx(1.2 * expected.seconds, rel=0.02)


def test_short_prompts_correct_nothing():
    made, learned = of(), of()
    made.take(stretched(talk("s", 40, grows=500), prompts=1.2))
    learned.take(talk("s", 40, grows=500))
    assert told(made).seconds == pytest.approx(told(learned).seconds, rel=0.001)


def test_answers_take_what_they_really_took():
    made = of()
    made.take(stretched(talk("s", 40), answers=1.15))
    found = told(made)
    assert found.busy_s == pytest.approx(41 + 40 * 1.15, rel=0.02), "prompts take a second each, and two"


def test_an_answer_that_is_not_streamed_corrects_nothing():
    made = of()
    records = stretched(talk("s", 40, grows=5000), prompts=1.2)
    for record in records:
        is_arrival = isinstance(record, rec.TurnArrived)
        made.take([msgspec.structs.replace(record, is_streamed=False) if is_arrival else record])
    costs = made._pools[PoolId("p")].costs
    made.settle()
    assert costs.prompts.factor == costs.steps.factor == 1.0


def test_what_takes_twice_as_long_is_held_up_by_others_and_the_bar_says_so():
    made = of()
    made.take(stretched(talk("s", 40, grows=5000), prompts=2.0))
    found = told(made)
    assert made._pools[PoolId("p")].costs.prompts.factor == 1.25
    assert found.error_s > (UNCHECKED + 0.3) * found.seconds


def test_a_correction_follows_what_changes():
    correction = Correction()
    for _ in range(3000):
        correction.learn(1.1, 1.0 * correction.factor)
    assert correction.factor == pytest.approx(1.1, rel=0.01)
    for _ in range(5000):
        correction.learn(0.9, 1.0 * correction.factor)
    assert correction.factor == pytest.approx(0.9, rel=0.01)


def test_nothing_is_played_beyond_what_may_still_come():
    made = of()
    opened = turn("u-0", "u", -1.0, prompt=1000)
    made.take(opened[:1])  # it came before, and runs
    made.take([*talk("s", 3), over("x", 50.0)])
    assert made._pools[PoolId("p")].ours.behind == 3
    made.take(opened[1:])
    made.take([over("x", 60.0)])
    assert made._pools[PoolId("p")].ours.behind == 0


def test_turns_wait_until_it_is_known_what_they_cost():
    watched = Linear(known=False)
    made = of(watched)
    made.take(talk("s", 3))
    made.take([over("x", 100.0)])
    assert made.saved()[PoolId("p")].busy_s == 0.0
    watched.known = True
    made.take(talk("u", 1, began_s=200.0))
    assert told(made).busy_s == pytest.approx(7 + 3.0)


def test_what_conversations_of_a_type_begin_with_is_found_by_both():
    made = of()
    for number in range(6):
        made.take(turn(f"r{number}", f"s{number}", 10.0 * number, prompt=1500, cached=1000 if number else 0))
    found = told(made)
    # Where a type came first it is computed whole: once, and once on each replica.
    assert found.computed_tokens == 1500 + 5 * 500
    assert found.blind_tokens - found.computed_tokens <= 1000


def test_a_fork_begins_with_what_it_forks_from():
    made = of(fleet=FLEET[:1])
    made.take(talk("s", 1))
    fork = turn("f", "s", 20.0, prompt=2600, cached=2101, edge=Edge.FORKS, parent="s-0")
    made.take([_of_thread(each, "s.2") if isinstance(each, rec.TurnArrived) else each for each in fork])
    assert told(made).blind_tokens == 2000 + 499


def _of_thread(record: rec.TurnArrived, thread: str) -> rec.TurnArrived:
    return msgspec.structs.replace(record, thread=ThreadId(thread))


def test_what_was_computed_ahead_was_not_saved():
    made = of()
    made.take(talk("s", 3))
    before = told(made)
    made.take([
        rec.PrefilledAhead(
            at_s=50.0, session=SessionId("s"), thread=ThreadId("s.1"), turn=RequestId("s-2"),
            replica=FLEET[0], outcome="used", usage=Usage(prompt_tokens=5000, cached_tokens=4000),
            used_tokens=900, duration_ms=1.0,
        )
    ])  # fmt: skip
    after = told(made)
    assert after.tokens == before.tokens - 1000 and after.seconds == pytest.approx(before.seconds - 1.0)
    assert after.cached_tokens == before.cached_tokens - 1000


def test_the_bar_is_what_the_model_is_off_by():
    made = of()
    records = talk("s", 3)
    for at, record in enumerate(records):
        if isinstance(record, rec.GpuEnd) and record.turn == "s-2":
            usage = Usage(prompt_tokens=4202, cached_tokens=1601, output_tokens=101)
            records[at] = msgspec.structs.replace(record, usage=usage)
    made.take(records)
    found = told(made)
    off = (2101 + 3202) / (2101 + 1601) - 1
    assert found.error_s >= off * 2101 / 1000 * 0.99 + UNCHECKED * found.seconds


def test_the_bar_is_as_long_as_first_tokens_come_off_what_is_expected():
    made = of(Linear(bars=(0.9, 1.25)))
    made.take(talk("s", 3))
    found = told(made)
    assert found.error_s == pytest.approx((0.25 + UNCHECKED) * found.seconds, rel=0.05)


def test_what_a_backend_does_not_count_is_told_and_left_out():
    made = of()
    made.take(turn("r1", "s", 0.0, cached=None))
    made.take(turn("r2", "s", 3.0, edge=Edge.CONTINUES, parent="never seen"))
    found = told(made)
    assert (found.uncounted, found.turns, found.prompt_tokens) == (2, 0, 0)


def test_so_many_turns_a_second_are_played():
    made = of(per_s=1)
    for number in range(40):
        made.take(turn(f"r{number}", f"s{number}", 0.0))
    found = told(made)
    assert 10 <= found.turns <= 13 and found.left_out == 40 - found.turns


def test_what_is_lost_is_not_found():
    made = of(fleet=FLEET[:1])
    made.take(talk("s", 1))
    made.take([over("x", 10.0), rec.ReplicaChanged(at_s=11.0, replica=FLEET[0], state="down", why="test")])
    made.take(turn("s-1", "s", 20.0, prompt=3101, cached=0, edge=Edge.CONTINUES, parent="s-0"))
    found = told(made)
    assert found.blind_tokens == 2000 + 3101 and found.error_s == pytest.approx(0.0, abs=0.05)


def test_memory_is_bounded(monkeypatch):
    for name in ("MAX_OPEN", "MAX_LEFT", "MAX_TYPES"):
        monkeypatch.setattr(savings, name, 10)
    made = of()
    for number in range(100):
        made.take(turn(f"r{number}", f"s{number}", float(number), agent=f"{number}"))
        made.take(turn(f"open{number}", f"o{number}", float(number))[:1])
    assert len(made._open) <= 10 and len(made._left) <= 10 and len(made._shared) <= 10
