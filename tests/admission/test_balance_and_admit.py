"""Who enters next, in which order a tenant's sessions wait, and what of a pool is whose gateway's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.admission.pack_queue import Entry, TenantQueue
from gateway.admission.partition import LEAST, MAX_NAMED, max_min, part_of
from gateway.admission.session_admission import SessionAdmission
from gateway.admission.tenants.quotas import Quota
from gateway.domain.agent_key import AgentKey
from gateway.domain.decision import Wait, WaitReason
from gateway.domain.engine import HostSignals
from gateway.domain.ids import SessionId, TenantId
from gateway.domain.shares import PoolShare
from tests.admission.applicants import FULL, POOL, Play, T, U, answered, capped, config, entry, in_by_tenant
from tests.examples import examples


def test_if_nobody_who_is_in_has_a_turn_the_next_one_enters_within_100_ms():
    play = capped(1)
    play.is_admitted("parent")
    play.is_admitted("unlabelled sub-agent")
    play.end("parent", calls=True)
    assert play.later(0.05) == []
    assert play.later(0.051) == ["unlabelled sub-agent"]
    play.is_admitted("another")
    assert play.later(1.0) == []  # the pool is at work
    play.end("unlabelled sub-agent", calls=False)
    assert play.later(0.1) == ["another"]


def test_liveness_knows_no_quota():
    play = Play(SessionAdmission(config(), {T: Quota(max_sessions=1)}))
    play.is_admitted("parent")
    assert play.ask("sub-agent") == Wait(reason=WaitReason.TENANT_SESSIONS)
    assert play.later(5.0) == []
    play.end("parent")
    assert play.later(0.1) == ["sub-agent"]


def test_whom_liveness_lets_in_beyond_its_quota_stays_for_a_turn():
    play = Play(SessionAdmission(config(), {T: Quota(max_sessions=2)})).has(kv_tokens=650_000)
    most = 0
    for number in range(12):
        play.is_admitted(f"s{number}")
    for _ in range(20):
        for session in {str(each.session) for each in play.running.values()}:
            play.end(session)
        play.later(0.2)
        most = max(most, in_by_tenant(play)["t"])
    assert most == 3, "one more, so that nobody waits for whom it holds up"
    for session in {str(each.session) for each in play.running.values()}:
        play.end(session)
    assert in_by_tenant(play) == {"t": 2} and play.pool.places.above == 0


def test_liveness_lets_in_who_is_within_its_quota_first():
    play = Play(SessionAdmission(config(policy="session-cap", session_cap=1), {T: Quota(max_sessions=1)}))
    play.is_admitted("t1")
    play.is_admitted("t2")
    play.now += 1.0
    play.pool.fair.hold(U, 3.0)  # it holds more, but not more than it may
    play.is_admitted("u1", tenant="u")
    play.end("t1")
    assert play.later(0.1) == ["u1"]


def test_the_aged_may_exceed_the_window_one_at_a_time():
    play = capped(1, classes={"age_s": 5.0})
    play.is_admitted("s1")
    play.is_admitted("b1", background=True)
    play.is_admitted("b2", background=True)
    assert play.later(4.8) == []
    assert play.later(0.4) == ["b1"]
    assert play.later(10.0) == []
    assert play.end("b1") == ["b2"]  # a guest's place ends with its turn
    assert play.ask("b1", background=True) == FULL


def test_a_session_larger_than_everything_enters_an_empty_pool():
    play = Play().has(kv_tokens=1000)
    assert play.is_admitted("s1", body_bytes=1_000_000)
    assert play.ask("s2", body_bytes=1_000) == Wait(reason=WaitReason.KV_FULL)
    play.end("s1")
    assert play.later(0.1) == ["s2"]


def tools_of_agent_1_slow_down(play: Play) -> None:
    """Those of agent 2 do not; the host has more to run than it has cores."""
    for slower in (1.0, 9.0):
        for _ in range(20):
            play.policy._cpu.saw_tool(("make",), slower, AgentKey(T, 1))
            play.policy._cpu.saw_tool(("fetch",), 1.0, AgentKey(T, 2))
        play.policy._cpu.active = 9
        play.policy.host_reported("h", HostSignals(cores=1, runnable=9), now=play.now)
        play.policy._cpu.read(now=play.now)
    play.pool.window.with_tools = 1.0


def test_who_brings_little_for_tools_passes_those_who_wait_for_them():
    play = Play()
    play.turn("s0", calls=True)
    play.pool.release(play.pool.places.members[SessionId("s0")], now=play.now)
    play.is_admitted("s1", agent=1)
    tools_of_agent_1_slow_down(play)
    assert play.ask("s2", agent=1) == Wait(reason=WaitReason.TOOLS_FULL)
    assert not play.is_admitted("s3", agent=1)
    play.ask("s4", agent=2)
    assert play.drain_queue() == ["s4"]
    assert play.over("s1") == []  # of those who gave their places back, one still has tools run
    play.policy.tools_ran(SessionId("s0"), ("make",), 1.0)
    play.ask("s5", agent=1)
    assert "s2" in play.drain_queue()


def test_who_brings_little_for_tools_passes_one_that_is_overdue_and_has_to_wait_for_them():
    play = Play(max_door_wait=0.01)
    play.is_admitted("s1", agent=1)
    tools_of_agent_1_slow_down(play)
    assert play.ask("heavy", agent=1) == Wait(reason=WaitReason.TOOLS_FULL)
    play.now += 20.0
    play.policy.host_reported("h", HostSignals(cores=1, runnable=9), now=play.now)
    play.pool.window.with_tools = 1.0
    play.ask("light", agent=2)
    assert play.drain_queue() == ["light"] and list(play.waiting) == ["r2"]


def test_who_is_overdue_enters_beyond_the_limits_one_at_a_time():
    play = Play(max_door_wait=0.5)
    play.is_admitted("s0")
    play.pool.window.sessions, play.pool.limits.update_due_s = 1.0, float("inf")
    for name in ("s1", "s2"):
        play.ask(name)
    waiting = play.pool.queue.entries.get(SessionId("s1"))
    assert waiting is not None
    assert play.later(0.5 * waiting.lasts_s - 1.0) == [] and play.later(2.0) == ["s1"]
    assert play.later(waiting.lasts_s) == [], "s1 is above"
    assert play.end("s1") == ["s2"], "who is above gives its place back"


def test_engines_may_rest_while_hosts_say_that_tools_are_the_bottleneck():
    play = Play(window={"min_feedback_s": 5.0})
    play.is_admitted("s1", agent=1)
    play.policy._cpu.active = 9
    play.pool.window.with_tools = 1.0
    play.pool.window.set_feedback(5.0)
    play.policy.host_reported("h", HostSignals(cores=1, runnable=9), now=play.now)
    assert play.ask("s2", agent=1) == Wait(reason=WaitReason.TOOLS_FULL)
    play.end("s1", outcome=answered(tokens=100))
    entered = play.later(1.0)
    assert not entered and play.pool.next_deadline_s()
    assert play.later(play.pool.window.feedback_s) == ["s2"]


def queue(*entries: Entry, order="smallest") -> TenantQueue:
    waiting = TenantQueue(order)
    for each in entries:
        waiting.put(each)
    return waiting


def order(waiting: TenantQueue, *, is_cpu_bound=False) -> str:
    out = ""
    while len(waiting):
        out += (first := waiting.next(is_cpu_bound=is_cpu_bound)).session
        waiting.take(first.session)
    return out


def test_smaller_ones_first_and_those_with_the_least_for_tools_under_cpu_pressure():
    sessions = [entry("a", size=5000, tool_s=5), entry("b", size=500, tool_s=50), entry("c", size=50_000)]
    assert order(queue(*sessions)) == "bac"
    assert order(queue(*sessions), is_cpu_bound=True) == "cab"
    sessions[2].tool_s = 99
    assert order(queue(*sessions), is_cpu_bound=True) == "abc"
    by_arrival = queue(entry("a", size=9, since=2), entry("b", size=900, since=1), order="arrival")
    assert order(by_arrival, is_cpu_bound=True) == "ba"


def test_about_equal_ones_in_the_order_of_their_tasks():
    assert order(queue(entry("a", size=1010, arrived=2), entry("b", size=1020, arrived=1))) == "ba"


def test_who_was_in_before_is_first():
    assert order(queue(entry("a", size=1), entry("b", size=900, arrived=5, is_warm=True))) == "ba"


class Queues(RuleBasedStateMachine):
    """Beside the queue a list, which is searched."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = TenantQueue("smallest")
        self.oracle: dict[str, Entry] = {}
        self.count = 0

    @rule(
        size=st.sampled_from([1.0, 10.0, 100.0, 1e4]), tool_s=st.sampled_from([1.0, 2.0]), warm=st.booleans()
    )
    def comes(self, size, tool_s, warm):
        self.count += 1
        name = f"s{self.count}"
        self.oracle[name] = entry(
            name, size=size, tool_s=tool_s, arrived=-self.count, since=self.count, is_warm=warm
        )
        self.queue.put(self.oracle[name])

    @rule(data=st.data())
    def goes(self, data):
        if self.oracle:
            name = data.draw(st.sampled_from(sorted(self.oracle)))
            self.queue.take(SessionId(name))
            del self.oracle[name]

    @rule()
    def comes_back(self):
        if self.oracle:
            name = next(iter(self.oracle))
            self.queue.take(SessionId(name))
            self.queue.put(self.oracle[name])

    @invariant()
    def agrees_with_the_oracle(self):
        waiting = list(self.oracle.values())
        assert len(self.queue) == len(waiting)
        if not waiting:
            return
        for is_cpu_bound, key in ((False, lambda e: e.work), (True, lambda e: e.tool_s)):
            found = self.queue.next(is_cpu_bound=is_cpu_bound)
            warm = [] if is_cpu_bound else [each for each in waiting if each.is_warm]
            in_order = sorted(
                warm or waiting, key=lambda e: (not e.is_warm, not warm and key(e), e.task_arrived_s)
            )
            assert found is in_order[0]
        for heap in (self.queue._in_order, self.queue._lightest):
            assert len(heap) <= 2 * len(waiting) + 17


