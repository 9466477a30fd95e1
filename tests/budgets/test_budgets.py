"""Bounds: each limit is met where it says, by whom it is for, and by nobody else."""

from datetime import UTC, datetime

import msgspec
import pytest

from gateway.budgets.budgets import MAX_ACCOUNTS, BoundConfig, Budgets, PriceConfig, Reached, TurnUse
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.domain.spending import ALL_AGENTS, NOTHING, OTHER_AGENTS, Account, Amounts, Reserved, Spent

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 26, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
USAGE = Usage(prompt_tokens=90, output_tokens=10)


def bound(**fields) -> BoundConfig:
    return msgspec.convert({"name": "b", **fields}, BoundConfig)


def price(**fields) -> PriceConfig:
    return msgspec.convert(fields, PriceConfig)


class Play:
    """Turns, one after the other."""

    def __init__(self, *bounds: BoundConfig, prices=(), **more) -> None:
        self.bounds = Budgets(bounds, prices, **more)
        self.now = NOON
        self.number = 0

    def reaches(
        self, *, tenant="t", session="s", thread="1", agent=7, model="m", reserved=None, **fields
    ) -> list[Reached]:
        self.number += 1
        asking = TurnUse(
            request=RequestId(f"r{self.number}"),
            tenant=TenantId(tenant),
            agent=agent,
            model=model,
            session=SessionId(session) if session else None,
            thread=ThreadId(f"{session}.{thread}") if session else None,
            text_bytes=fields.pop("text_bytes", 0),
            started_s=fields.pop("started_s", NOON),
            **fields,
        )
        return self.bounds.arrived(asking, reserved, now=self.now)

    def arrives(self, **fields) -> list[str]:
        return [each.limit for each in self.reaches(**fields)]

    def ends(self, usage: Usage | None = USAGE, *, number: int | None = None, model="m") -> None:
        self.bounds.turn_over(RequestId(f"r{number or self.number}"), model, usage)

    def fails(self, *, number: int | None = None) -> None:
        self.bounds.turn_void(RequestId(f"r{number or self.number}"))

    def turn(self, usage: Usage | None = USAGE, *, model="m", **fields) -> list[str]:
        reached = self.arrives(model=model, **fields)
        if reached:
            self.fails()
        else:
            self.ends(usage, model=model)
        return reached


# --- of a session ------------------------------------------------------------------------------------


def test_as_many_turns_as_are_allowed_and_no_more():
    play = Play(bound(turns=3))
    assert [play.turn() for _ in range(5)] == [[], [], [], ["turns"], ["turns"]]
    assert play.turn(session="another") == []


def test_turns_at_a_time_count_before_they_are_over():
    play = Play(bound(turns=2))
    assert [play.arrives() for _ in range(3)] == [[], [], ["turns"]]


def test_a_turn_that_was_refused_costs_nothing():
    play = Play(bound(turns=1, tokens=100))
    assert play.turn() == []
    play.arrives()
    play.fails()
    play.fails()
    assert play.bounds.sessions[SessionId("s")].used == Amounts(1, 100, 0)


def test_an_answer_without_tokens_is_a_turn():
    play = Play(bound(turns=1))
    assert [play.turn(Usage()) for _ in range(2)] == [[], ["turns"]]


def test_a_session_that_came_from_elsewhere_brings_its_turns():
    play = Play(bound(turns=5))
    assert play.turn(turns_before=4) == []
    assert play.turn(turns_before=99) == ["turns"]


def test_tokens_are_those_that_engines_report():
    play = Play(bound(tokens=200))
    assert [play.turn() for _ in range(2)] == [[], []]
    assert play.turn() == ["tokens"], "200 were used, and a turn usually says some more"


def test_what_a_turn_is_expected_to_take_is_reserved_and_settled():
    play = Play(bound(tokens=1000))
    assert play.arrives(text_bytes=2400) == [], "some 600 tokens"
    assert play.arrives(text_bytes=2400) == ["tokens"]
    play.fails(number=2)
    play.ends(Usage(prompt_tokens=300, output_tokens=0), number=1)
    assert play.arrives(text_bytes=2400) == []


