"""How sessions fare: what they took, with what, and whether that was in time."""

import itertools

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config.objective import ObjectiveConfig
from gateway.domain import records as rec
from gateway.domain.decision import Edge, RefusalReason
from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.telemetry import objective
from gateway.telemetry.objective import EARNED, MAX_LABELS, OTHER, Objective
from tests.telemetry.turns import over, tools, turn


def of(alpha: float = 2.0, *, max_sessions: int = 1000) -> Objective:
    made = Objective(ObjectiveConfig(alpha=alpha), max_sessions=max_sessions)
    for _ in range(EARNED):  # so that the names that tests use have labels
        made._tenants.label("t"), made._agents.label("a")
    return made


def samples(made: Objective, name: str) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    parsed = text_string_to_metric_families(made.text())
    for family in (*made.families(), *parsed):
        for sample in family.samples:
            if sample.name == f"turnpike_{name}":
                found[tuple(value for key, value in sample.labels.items())] = sample.value
    return found


HERE = ("p", "t", "reactive", "a")


def test_a_session_and_its_parts():
    made = of()
    made.take(turn("r1", "s", 0.0, queue_s=2.0, prefill_s=1.0, decode_s=3.0, alone_s=2.0))  # to 6
    second = turn("r2", "s", 10.0, prefill_s=0.5, decode_s=1.5, alone_s=1.0, edge=Edge.CONTINUES, parent="r1")
    made.take([second[0], tools("r2", "s", 10.0, took_s=4.0), *second[1:]])  # to 12
    third = turn("r3", "s", 100.0, alone_s=1.0, edge=Edge.CONTINUES, parent="r2")  # somebody thought; to 102
    made.take([*third, over("s", 102.0)])
    assert samples(made, "session_seconds_sum") == {HERE: pytest.approx(102 - 88)}
    parts = samples(made, "session_part_seconds_sum")
    assert {key[0]: value for key, value in parts.items()} == {
        "queue": pytest.approx(2.0), "prefill": pytest.approx(2.5), "decode": pytest.approx(5.5),
        "tools": pytest.approx(4.0),
    }  # fmt: skip
    assert samples(made, "session_turns_sum") == {HERE: 3}
    assert samples(made, "ttft_seconds_sum") == {("p", "reactive"): pytest.approx(3.0 + 0.5 + 1.0)}
    assert samples(made, "tpot_seconds_sum") == {("p", "reactive"): pytest.approx(0.055)}
    slowdown = samples(made, "slowdown_sum")
    assert slowdown["session", "p", "reactive"] == pytest.approx(14 / 8), "of turns alone 4 s, and tools 4 s"
    assert samples(made, "slo_sessions_total") == {(*HERE, "yes"): 1}


@pytest.mark.parametrize(("alpha", "met"), [(2.0, "no"), (3.1, "yes")])
def test_in_time_is_within_alpha_times_alone(alpha, met):
    made = of(alpha)
    made.take([*turn("r1", "s", 0.0, queue_s=1.0, alone_s=1.0), over("s", 9.0, reason="idle")])
    assert samples(made, "slo_sessions_total") == {(*HERE, met): 1}
    assert samples(made, "slo_turns_total") == {("p", "reactive", met): 1}


def test_one_absurd_expectation_does_not_decide_the_mean_slowdown():
    made = of()
    made.take([*turn("r1", "s", 0.0, alone_s=1e-6), *turn("r2", "s", 3.0), over("s", 9.0)])
    assert samples(made, "slowdown_sum")["turn", "p", "reactive"] < 1100.0


def test_what_is_not_known_is_not_judged():
    made = of()
    made.take([*turn("r1", "s", 0.0), *turn("r2", "s", 3.0, alone_s=None), over("s", 9.0)])
    assert samples(made, "slo_turns_total") == {("p", "reactive", "yes"): 1, ("p", "reactive", "unknown"): 1}
    assert samples(made, "slo_sessions_total") == {(*HERE, "unknown"): 1}
    assert samples(made, "session_seconds_count") == {HERE: 1}


@pytest.mark.parametrize(
    ("outcome", "status", "met"),
    [("cut", 200, "no"), ("finished", 500, "no"), ("client_left", 200, "unknown")],
)
def test_a_session_whose_last_turn_went_wrong_did_not_finish(outcome, status, met):
    made = of()
    made.take([*turn("r1", "s", 0.0), *turn("r2", "s", 3.0, outcome=outcome, status=status), over("s", 9.0)])
    assert samples(made, "slo_sessions_total") == {(*HERE, met): 1}
    assert samples(made, "session_seconds_count") == {}


