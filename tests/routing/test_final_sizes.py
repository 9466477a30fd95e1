"""What sessions grow to, as the KV ledger expects it from those that ended."""

import pytest

from gateway.domain.by_agent import AgentKey
from gateway.domain.ids import ReplicaId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.kv_ledger import KvLedger
from tests.routing.test_kv_ledger import ref

A = ReplicaId("a")
GUESS = 40_000.0
ONE_TYPE, OTHER_TYPE, NO_TYPE = (AgentKey(TenantId("t"), number) for number in (1, 2, 0))
STRANGER = AgentKey(TenantId("other"), 1)


def ended(*sessions: tuple[AgentKey, int]) -> KvLedger:
    ledger = KvLedger(1000)
    for number, (agent, tokens) in enumerate(sessions):
        end(ledger, f"s{number}", agent, tokens)
    return ledger


def end(ledger: KvLedger, name: str, agent: AgentKey, tokens: int) -> None:
    ledger.settle(ref(name), A, agent=agent, now=0.0)
    ledger.turn_over((SessionId(name), ThreadId("1")), A, Usage(prompt_tokens=tokens))
    ledger.session_ended(SessionId(name))


def test_the_first_sessions_that_end_teach_most_of_what_they_grow_to():
    assert KvLedger(9).grows_to(NO_TYPE) == GUESS
    assert ended((NO_TYPE, 5_000)).grows_to(NO_TYPE) <= (GUESS + 5_000) / 2
    assert ended(*[(NO_TYPE, 5_000)] * 10).grows_to(NO_TYPE) < 10_000


def test_an_agent_of_which_little_is_known_is_like_its_tenants_others():
    ledger = ended(*[(ONE_TYPE, 10_000)] * 20)
    assert ledger.grows_to(OTHER_TYPE) == ledger.grows_to(NO_TYPE) == pytest.approx(10_000, rel=0.5)
    end(ledger, "first", OTHER_TYPE, 90_000)
    assert 30_000 < ledger.grows_to(OTHER_TYPE) < 60_000
    for number in range(5):
        end(ledger, f"later-{number}", OTHER_TYPE, 90_000)
    assert ledger.grows_to(OTHER_TYPE) > 70_000 and ledger.grows_to(ONE_TYPE) < 15_000


def test_what_sessions_held_long_ago_is_forgotten():
    ledger = ended(*[(ONE_TYPE, 90_000)] * 50, *[(ONE_TYPE, 10_000)] * 20)
    assert 10_000 <= ledger.grows_to(ONE_TYPE) < 20_000 and ledger.grows_to(NO_TYPE) < 45_000


def test_what_sessions_of_one_tenant_become_says_nothing_of_anothers():
    alone, beside = ended((ONE_TYPE, 10_000)), ended(*[(STRANGER, 1_000_000)] * 20, (ONE_TYPE, 10_000))
    for agent in (ONE_TYPE, OTHER_TYPE, NO_TYPE):
        assert beside.grows_to(agent) == alone.grows_to(agent)


def test_a_session_that_is_silent_and_goes_on_counts_once_with_what_it_holds_by_then():
    ledger, now, name = KvLedger(9), 0.0, SessionId("s")
    for tokens in (5_000, 20_000, 80_000):
        ledger.settle(ref(name), A, agent=ONE_TYPE, now=now)
        ledger.turn_over((name, ThreadId("1")), A, Usage(prompt_tokens=tokens))
        ledger.heard(name, works=False, now=now)
        now += 30.0
        ledger.pass_time(now=now)
        assert not ledger.sessions_at
    once = ended((ONE_TYPE, 80_000))
    assert ledger.grows_to(ONE_TYPE) == once.grows_to(ONE_TYPE)
    assert ledger.grows_to(NO_TYPE) == once.grows_to(NO_TYPE)