def test_who_leaves_before_the_answer_pays_for_what_was_reserved():
    play = Play(bound(tokens=1000))
    play.arrives(text_bytes=2400)
    play.ends(None)
    assert play.bounds.sessions[SessionId("s")].used.tokens == 600


def test_a_model_has_its_price():
    prices = (
        price(model="large", input=2.0, cached_input=0.5, output=10.0),
        price(model="*", input=1.0, output=1.0),
    )
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
    assert prices[0].cost(usage) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 1.0)
    assert prices[1].cost(usage) == pytest.approx(1.1), "what is cached costs as much where nothing is said"
    play = Play(bound(cost=5.0), prices=prices)
    play.arrives(model="large")
    play.ends(usage, model="large")
    assert play.bounds.sessions[SessionId("s")].used.cost == pytest.approx(2.4)
    play.arrives(model="other")
    play.ends(usage, model="other")
    assert play.bounds.sessions[SessionId("s")].used.cost == pytest.approx(3.5)
    play.ends(usage, model="other")
    assert play.bounds.sessions[SessionId("s")].used.cost == pytest.approx(3.5), "it is over but once"
    play.turn(usage, model="large")
    assert play.arrives(model="large") == ["cost"]


def test_a_model_without_a_price_is_free():
    play = Play(bound(cost=0.001), prices=(price(model="large", input=2.0),))
    assert [play.turn(Usage(prompt_tokens=10**7), model="small") for _ in range(3)] == [[], [], []]


def test_time_is_from_the_first_turn_on():
    play = Play(bound(max_duration_s=60))
    play.now += 60
    assert play.turn() == []
    play.now += 1
    assert play.turn() == ["max_duration_s"]


@pytest.mark.parametrize(
    ("steps", "repeats", "same_calls"),
    [
        ("A1 A1 A1 A1", "..xx", "..xx"),
        ("A1 A2 A3 A4", "....", "..xx"),
        ("A1 B1 A1 B1 A1 B1 A1", ".....xx", ".....xx"),
        ("A1 B1 C1 A1 B1 C1 A1 B1 C1", "........x", "........x"),
        ("A1 B1 C1 D1 A1 B1 C1 D1 A1 B1 C1 D1", "............", "............"),
        ("A1 A1 B1 A1 A1 B1", "......", "......"),
        ("A1 A1 B1 A1 A1 A1", ".....x", ".....x"),
    ],
)
def test_a_cycle_of_up_to_three_steps_is_a_loop_when_it_comes_three_times(steps, repeats, same_calls):
    for limit, expected in (("repeats", repeats), ("same_calls", same_calls)):
        play, seen = Play(bound(**{limit: 3})), ""
        for tail, step in enumerate(steps.split(), 1):
            reached = play.turn(tail=tail, called=ord(step[0]), brought=ord(step[0]) * 100 + int(step[1]))
            assert reached in ([], [limit])
            seen += "x" if reached else "."
        assert seen == expected


def test_a_request_that_is_sent_again_is_no_repetition():
    play = Play(bound(repeats=3))
    assert [play.turn(tail=5, called=1, brought=2) for _ in range(5)] == [[]] * 5


def test_turns_without_calls_or_results_are_no_loop():
    play = Play(bound(same_calls=2))
    assert [play.turn(tail=n, called=1, brought=0) for n in range(1, 4)] == [[]] * 3
    assert [play.turn(tail=n, called=0, brought=1) for n in range(4, 8)] == [[]] * 4


def test_conversations_of_a_session_do_not_repeat_one_another():
    play = Play(bound(repeats=2))
    for number in range(5):
        assert play.arrives(thread=number, tail=number + 1, called=1, brought=1) == []


# --- of a tenant, of an agent type -------------------------------------------------------------------


def test_a_tenants_day_ends_at_midnight():
    play = Play(bound(scope="tenant", period="day", turns=2))
    play.now = MIDNIGHT - 1
    assert [play.turn(session=f"s{n}") for n in range(3)] == [[], [], ["turns"]]
    play.now = MIDNIGHT
    assert play.turn() == []
    assert [account.period for account in play.bounds.ledger] == ["2026-11-26"]


