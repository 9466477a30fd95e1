"""What background work gets of a step."""

from turnpike_vllm.classes import ALL, ClassesConfig, Piggyback, Plan, Row
from turnpike_vllm.pace import Pace

STEPS = [(1, 1_000), (64, 64_000), (32, 1_000), (2_000, 0), (500, 10_000), (1_000, 50_000)]


def piggyback() -> Piggyback:
    pace = Pace()
    for tokens, context in STEPS * 100:
        seconds = 0.010 + 1e-5 * tokens + 1e-7 * context
        pace.observe(seconds, tokens=tokens, context=context, rows=tokens if tokens < 100 else 0)
    return Piggyback(ClassesConfig(), pace)


def row(key: str, context: int, *, admitted: float = 0.0, prefill: bool = False, aged: bool = False) -> Row:
    return Row(key, context, admitted, prefill, aged)


def plan(*rows: Row, reactive: int = 1, prefill: int = 0, alive: bool = True) -> Plan:
    return piggyback().plan(
        rows,
        reactive_rows=reactive,
        reactive_context=1_000 * reactive,
        reactive_prefill=prefill,
        is_reactive_alive=alive,
    )


def test_background_work_alone_is_left_alone() -> None:
    assert plan(row("a", 10**6), reactive=0, alive=False) is ALL


def test_while_a_reactive_session_lives_background_chunks_are_bounded() -> None:
    alone = plan(row("a", 1_000), reactive=0)
    assert not alone.left_out
    assert 3_500 < alone.prefill_tokens < 4_000  # 50 ms, less 10 ms, at 10 µs a token
    crowd = [row(str(n), 100_000) for n in range(20)]
    assert plan(*crowd, reactive=0).prefill_tokens == ClassesConfig().least_tokens


def test_the_longest_leave_first_then_the_newest() -> None:
    # A tenth of 10.1 ms buys about ten thousand tokens of context.
    rows = [row("long", 8_000), row("short", 1_000), row("new", 4_000, admitted=9.0), row("old", 4_000)]
    assert plan(*rows).left_out == {"long"}
    assert plan(*rows, row("more", 3_900)).left_out == {"long", "new"}


def test_aged_work_is_never_left_out() -> None:
    shared = plan(row("aged", 50_000, aged=True), row("young", 5_000))
    assert "aged" not in shared.left_out
    assert shared.aged_tokens > 0


def test_aged_prompts_make_a_step_twice_as_long_at_most() -> None:
    shared = plan(row("aged", 100, prefill=True, aged=True))
    assert shared.aged_tokens == ClassesConfig().least_tokens  # 0.6 ms of 10
    slow = Pace()
    for rows, chunk in [(1, 0), (2, 0), (4, 0), (2, 10), (2, 256), (1, 128)] * 50:
        seconds = max(0.110, 0.006 * (rows + chunk))
        slow.observe(seconds, tokens=rows + chunk, rows=rows, context=0)
    told = Piggyback(ClassesConfig(), slow).plan(
        [row("aged", 100, prefill=True, aged=True)],
        reactive_rows=2,
        reactive_context=0,
        reactive_prefill=0,
        is_reactive_alive=True,
    )
    assert 32 <= told.aged_tokens <= 37  # 0.22 s at 6 ms, less two


def test_rows_that_decode_may_join_a_reactive_prompt() -> None:
    rows = [row(str(number), 100) for number in range(40)]
    assert not plan(*rows, reactive=0, prefill=2_000).left_out  # 1.4 ms of 30
    assert plan(*[row("long", 50_000)], reactive=0, prefill=2_000).left_out == {"long"}


def test_no_background_prefill_beside_a_reactive_one() -> None:
    assert plan(row("a", 100, prefill=True), prefill=500).prefill_tokens == 0
    assert plan(row("a", 100, prefill=True)).prefill_tokens > 0


def test_a_prefill_is_not_left_out_but_bounded() -> None:
    assert plan(row("a", 10**6, prefill=True)).left_out == frozenset()
