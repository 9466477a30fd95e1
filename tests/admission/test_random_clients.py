"""Clients come and go at random; an oracle beside the policy says that nothing is lost, doubled or stuck."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.admission.session_admission import SessionAdmission
from gateway.admission.tenants.quotas import Quota
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import SessionId, TenantId
from tests.admission.applicants import Play, config
from tests.examples import examples

SESSIONS = [f"s{number}" for number in range(14)]
TENANTS = {session: f"t{number % 3}" for number, session in enumerate(SESSIONS)}


class Clients(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(["sessions", "session-cap"]),
        capacity=st.sampled_from([None, 3000, 100_000]),
        order=st.sampled_from(["smallest", "arrival"]),
    )
    def open(self, policy, capacity, order):
        settings_ = config(
            policy=policy,
            session_cap=2,
            packing={"order": order},
            classes={"age_s": 3.0},
            gaps={"unknown_tool_s": 20.0, "least_s": 2.0},
            window={"min_feedback_s": 1.0, "max_feedback_s": 2.0},
        )
        quotas = {TenantId("t2"): Quota(max_sessions=2, tokens_per_minute=5000, weight=2.0)}
        self.play = Play(SessionAdmission(settings_, quotas))
        if capacity is not None:
            self.play.has(kv_tokens=capacity)

    @rule(
        session=st.sampled_from(SESSIONS),
        body_bytes=st.sampled_from([40, 4000, 40_000]),
        thread=st.sampled_from(["main", "main", "other"]),
        background=st.booleans(),
    )
    def asks(self, session, body_bytes, thread, background):
        member = self.member(session)
        was_in = member is not None and member.is_in and not member.eviction_reason
        decision = self.play.ask(
            session, tenant=TENANTS[session], body_bytes=body_bytes, thread=thread, background=background
        )
        if was_in and getattr(decision, "reason", None) is not RefusalReason.TENANT_QUOTA:
            assert type(decision).__name__ == "Admit", "a session that is in had to wait"
        self.play.drain_queue()

    @rule(
        data=st.data(),
        tokens=st.none() | st.integers(1, 60_000),
        cached=st.integers(0, 60_000),
        calls=st.booleans(),
    )
    def ends(self, data, tokens, cached, calls):
        if self.play.running:
            session = data.draw(st.sampled_from(sorted({str(a.session) for a in self.play.running.values()})))
            self.play.end(session, tokens=tokens, cached=min(cached, tokens or 0), calls=calls)

    @rule(data=st.data())
    def leaves(self, data):
        if self.play.waiting:
            session = data.draw(st.sampled_from(sorted({str(a.session) for a in self.play.waiting.values()})))
            self.play.leave(session)

    @rule(session=st.sampled_from(SESSIONS))
    def is_over(self, session):
        self._finish(session)

    def _finish(self, session):
        turns = [*self.play.running.values(), *self.play.waiting.values()]
        if not any(each.session == session for each in turns):
            self.play.finish(session)

    @rule(seconds=st.sampled_from([0.05, 0.2, 1.0, 7.0, 400.0]))
    def time_passes(self, seconds):
        self.play.later(seconds)

    def member(self, session):
        pools = self.play.policy.pools.values()
        return next((m for pool in pools if (m := pool.places.members.get(SessionId(session)))), None)

    @invariant()
    def nothing_is_lost_or_doubled(self):
        for pool in self.play.policy.pools.values():
            waiting = {str(each.session) for each in self.play.waiting.values()}
            leaving = {
                each for each in pool.held if pool.places.members[each].eviction_reason and each in waiting
            }
            leaving = {each for each in leaving if pool.places.members[each].is_in}
            assert set(pool.held) == waiting and len(pool.queue) == len(waiting) - len(leaving)
            assert {r for turns in pool.held.values() for r in turns} == set(self.play.waiting)
            for member in pool.places.members.values():
                running = sum(each.session == member.session for each in self.play.running.values())
                assert member.live == running
                assert member.is_in or not running
                assert not (member.is_in and member.session in pool.queue.entries)
            assert pool.places.count == sum(pool.fair.held[tenant] for tenant in pool.places.by_tenant)

    @invariant()
    def the_fleet_never_rests_while_somebody_waits(self):
        if self.play.waiting and not self.play.running:
            due = self.play.policy.next_deadline_s()
            assert due is not None and due <= self.play.now + 0.1001

    def teardown(self):
        if not hasattr(self, "play"):
            return
        for _ in range(3 * len(SESSIONS) + 3):
            for session in {str(each.session) for each in self.play.running.values()}:
                self.play.end(session)
                self._finish(session)
            self.play.later(0.2)
        assert not self.play.waiting and not self.play.running, "somebody was left waiting"
        assert not self.play.policy._turns
        for session in SESSIONS:
            self.play.finish(session)
        for pool in self.play.policy.pools.values():
            assert pool.places.count == 0 and not pool.places.residents.agents and not pool.places.members
            assert not pool.held and not pool.fair.waiting and not list(pool.fair.held)


Clients.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=50, deadline=None)
TestClients = Clients.TestCase
