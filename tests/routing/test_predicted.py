"""Placement by prediction: who stays, who moves, and where newcomers go."""

from collections import Counter

import msgspec
import pytest

from gateway.domain.agent_key import AgentKey
from gateway.domain.decision import Edge, Guess, PlacementReason, SessionRef, SessionSource
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import ReplicaId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.routing.kv_ledger import MAX_OTHERS
from gateway.routing.placement import PredictedPlacement, RoutingConfig
from gateway.routing.placement_policy import Query
from gateway.workflow.aeg.graph import Step
from gateway.workflow.aeg.graphs import AegConfig, Graphs

BUSY, HERE = PlacementReason.HOME_IS_BUSY, PlacementReason.SESSION_LIVES_THERE
A, B, C = map(ReplicaId, "abc")
OWNER = TenantId("t")


class Oracle:
    """A token of a prompt takes a millisecond, one that is cached or generated nothing; and who is behind
    others waits a second for each, as far as `queued` says."""

    def __init__(self):
        self.pace = {}
        self.queued = {}
        self.asked = 0

    def completion_s(self, replica, work, *, now):
        self.asked += 1
        return self.queued.get(replica, 0) + 1e-3 * work.new_tokens * self.pace.get(replica, 1.0)

    def turn_s(self, replica, new_tokens, cached_tokens, output_tokens):
        return 1e-3 * new_tokens * self.pace.get(replica, 1.0)


class Fleet:
    def __init__(self, **settings):
        self.oracle = Oracle()
        config = msgspec.convert(settings, RoutingConfig)
        self.graphs = Graphs(AegConfig())
        self.policy = PredictedPlacement(config, self.oracle, self.graphs)
        self.now = 0.0

    def place(
        self,
        session,
        tokens=1000.0,
        edge=Edge.OPENS,
        agent=7,
        thread="1",
        owner=OWNER,
        waits_at=(),
        handed_over=0.0,
        prices=None,
        late=None,
        guess=None,
        **running,
    ):
        """`late`: what is known of how late `a` is."""
        asked = Query(
            self.now, AgentKey(owner, agent), 4 * int(tokens), lambda: tokens, waits_at, handed_over
        )
        loads = [
            ReplicaLoad(
                ReplicaId(name),
                count,
                price=(prices or {}).get(name, 0.0),
                **(late if late and name == "a" else {}),
            )
            for name, count in running.items()
        ]
        ref = turn(session, thread, edge)
        return self.policy.place(loads, msgspec.structs.replace(ref, guess=guess), asked)

    def past(self, agent, sessions, *, prompt):
        """So many sessions of that type have made a turn, and ended."""
        graph = self.graphs.of(AgentKey(OWNER, agent))
        for _ in range(sessions):
            graph.saw_turn(1, tokens=prompt, grown=None)
            graph.ended(Step(), 1)

    def lives(self, session, at, **answer):
        self.place(session, **{at: 0})
        self.answer(session, at, **answer)

    def room(self, kv_tokens, *replicas):
        for replica in replicas:
            self.policy.ledger.engine_reported(replica, EngineSignals(kv_tokens=kv_tokens))

    def answer(self, session, replica, prompt=1000, cached=0, pauses=True, thread="1", edge=Edge.OPENS):
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=0)
        self.policy.turn_over(turn(session, thread, edge), replica, usage, pauses=pauses, now=self.now)


def turn(session, thread="1", edge=Edge.OPENS):
    return SessionRef(session=session, thread=thread, edge=edge, source=SessionSource.NEW, confidence=0.5)


def test_what_is_no_turn_goes_where_the_fewest_run():
    fleet = Fleet()
    assert fleet.policy.place([ReplicaLoad(A, 2), ReplicaLoad(B, 1)], None).replica == "b"