def test_a_tenants_month_goes_on_over_midnight():
    play = Play(bound(scope="tenant", period="month", tokens=200))
    play.turn()
    play.now = MIDNIGHT
    play.turn()
    assert play.turn() == ["tokens"]
    play.now = DECEMBER
    assert play.turn() == []


def test_a_turn_that_ends_after_its_day_is_not_counted_in_the_next_one():
    play = Play(bound(scope="tenant", period="day", tokens=10**6))
    play.now = MIDNIGHT - 1
    play.arrives()
    play.now = MIDNIGHT
    play.arrives()
    play.ends(number=1)
    assert play.bounds.ledger == {Account(TenantId("t"), ALL_AGENTS, "2026-11-26"): Amounts(1, 0, 0)}


def test_a_tenant_cannot_use_up_what_is_anothers():
    play = Play(bound(scope="tenant", period="day", turns=2), bound(name="c", turns=3))
    assert [play.turn(tenant="red", session=f"s{n}") for n in range(3)] == [[], [], ["turns"]]
    assert [play.turn(tenant="blue", session=f"b{n}") for n in range(2)] == [[], []]


def test_an_agent_type_has_its_own_bound_within_its_tenant():
    play = Play(bound(scope="agent", period="day", turns=1))
    assert play.turn(agent=7) == []
    assert play.turn(agent=7, session="s2") == ["turns"]
    assert play.turn(agent=8, session="s3") == []
    assert play.turn(agent=7, session="s4", tenant="another") == []


def test_a_bound_is_for_whom_it_names():
    play = Play(bound(turns=1, tenants=("red",), agents=("0000000000000007",)))
    assert [play.turn(tenant="red", agent=7) for _ in range(2)] == [[], ["turns"]]
    assert [play.turn(tenant="blue", agent=7, session="b") for _ in range(2)] == [[], []]
    assert [play.turn(tenant="red", agent=8, session="c") for _ in range(2)] == [[], []]


def test_work_that_is_no_turn_counts_for_its_tenant():
    play = Play(bound(scope="tenant", period="day", tokens=100), bound(name="c", turns=1))
    assert [play.turn(session=None) for _ in range(2)] == [[], ["tokens"]]


def test_the_severest_counts_first_and_shadows_last():
    play = Play(
        bound(name="w", turns=1, action="warn"),
        bound(name="s", turns=1, action="refuse", shadow=True),
        bound(name="r", turns=1, action="refuse"),
        bound(name="b", turns=1, action="deprioritize"),
    )
    play.turn()
    assert [each.bound.name for each in play.reaches()] == ["r", "b", "w", "s"]


# --- what is remembered ------------------------------------------------------------------------------


def test_agents_without_end_share_an_account():
    play = Play(bound(scope="agent", period="day", turns=10**6))
    for agent in range(2, 2000):
        play.turn(agent=agent, session=None)
    assert len(play.bounds.ledger) == MAX_ACCOUNTS + 1
    others = play.bounds.ledger[Account(TenantId("t"), OTHER_AGENTS, "2026-11-25")]
    assert others.turns == 1998 - MAX_ACCOUNTS
    play.turn(agent=5, session=None, tenant="u")
    assert Account(TenantId("u"), 5, "2026-11-25") in play.bounds.ledger


def test_nothing_is_left_of_a_session_that_is_over():
    play = Play(bound(turns=3))
    for number in range(100):
        play.turn(session=f"s{number}")
        play.bounds.session_over(SessionId(f"s{number}"))
    assert play.bounds.sessions == {} and play.bounds.turns == {}


def test_threads_without_end_leave_a_bounded_number():
    play = Play(bound(repeats=5))
    for number in range(500):
        play.arrives(thread=number)
    assert len(play.bounds.sessions[SessionId("s")].threads) == 32