Queues.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
TestQueues = Queues.TestCase


A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def said(tokens: float = 0.0, waiting: int = 0, **asked: float) -> PoolShare:
    """What is held is half of what is asked for, where somebody waits."""
    share = 0.5 if waiting else 1.0
    mapped = {TenantId(tenant): sessions for tenant, sessions in asked.items()}
    held = {tenant: share * sessions for tenant, sessions in mapped.items()}
    return PoolShare(demand_tokens=tokens, waiting=waiting, held=held, wanted=mapped)


def parts(*shares: PoolShare, capacity: float | None = 1000.0, **weights: float) -> list[float]:
    mapped = {TenantId(tenant): weight for tenant, weight in weights.items()}
    return [
        part_of(own, [*shares[:at], *shares[at + 1 :]], capacity=capacity, weights=mapped)
        for at, own in enumerate(shares)
    ]


def test_with_nobody_else_all_of_the_pool_is_ours():
    assert parts(said(500, a=3)) == [1.0]


def test_what_is_free_is_shared_alike_while_nobody_waits():
    assert parts(said(500, a=3), said(100, a=1)) == pytest.approx([0.7, 0.3])
    assert parts(said(), said()) == [0.5, 0.5]
    assert parts(said(), said(), capacity=None) == [0.5, 0.5], "of what nobody knows, too"
    assert parts(said(1500, a=3), said(500, a=1)) == pytest.approx([0.75, 0.25]), "nothing is free"