def test_newcomers_go_where_their_adapter_has_a_place_unless_that_takes_longer():
    fleet = Fleet()
    assert fleet.place("s1", waits_at={A}, a=0, b=1).replica == "b"
    fleet.oracle.queued = {B: 30.0}
    assert fleet.place("s2", waits_at={A}, a=0, b=9).replica == "a"


def test_newcomers_spread_though_tools_run():
    fleet = Fleet()
    chosen = Counter(fleet.place(f"s{n}", a=0, b=0, c=0).replica for n in range(9))
    assert chosen == {"a": 3, "b": 3, "c": 3}


def test_who_is_silent_does_not_count_until_its_next_turn():
    fleet = Fleet()
    ledger = fleet.policy.ledger
    for number in range(4):
        fleet.place(f"gone-{number}", a=0, b=0)
        fleet.answer(f"gone-{number}", "ab"[number % 2], prompt=20_000, pauses=number % 2 == 0)
    assert ledger.sessions_at == {"a": 2, "b": 2}
    fleet.now = 20.0
    chosen = [fleet.place(f"s{number}", a=0, b=0).replica for number in range(4)]
    assert chosen == ["b", "b", "a", "b"], "tools run on a, and nobody is left on b"
    fleet.now = 301.0
    fleet.place("gone-1", a=0, b=0)
    assert ledger.sessions_at == {"a": 1, "b": 4}, "what tools took for so long is gone as well"
    assert fleet.place("gone-0", a=0, b=0).reason is HERE
    assert ledger.sessions_at == {"a": 2, "b": 4}
    for number in range(4):
        ledger.session_ended(SessionId(f"gone-{number}"))
    assert ledger.sessions_at == {"a": 1, "b": 3}


def test_a_side_request_does_not_end_a_tool_phase_nor_begin_one():
    fleet = Fleet()
    for name, pauses in (("works", True), ("rests", False)):
        fleet.lives(name, A, pauses=pauses)
        fleet.place(name, edge=Edge.SERVES, a=0)
        fleet.answer(name, A, pauses=False, edge=Edge.SERVES)
    fleet.place("title", edge=Edge.SERVES, a=0)  # nothing was known of it before
    fleet.answer("title", A, pauses=False, edge=Edge.SERVES)
    assert fleet.policy.ledger.sessions_at == {"a": 3}
    fleet.now += 16.0
    fleet.place("new", b=0)
    assert fleet.policy.ledger.sessions_at == {"a": 1, "b": 1}
    fleet.now += 290.0
    fleet.place("newer", b=0)
    assert fleet.policy.ledger.sessions_at == {"b": 2}


def test_unlike_replicas_get_what_they_are_good_at():
    fleet = Fleet()
    fleet.oracle.pace = {"slow": 3.0}
    chosen = Counter(fleet.place(f"s{n}", slow=0, fast=0).replica for n in range(40))
    assert 8 <= chosen["slow"] <= 12


def test_a_session_stays_and_nothing_is_predicted_for_it():
    fleet = Fleet()
    fleet.lives("s", "a")
    fleet.oracle.asked = 0
    assert fleet.place("s", a=3, b=0) == fleet.place("s", a=0, b=9)
    assert fleet.oracle.asked == 0
    assert fleet.place("s", a=4, b=0).reason is HERE
    assert fleet.oracle.asked == 2, "another one runs far fewer"


def test_it_moves_when_that_pays_and_only_then():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=10_000)
    fleet.oracle.queued = {"a": 5.0}
    assert fleet.place("s", tokens=11_000.0, a=9, b=0).reason is HERE, "to compute it anew takes 11 s"
    fleet.oracle.queued = {"a": 20.0}
    placement = fleet.place("s", tokens=11_000.0, a=9, b=0)
    assert placement.replica == "b" and placement.reason is BUSY
    assert fleet.policy.ledger.sessions_at == {"b": 1}


def test_those_that_run_there_count():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=10_000)
    fleet.oracle.queued = {"a": 20.0}
    assert fleet.place("s", tokens=11_000.0, a=9, b=4).reason is HERE, "four lose half of 11 s each"


