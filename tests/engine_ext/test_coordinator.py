"""Class, age, promotion; what a step leaves to background work; what settings and hints leave behind."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm.classes import ALL, BackgroundRequest, ClassesConfig, Piggyback, StepShare
from turnpike_vllm.coordinator import Coordinator, CoordinatorConfig, Rank
from turnpike_vllm.hints import Hint, Refusal, ServiceClass
from turnpike_vllm.retain.retention import Thread
from turnpike_vllm.sessions import Session, Sessions, ThreadPolicy
from turnpike_vllm.settings import OFF, Settings, SettingsError, read_settings
from turnpike_vllm.step_time import StepTimeModel

REACTIVE, PROACTIVE = ServiceClass.REACTIVE, ServiceClass.PROACTIVE
COORDINATOR = Coordinator(CoordinatorConfig())


def rank(
    *,
    service: ServiceClass = REACTIVE,
    task: float = 0.0,
    arrived: float = 0.0,
    now: float = 0.0,
) -> Rank:
    return COORDINATOR.rank(service=service, task=task, arrived=arrived, now=now)


def test_class_then_the_task_s_age_then_arrival() -> None:
    expected = [
        rank(task=0),
        rank(task=5, arrived=8),
        rank(task=6, arrived=1),
        rank(task=6, arrived=2),
        rank(service=PROACTIVE),
    ]
    shuffled = list(expected)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled) == expected


def test_overdue_goes_before_everything_in_order_of_arrival() -> None:
    late = rank(service=PROACTIVE, arrived=0.0, now=30.0)
    later = rank(service=PROACTIVE, arrived=-1.0, now=30.0)
    assert later < late < rank(arrived=29.0, now=30.0)


MOMENTS = st.floats(0, 4e9) | st.floats(0, 1e-300) | st.sampled_from([0.0, 1.7e9 + 1 / 3, 2.0**53, 1e300])


@given(MOMENTS, st.sampled_from([0.0, 10.0, 30.0]), st.integers(-3, 3))
def test_what_is_announced_is_always_to_come_and_has_happened_by_then(
    arrived: float, waited: float, steps: int
) -> None:
    """Also exactly when a rank changes, and a float or two beside that."""
    now = arrived + waited
    for _ in range(abs(steps)):
        now = math.nextafter(now, math.inf if steps > 0 else 0.0)
    before = rank(arrived=arrived, now=now)
    rise = COORDINATOR.next_rise(arrived=arrived, now=now)
    if rise is None:
        assert not before.not_overdue
        return
    assert rise > now
    assert rank(arrived=arrived, now=math.nextafter(rise, 0.0)) == before
    assert rank(arrived=arrived, now=rise) < before


@given(MOMENTS)
def test_a_call_is_overdue_after_its_one_rise(arrived: float) -> None:
    rise = COORDINATOR.next_rise(arrived=arrived, now=arrived)
    now = arrived if rise is None else rise  # none where a float's step is longer than any wait
    assert not rank(arrived=arrived, now=now).not_overdue
    assert COORDINATOR.next_rise(arrived=arrived, now=now) is None


STEPS = [(1, 1_000), (64, 64_000), (32, 1_000), (2_000, 0), (500, 10_000), (1_000, 50_000)]


def piggyback() -> Piggyback:
    pace = StepTimeModel()
    for tokens, context in STEPS * 100:
        seconds = 0.010 + 1e-5 * tokens + 1e-7 * context
        pace.observe(seconds, tokens=tokens, context=context, rows=tokens if tokens < 100 else 0)
    return Piggyback(ClassesConfig(), pace)


def row(
    key: str, context: int, *, admitted: float = 0.0, prefill: bool = False, aged: bool = False
) -> BackgroundRequest:
    return BackgroundRequest(key, context, admitted, prefill, aged)


def plan(*rows: BackgroundRequest, reactive: int = 1, prefill: int = 0, alive: bool = True) -> StepShare:
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
    slow = StepTimeModel()
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


def heard(
    books: Sessions,
    seq: int,
    *,
    session: str = "s",
    begins_turn: bool = False,
    now: float = 0.0,
    **more: Any,
) -> Session | Refusal:
    return books.follow(Hint(session=session, seq=seq, **more), begins_turn=begins_turn, now=now)


def policy(books: Sessions, thread: str = "") -> ThreadPolicy:
    found = books.policy(Thread("s", thread))
    assert found is not None
    return found


def test_only_newer_hints_of_a_thread_are_followed() -> None:
    books = Sessions(10)
    assert isinstance(heard(books, 3, retain_s=5.0), Session)
    assert heard(books, 3, retain_s=9.0) is Refusal.STALE
    assert heard(books, 2, retain_s=9.0) is Refusal.STALE
    assert isinstance(heard(books, 1, thread="other"), Session)
    assert policy(books).retain_s == 5.0


def test_what_is_not_said_stays_within_a_turn() -> None:
    books = Sessions(10)
    heard(books, 1, begins_turn=True, retain_s=5.0, reuse=0.9, is_final=True)
    heard(books, 2, prefetch_in_s=4.0)
    assert (policy(books).retain_s, policy(books).reuse, policy(books).is_final) == (5.0, 0.9, True)
    heard(books, 3, begins_turn=True)
    assert (policy(books).retain_s, policy(books).reuse, policy(books).is_final) == (None, 0.9, False)
    assert policy(books).prefetch_in_s is None


def test_a_session_s_fields() -> None:
    books = Sessions(10)
    found = heard(books, 1, service=ServiceClass.PROACTIVE, age_s=7.0, now=10.0)
    assert isinstance(found, Session)
    assert (found.service_class, found.task_at) == (ServiceClass.PROACTIVE, 3.0)
    heard(books, 2, age_s=1.0, now=11.0)
    assert found.task_at == 3.0  # a task does not get younger
    heard(books, 3, is_finished=True)
    assert found.is_finished
    heard(books, 4)
    assert not found.is_finished  # it goes on after all


def test_the_silent_are_forgotten_first() -> None:
    books = Sessions(2)
    for name in ("a", "b", "a", "c"):
        heard(books, 1, session=name)
    assert [each.name for each in books] == ["a", "c"] and len(books) == 2
    assert books.policy(Thread("b", "")) is None


def test_threads_are_bounded() -> None:
    books = Sessions(2)
    for number in range(300):
        heard(books, 1, thread=str(number))
    found = books.get("s")
    assert found is not None and len(found.threads) == 256 and "299" in found.threads


def test_nothing_said_means_the_defaults() -> None:
    cases: list[object] = [None, {}, {"other": 1}, {"turnpike": {}}, "no mapping"]
    for raw in cases:
        assert read_settings(raw) == Settings()
    assert Settings().retention is not None and Settings().signed_hints


def test_everything_off() -> None:
    assert read_settings({"turnpike": False}) == OFF


def test_numbers_and_switches() -> None:
    found = read_settings(
        {
            "turnpike": {
                "retention": {"grace_s": 3, "budget": 0.5},
                "coordinator": {"max_wait_s": 9.5},
                "classes": False,
                "signed_hints": False,
                "max_sessions": 9,
                "connectors": ["NixlConnector"],
            }
        }
    )
    assert found.retention is not None and (found.retention.grace_s, found.retention.budget) == (3.0, 0.5)
    assert found.coordinator is not None and found.coordinator.max_wait_s == 9.5
    assert found.classes is None and not found.signed_hints and found.max_sessions == 9
    assert found.connectors == ("NixlConnector",)
    assert read_settings({"turnpike": {"classes": True}}).classes is not None


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (3, "turnpike: must be"),
        ({"retentoin": True}, "turnpike.retentoin: unknown"),
        ({"signed_hints": 1}, "turnpike.signed_hints"),
        ({"max_sessions": 0}, "turnpike.max_sessions"),
        ({"connectors": "NixlConnector"}, "turnpike.connectors"),
        ({"connectors": [1]}, "turnpike.connectors"),
        ({"retention": 5}, "turnpike.retention: must be"),
        ({"retention": {"grace": 5}}, "turnpike.retention.grace: unknown"),
        ({"retention": {"grace_s": "5"}}, "turnpike.retention.grace_s: must be a number"),
        ({"retention": {"grace_s": -1}}, "must be a number"),
        ({"retention": {"grace_s": True}}, "must be a number"),
        ({"classes": {"least_tokens": 1.5}}, "must be a number"),
        ({"eviction": True}, "turnpike.eviction: unknown"),
        ({"coordinator": {"quotas": [1, 2]}}, "turnpike.coordinator.quotas: unknown"),
    ],
)
def test_what_is_wrong_is_named(raw: object, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        read_settings({"turnpike": raw})