def test_where_somebody_waits_the_pool_goes_to_tenants_alike():
    first, second = said(500, 90, a=100), said(500, 2, b=20)
    # 60 places are held: b asks for 20, and gets them; a gets the rest.
    assert parts(first, second) == pytest.approx([40 / 60, 20 / 60])
    assert parts(first, second, a=1.0, b=0.2) == pytest.approx([50 / 60, 10 / 60])


def test_a_tenant_at_two_gateways_is_one_tenant():
    both = parts(said(0, 10, a=40), said(0, 10, a=40), said(0, 10, b=40))
    assert both == pytest.approx([0.25, 0.25, 0.5])


def test_nobody_is_left_with_nothing():
    assert parts(said(0, 9, a=100), said())[1] == LEAST


asked = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.5, 100), max_size=4)


@given(st.lists(st.tuples(asked, st.integers(0, 5), st.floats(0, 900)), min_size=2, max_size=5))
def test_all_parts_make_one_pool(gateways):
    shares = [said(tokens, waiting, **each) for each, waiting, tokens in gateways]
    found = parts(*shares)
    assert sum(found) == pytest.approx(1.0, abs=2 * LEAST * len(found))


@given(asked, st.floats(0, 300))
def test_nobody_gets_more_than_it_asks_for_nor_less_than_another_who_asks_for_more(wants, there):
    mapped = {TenantId(tenant): sessions for tenant, sessions in wants.items()}
    given_ = max_min(mapped, there, {})
    assert sum(given_.values()) == pytest.approx(min(there, sum(wants.values())))
    for tenant, sessions in given_.items():
        assert sessions <= mapped[tenant] + 1e-9
        if sessions < mapped[tenant] - 1e-9:
            assert all(sessions >= other - 1e-6 for other in given_.values())


def test_gateways_are_told_of_a_bounded_number_of_tenants_and_of_all_their_sessions():
    play = Play().has(kv_tokens=10_000)
    for number in range(MAX_NAMED + 50):
        play.ask(f"s{number}", tenant=TenantId(f"t{number:03}"), prompt_tokens=1_000.0)
    for number in range(3):
        play.ask(f"more-{number}", tenant=TenantId("t299"))
    fair = play.policy.pools[POOL].fair
    for number in range(MAX_NAMED + 50):
        fair.hold(TenantId(f"t{number:03}"), 1.0)
    held = sum(fair.held.get(tenant, 0.0) for tenant in fair.held)
    share = play.policy.pools[POOL].share()
    assert len(share.wanted) == MAX_NAMED + 1 and len(share.held) <= MAX_NAMED + 1
    assert share.wanted[TenantId("t299")] == 1 + 4, "who has a place asks for it, too"
    assert sum(share.wanted.values()) == pytest.approx(2 * (MAX_NAMED + 50) + 3)
    assert share.waiting > 0
    assert held > MAX_NAMED and sum(share.held.values()) == pytest.approx(held)