def test_a_lost_home_is_left_for_where_it_is_best():
    fleet = Fleet()
    fleet.place("s", a=0, b=9, c=9)
    fleet.oracle.queued = {"b": 5.0}
    placement = fleet.place("s", b=0, c=0)
    assert placement.replica == "c" and placement.reason is PlacementReason.AFFINITY_REPLICA_DOWN
    assert fleet.policy.ledger.home(turn("s")) == "c" and fleet.policy.ledger.home(turn("new")) is None


def test_a_sole_candidate_is_taken():
    fleet = Fleet()
    assert fleet.place("s", a=0).reason is PlacementReason.LEAST_LOADED
    assert fleet.place("s", a=50).reason is HERE
    assert fleet.place("s", b=0).reason is PlacementReason.AFFINITY_REPLICA_DOWN


def test_a_newcomer_avoids_who_has_no_room_for_it_to_grow():
    fleet = Fleet()
    fleet.room(50_000, A)
    fleet.room(500_000, B)
    chosen = Counter(fleet.place(f"s{n}", a=0, b=0).replica for n in range(8))
    assert chosen["a"] <= 2


def test_sessions_are_spread_by_what_those_of_their_agent_grow_to():
    fleet = Fleet()
    fleet.room(200_000, A, B)
    for agent, tokens in ((1, 90_000), (2, 10_000)):
        fleet.past(agent, 30, prompt=tokens)
    large = fleet.place("large", agent=1, tokens=9e4, a=0, b=0).replica
    small = Counter(
        fleet.place(f"small-{number}", agent=2, tokens=1e4, a=0, b=0).replica for number in range(9)
    )
    assert small[large] <= 5
    assert fleet.place("another", agent=1, tokens=9e4, a=0, b=0).replica != large
    fleet.policy.ledger.session_ended(SessionId("large"))
    assert fleet.place("next", agent=1, tokens=9e4, a=0, b=0).replica == large, "where the other one is not"


def test_no_more_is_computed_again_than_sessions_usually_hold():
    fleet = Fleet()
    fleet.oracle.pace = {"b": 2.0}
    for name, at in (("s", "a"), ("t", "a"), ("u", "b")):
        fleet.policy.ledger.engine_reported(ReplicaId(at), EngineSignals(kv_tokens=20_000))
        fleet.place(name, **{at: 0})
    for _ in range(100):
        fleet.answer("s", "a")
    fleet.place("s", a=0)
    assert fleet.policy.ledger.sums(A).wanted > 45_000, "but nobody ever held as much as 2,000"
    assert fleet.place("new", a=0, b=0).replica == "a"


def fleet_of_a_full_home() -> Fleet:
    """Two sessions that hold 60,000 tokens each live on a, which has room for 100,000; on b nobody lives."""
    fleet = Fleet()
    fleet.room(100_000, A, B)
    for name in ("s", "t"):
        fleet.lives(name, "a", prompt=60_000)
    return fleet


def test_who_lost_its_state_in_a_crowd_goes_where_there_is_room():
    fleet = fleet_of_a_full_home()
    assert fleet.place("t", tokens=61_000.0, a=0, b=0).reason is HERE, "what it left there is there"
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0, SessionId("t"): 60_000.0})
    placement = fleet.place("s", tokens=61_000.0, a=0, b=0)
    assert placement.replica == "b" and placement.reason is PlacementReason.HOME_IS_FULL
    wanted = [fleet.policy.ledger.sums(each).wanted for each in (A, B)]
    assert wanted == pytest.approx([79_000.0] * 2), (
        "a tenth of ten thousand tokens for each of 19 turns to come"
    )
    fleet.policy.ledger.residency_reported(A, {SessionId("t"): 2_000.0})
    assert fleet.place("t", tokens=61_000.0, a=0, b=0).reason is HERE, "it is alone there now"