def test_what_an_earlier_process_knew_counts():
    account = Account(TenantId("t"), ALL_AGENTS, "2026-11")
    play = Play(
        bound(scope="tenant", period="month", tokens=1000),
        bound(name="a", scope="agent", period="month", turns=9),
    )
    play.bounds.restore(
        [
            Spent(account, Amounts(3, 700, 0)),
            Spent(account, Amounts(4, 600, 0)),
            Spent(Account(TenantId("t"), 7, "2026-11"), Amounts(9, 0, 0)),
            Spent(Account(TenantId("t"), ALL_AGENTS, "2026-10"), Amounts(99, 9999, 0)),
        ],
        now=NOON,
    )
    assert play.bounds.ledger[account] == Amounts(4, 700, 0)
    assert len(play.bounds.ledger) == 2, "October is over"
    assert play.arrives(text_bytes=1300) == ["tokens", "turns"]


# --- beside other gateways ---------------------------------------------------------------------------


def test_what_the_store_reserved_counts_and_is_settled():
    play = Play(bound(scope="tenant", period="day", tokens=1000), publishes=True)
    accounts, amounts = play.bounds.quote(TenantId("t"), 7, "m", 800, now=NOON)
    (account,) = accounts
    assert amounts == Amounts(1, 200, 0)
    reserved = Reserved((Spent(account, Amounts(5, 950, 0)),), amounts)
    assert play.arrives(text_bytes=800, reserved=reserved) == []
    assert play.bounds.spent == [], "it is reserved there"
    play.ends()
    assert play.bounds.spent == [Spent(account, Amounts(0, -100, 0))]
    assert play.bounds.ledger[account] == Amounts(5, 850, 0)
    reserved = Reserved((Spent(account, Amounts(6, 1001, 0)),), amounts)
    assert play.arrives(text_bytes=800, reserved=reserved) == ["tokens"]


def test_what_was_reserved_for_nothing_is_given_back():
    play = Play(bound(scope="tenant", period="day", tokens=1000), publishes=True)
    account = Account(TenantId("t"), ALL_AGENTS, "2026-11-25")
    play.bounds.give_back(Reserved((Spent(account, Amounts(5, 950, 0)),), Amounts(1, 200, 0)))
    assert play.bounds.spent == [Spent(account, Amounts(-1, -200, 0))]


def test_without_the_store_it_is_reserved_here_and_told():
    play = Play(bound(scope="tenant", period="day", tokens=1000), publishes=True)
    play.arrives(text_bytes=800)
    account = Account(TenantId("t"), ALL_AGENTS, "2026-11-25")
    assert play.bounds.spent == [Spent(account, Amounts(1, 200, 0))]
    play.ends()
    told = NOTHING
    for each in play.bounds.spent:
        told = told.plus(each.amounts)
    assert told == Amounts(1, 100, 0)
    alone = Play(bound(scope="tenant", period="day", tokens=1000))
    alone.turn()
    assert alone.bounds.spent == [], "who is alone tells nobody"


def test_the_share_of_a_bound_is_that_of_its_nearest_limit():
    play = Play(
        bound(scope="tenant", period="day", tokens=1000, turns=4),
        bound(name="other", scope="tenant", period="day", turns=4, tenants=("other",)),
        bound(name="agents", scope="agent", period="day", turns=4),
    )
    play.turn()
    assert [(b.name, t, used) for b, t, used in play.bounds.shares(now=NOON)] == [("b", "t", 0.25)]


# --- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"period": "day", "turns": 1}, "a session is counted as a whole"),
        ({"scope": "tenant", "turns": 1}, "set period to day or month"),
        ({"scope": "agent", "period": "day", "max_duration_s": 5}, "of a session only"),
        ({"scope": "agent", "period": "day", "repeats": 5}, "of a session only"),
        ({"turns": 0}, ">= 1"),
        ({"repeats": 1}, ">= 2"),
        ({"turns": 1, "agents": ["7"]}, "regex"),
        ({"turns": 1, "action": "stop"}, "Invalid enum"),
        ({"turn": 1}, "unknown field"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields, why):
    with pytest.raises(msgspec.ValidationError, match=why):
        bound(**fields)