def refused(name: str, session: str, at_s: float) -> rec.Refused:
    return rec.Refused(
        at_s=at_s, turn=RequestId(name), session=SessionId(session), tenant=TenantId("t"),
        reason=RefusalReason.QUEUE_FULL, waited_ms=0.0,
    )  # fmt: skip


def test_waiting_to_ask_again_is_waiting():
    made = of()
    made.take(turn("r1", "s", 0.0))  # to 2
    made.take([turn("r2", "s", 2.0)[0], refused("r2", "s", 5.0)])
    made.take([*turn("r3", "s", 15.0, alone_s=1.0), over("s", 17.0)])
    parts = {key[0]: value for key, value in samples(made, "session_part_seconds_sum").items()}
    assert parts["queue"] == pytest.approx(13.0)
    assert samples(made, "session_seconds_sum") == {HERE: pytest.approx(17.0)}
    assert samples(made, "slo_sessions_total") == {(*HERE, "no"): 1}
    assert samples(made, "slo_turns_total")["", "none", "no"] == 1, "a refused turn is not in time"


def test_a_failed_attempt_is_no_end():
    made = of()
    first = turn("r1", "s", 0.0, outcome="failed")
    again = turn("r1", "s", 4.0, alone_s=8.0)[1:]
    made.take([*first, *again, over("s", 9.0)])
    parts = {key[0]: value for key, value in samples(made, "session_part_seconds_sum").items()}
    assert parts["queue"] == pytest.approx(4.0)
    assert samples(made, "session_turns_sum") == {HERE: 1}


def test_conversations_beside_one_another_have_no_idle_time_between_them():
    made = of()
    long, short = turn("r1", "s", 0.0, decode_s=9.0), turn("r2", "s", 1.0)
    made.take(sorted([*long, *short], key=lambda record: record.at_s))
    made.take([*turn("r3", "s", 10.0), over("s", 12.0)])
    assert samples(made, "session_seconds_sum") == {HERE: pytest.approx(12.0)}


def test_labels_do_not_break_out_of_their_quotes():
    made, hostile = of(), 'a"} 1\n# \\'
    for number in range(EARNED):
        made.take([*turn(f"r{number}", f"s{number}", 0.0, tenant=hostile), over(f"s{number}", 3.0)])
    assert samples(made, "session_seconds_count")["p", hostile, "reactive", "a"] == 1


def test_labels_are_earned_and_few():
    made = Objective(ObjectiveConfig(), max_sessions=1000)
    numbers = itertools.count()

    def session(tenant: str, agent: str) -> None:
        name = f"s{next(numbers)}"
        made.take([*turn(f"r-{name}", name, 0.0, tenant=tenant, agent=agent), over(name, 3.0)])

    for number in range(100):
        session(f"comes once {number}", f"{number:016x}")
    assert set(samples(made, "session_seconds_count")) == {("p", OTHER, "reactive", OTHER)}
    for _ in range(EARNED):
        session("regular", "a")
    assert ("p", "regular", "reactive", "a") in samples(made, "session_seconds_count")
    for number in range(100):
        for _ in range(EARNED):
            session(f"team {number}", "a")
    counts = samples(made, "session_seconds_count")
    assert len(counts) <= MAX_LABELS
    assert sum(counts.values()) == 100 + EARNED * 101, "whoever has no label is counted with the others"


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(objective, "MAX_OPEN", 10)
    made = of(max_sessions=5)
    for number in range(50):
        made.take(turn(f"r{number}", f"s{number}", float(number))[:1])
    assert len(made._turns) <= 10 and len(made._sessions) <= 5
    made.take([record for number in range(50) for record in turn(f"r{number}", f"s{number}", 60.0)[1:]])
    assert not made._turns


def test_labels_that_were_not_seen_for_long_give_way():
    made = Objective(ObjectiveConfig(), max_sessions=1000)
    numbers = itertools.count()

    def sessions(tenant: str, at_s: float) -> None:
        for _ in range(EARNED):
            name = f"s{next(numbers)}"
            made.take([*turn(f"r-{name}", name, at_s, tenant=tenant, agent="a"), over(name, at_s + 3.0)])

    for number in range(40):
        sessions(f"team {number}", 0.0)
    ended = made.view().sessions
    sessions("late", 4000.0)
    assert ("p", "late", "reactive", "a") in samples(made, "session_seconds_count")
    assert len(samples(made, "session_seconds_count")) <= MAX_LABELS
    assert made.view().sessions == ended + EARNED, "and no session is forgotten"