def test_a_full_home_is_compared_with_those_that_are_least_full():
    fleet = fleet_of_a_full_home()
    fleet.room(100_000, *map(ReplicaId, "bcde"))
    for name in "bcd":
        for number in range(2):
            fleet.lives(f"{name}{number}", name, prompt=60_000)
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0, SessionId("t"): 60_000.0})
    assert fleet.place("s", tokens=61_000.0, a=0, b=0, c=0, d=0, e=0).replica == "e"


def test_what_it_holds_at_home_is_counted_there_once():
    fleet = Fleet()
    fleet.room(100_000, A, B)
    fleet.lives("s", "a", prompt=60_000)
    fleet.oracle.queued = {"a": 58.0}
    assert fleet.place("s", tokens=61_000.0, a=9, b=0).reason is HERE, "66 s, and 63 s elsewhere"


def test_first_prompts_say_nothing_of_usual_turns():
    fleet = Fleet()
    before = fleet.policy._new_tokens
    fleet.lives("s", "a", prompt=90_000)
    assert fleet.policy._new_tokens == before
    fleet.answer("s", "a", prompt=99_000, cached=90_000)
    assert fleet.policy._new_tokens > before


def test_who_fits_into_the_host_tier_is_no_crowd():
    fleet = fleet_of_a_full_home()
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0, SessionId("t"): 60_000.0})
    fleet.policy.ledger.engine_reported(A, EngineSignals(kv_tokens=100_000, host_kv_tokens=150_000))
    assert fleet.place("s", tokens=61_000.0, b=0, a=0).reason is HERE


def test_without_a_crowd_it_stays_and_nothing_is_predicted():
    fleet = fleet_of_a_full_home()
    fleet.policy.ledger.session_ended(SessionId("t"))
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0})
    fleet.oracle.asked = 0
    assert fleet.place("s", tokens=61_000.0, b=0, a=0).reason is HERE and fleet.oracle.asked == 0


def test_it_does_not_stand_in_its_own_way():
    fleet = Fleet()
    fleet.room(200_000, A, B)
    for name, at, tokens in (("s", "a", 60_000), ("t", "a", 141_000), ("u", "b", 140_500)):
        fleet.lives(name, at, prompt=tokens)
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 0.0, SessionId("t"): 141_000.0})
    assert fleet.place("s", tokens=61_000.0, b=0, a=0).reason is HERE, "one lives with it here, and there"
    fleet.policy.ledger.session_ended(SessionId("u"))
    assert fleet.place("s", tokens=61_000.0, b=0, a=0).replica == "b"


def test_it_stays_where_others_have_no_room_either():
    fleet = fleet_of_a_full_home()
    for name in ("u", "v"):
        fleet.lives(name, "b", prompt=60_000)
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0, SessionId("t"): 60_000.0})
    assert fleet.place("s", tokens=61_000.0, a=0, b=0).reason is HERE


def test_a_full_home_is_not_left_for_one_that_would_be_as_full():
    fleet = fleet_of_a_full_home()
    for name, at in (("u", "a"), ("v", "b"), ("w", "b")):
        fleet.lives(name, at, prompt=60_000)
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0})
    fleet.oracle.pace = {"a": 1.29}
    assert fleet.place("s", tokens=60_000.0, a=0, b=0).reason is HERE, "then three would live there, as here"
    fleet.oracle.pace = {"a": 9.0}
    assert fleet.place("s", tokens=60_000.0, a=0, b=0).reason is HERE, "three lose as much there as here"
    fleet.policy.ledger.session_ended(SessionId("w"))
    moved = fleet.place("s", tokens=60_000.0, a=0, b=0)
    assert moved.replica == "b" and moved.reason is PlacementReason.HOME_IS_FULL


def test_replicas_count_as_equal_until_they_differ_by_more_than_chance():
    fleet = Fleet()
    fleet.oracle.pace = {"a": 1.29}
    chosen = Counter(fleet.place(f"s{number}", tokens=0.0, a=0, b=0).replica for number in range(40))
    assert chosen == {"a": 20, "b": 20}


def test_sessions_that_are_there_are_expected_to_grow_as_others_did_meanwhile():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=5_000)
    before = fleet.policy.ledger.sums(A).wanted
    fleet.past(7, 30, prompt=10_000)
    assert fleet.policy.ledger.sums(A).wanted == before
    fleet.place("s", a=0)
    assert 4_999 < fleet.policy.ledger.sums(A).wanted < before / 2, "few make a second turn"
    fleet.policy.ledger.session_ended(SessionId("s"))
    assert not fleet.policy.ledger.sessions_at


def test_what_will_grow_is_no_crowd_yet():
    fleet = Fleet()
    fleet.room(100_000, A, B)
    for name in ("s", "t", "u"):
        fleet.lives(name, "a", prompt=20_000)
        fleet.place(name, a=0)
    assert fleet.policy.ledger.sums(A).wanted > 100_000
    fleet.oracle.asked = 0
    assert fleet.place("s", tokens=21_000.0, a=0, b=0).reason is HERE and fleet.oracle.asked == 0
    for tokens, asked in ((35_000, 0), (41_000, 2)):
        for name in ("t", "u"):
            fleet.answer(name, "a", prompt=tokens)
        fleet.place("s", tokens=21_000.0, a=0, b=0)
        assert fleet.oracle.asked == asked, "home, and where there is room, once all of it is taken"


def test_a_busy_home_is_not_left_for_where_more_live():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=10_000)
    for number in range(6):
        fleet.place(f"other-{number}", b=0)
    fleet.oracle.queued = {"a": 20.0}
    assert fleet.place("s", tokens=11_000.0, a=9, b=0).reason is HERE, "idle as it is, six live there"
    for number in range(6):
        fleet.policy.ledger.session_ended(SessionId(f"other-{number}"))
    assert fleet.place("s", tokens=11_000.0, a=9, b=0).reason is BUSY


def test_a_fork_follows_its_parent_while_it_pays():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=10_000)
    fleet.oracle.queued = {"a": 5.0}
    place = {"tokens": 10_500.0, "edge": Edge.FORKS}
    assert fleet.place("s", thread="2", a=9, b=0, **place).replica == "a"
    fleet.oracle.queued = {"a": 50.0}
    assert fleet.place("s", thread="3", a=9, b=0, **place).replica == "b"
    assert fleet.policy.ledger.home(turn("s")) == "a"


@pytest.mark.parametrize("thread", [ThreadId("1"), None])
def test_a_guess_is_followed_while_that_pays_and_a_session_that_may_have_gone_on_counts_once(thread):
    fleet, source = Fleet(), SessionSource.PREFIX
    fleet.lives("s", "a", prompt=10_000)
    edge = Edge.CONTINUES if thread else Edge.SERVES
    at = SessionId("s")
    guess = Guess(session=at, thread=thread, source=source, confidence=0.8, edge=edge, parent=None)
    found = fleet.place("s2", tokens=10_500.0, guess=guess, a=1, b=0)
    assert (found.replica, found.reason) == ("a", PlacementReason.GUESS_LIVES_THERE)
    assert fleet.policy.ledger.sessions_at == {"a": 1 if thread else 2}
    fleet.place("s", tokens=10_000.0, a=1, b=0)
    assert fleet.policy.ledger.sessions_at == {"a": 2}, "it was another one: it goes on"
    fleet.oracle.queued = {"a": 50.0}
    found = fleet.place("s3", tokens=10_500.0, guess=guess, a=9, b=0)
    assert (found.replica, found.reason) == ("b", PlacementReason.LEAST_LOADED), "it never had a home"
    assert fleet.place("s5", tokens=500.0, guess=guess, b=0).reason is PlacementReason.LEAST_LOADED
    fleet.policy.ledger.session_ended(SessionId("s"))
    assert fleet.place("s4", tokens=500.0, guess=guess, a=3, b=0).reason is PlacementReason.LEAST_LOADED


def test_a_home_that_is_late_is_held_against_the_others():
    fleet = Fleet()
    fleet.oracle.queued = {"a": 0.5, "b": 0.5}
    assert fleet.place("s", a=0, b=9).replica == "a"
    fleet.answer("s", "a", prompt=5000)

    def place(slower: float) -> str:
        return fleet.place("s", 5000.0, Edge.CONTINUES, late={"slower": slower}, a=0, b=0).replica

    assert place(1.0) == "a" and fleet.oracle.asked == 2, "nothing was predicted but for the newcomer"
    assert place(3.0) == "a", "1.5 s and 6 s for a usual turn there, 5.5 s and 2 s elsewhere"
    assert place(5.0) == "b", "2.5 s and 10 s"


def test_at_a_late_home_this_turn_is_late_too():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=8_000)
    fleet.oracle.queued = {"a": 5.0}
    placement = fleet.place("s", tokens=8_000.0, late={"slower": 3.0}, a=0, b=0)
    assert placement.replica == "b", "15 and 6 s, there 8 and 2 s"


def test_who_has_nothing_to_lose_avoids_one_whose_last_turn_was_late():
    fleet = Fleet()
    fleet.oracle.pace = {"b": 3.0}

    def place(session: str, seems_slower: float) -> str:
        return fleet.place(session, late={"seems_slower": seems_slower}, a=0, b=0).replica

    assert place("s", 1.0) == "a"
    fleet.answer("s", "a", prompt=1000)
    assert place("s", 9.0) == "a", "it lives there"
    assert place("t", 1.0) == "a"
    assert place("u", 9.0) == "b"


def test_books_are_closed():
    fleet = Fleet(max_conversations=3)
    for number in range(9):
        fleet.place(f"s{number}", a=0, b=0)
        fleet.answer(f"s{number}", fleet.policy.ledger.home(turn(f"s{number}")))
    assert len(fleet.policy.ledger._conversations) == 3
    for number in range(9):
        fleet.policy.ledger.session_ended(SessionId(f"s{number}"))
    assert not fleet.policy.ledger.sessions_at and not fleet.policy.ledger._conversations


def test_a_session_of_endless_sub_agents_pushes_out_nobody_and_leaves_nothing():
    fleet = Fleet(max_conversations=MAX_OTHERS + 10)
    fleet.place("quiet", a=0, b=0)
    for number in range(3 * MAX_OTHERS):
        chosen = fleet.place("loud", a=0, b=0, thread=str(number)).replica
        fleet.answer("loud", chosen, thread=str(number))
    ledger = fleet.policy.ledger
    assert ledger.home(turn("quiet")) is not None
    assert len(ledger._conversations) == MAX_OTHERS + 2
    fleet.policy.ledger.session_ended(SessionId("loud"))
    assert len(ledger._conversations) == 1


CHEAPER, LEAST = PlacementReason.CHEAPER, PlacementReason.LEAST_LOADED


def test_of_equal_replicas_the_cheaper_one_is_taken():
    for dear, cheap in (("a", "b"), ("b", "a")):
        placement = Fleet().place("s", prices={dear: 0.01}, a=0, b=0)
        assert placement.replica == cheap
        assert placement.reason is (CHEAPER if dear == "a" else LEAST), "a is the first of equal ones"
    assert Fleet().place("s", prices={"a": 0.02, "b": 0.01}, a=0, b=0).replica == "b"


def test_a_dear_one_is_taken_where_the_others_are_later_by_more_than_it_is_worth():
    """A second there counts as half a second more; the turn lasts 1 s there, and a usual one 2 s."""
    for queued_s, replica, reason in ((1.4, "a", CHEAPER), (1.6, "b", LEAST), (9.0, "b", LEAST)):
        fleet = Fleet()
        fleet.oracle.queued = {"a": queued_s}
        placement = fleet.place("s", prices={"b": 0.5}, a=0, b=0)
        assert (placement.replica, placement.reason) == (replica, reason)


def test_a_session_moves_to_a_dear_one_where_its_home_is_busy_and_that_is_worth_it():
    for price, replica, reason in ((0.0, "b", BUSY), (0.5, "b", BUSY), (40.0, "a", HERE)):
        fleet = Fleet()
        fleet.lives("s", "a")
        fleet.oracle.queued = {"a": 20.0}
        placement = fleet.place("s", prices={"b": price}, a=9, b=0)
        assert (placement.replica, placement.reason) == (replica, reason)


def test_a_session_leaves_a_dear_home_once_a_cheaper_one_is_worth_the_move():
    """What it moves for has to be computed again, in 10 s; alone, its next turn takes 20 s there."""
    for price, replica, reason in ((0.0, "a", HERE), (0.1, "a", HERE), (3.0, "b", CHEAPER)):
        fleet = Fleet()
        fleet.lives("s", "a", prompt=10_000)
        placement = fleet.place("s", tokens=30_000.0, prices={"a": price}, a=0, b=0)
        assert (placement.replica, placement.reason) == (replica, reason)


def test_a_dear_home_is_compared_with_cheaper_ones_alone():
    fleet = Fleet()
    fleet.lives("s", "a", prompt=1_000)
    asked = fleet.oracle.asked
    assert fleet.place("s", prices={"a": 3.0, "b": 3.0, "c": 5.0}, a=0, b=0, c=0).reason is HERE
    assert fleet.oracle.asked == asked, "there is none"
    placement = fleet.place(
        "s", tokens=30_000.0, prices={"a": 3.0, "b": 3.0, "c": 5.0, "d": 1.0}, a=0, b=0, c=0, d=0
    )
    assert placement.replica == "d" and fleet.oracle.asked == asked + 2


def test_a_full_home_that_is_cheap_is_left_for_none_that_is_as_full():
    fleet = fleet_of_a_full_home()
    for number in range(2):
        fleet.lives(f"b{number}", "b", prompt=60_000)
    fleet.policy.ledger.residency_reported(A, {SessionId("s"): 2_000.0, SessionId("t"): 60_000.0})
    assert fleet.place("s", tokens=61_000.0, prices={"b": 0.1}, a=0, b=0).reason is HERE
    assert fleet.place("s", tokens=61_000.0, prices={"a": 9.0}, a=0, b=0).reason is CHEAPER


def test_what_was_handed_over_need_not_be_computed():
    fleet = Fleet()
    fleet.oracle.queued = {"a": 0.5}
    assert fleet.place("s", handed_over=1_000.0, a=0, b=0).replica == "b"
    fleet.oracle.queued, fleet.oracle.pace = {}, {"b": 9.0}
    assert fleet.place("t", handed_over=1_000.0, a=1, b=0).replica == "a"


def spread(lies):
    """Where sessions go, of which a has room for one, and b for many; after so many small ones of others."""
    fleet = Fleet()
    for number in range(lies):
        name = f"lie-{number}"
        fleet.place(name, owner=TenantId("other"), a=0, b=0)
        conversation = SessionId(name), ThreadId("1")
        for replica in (A, B):
            fleet.policy.ledger.turn_over(conversation, replica, Usage(prompt_tokens=1))
        fleet.policy.ledger.session_ended(SessionId(name))
    fleet.policy.ledger.engine_reported(A, EngineSignals(kv_tokens=50_000))
    fleet.policy.ledger.engine_reported(B, EngineSignals(kv_tokens=500_000))
    return [fleet.place(f"s{number}", a=0, b=0).replica for number in range(8)]


def test_how_small_one_tenants_sessions_are_does_not_crowd_anothers_together():
    assert spread(lies=50) == spread(lies=0)
