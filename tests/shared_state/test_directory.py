"""Which gateway has the session of a request: the rules, one by one, and what happens when they fail."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Publish
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Answer, RequestFacts, ToolCall
from gateway.requests.facts import read_facts
from gateway.responses.observer import observe
from gateway.shared_state import directory as module
from gateway.shared_state.allowances import Allowances
from gateway.shared_state.directory import Directory, Peer
from gateway.shared_state.protocol import Entry, StoreUnavailable
from gateway.wire.endpoints import classify
from lab.evaluation.memory_store import MemoryStore
from lab.evaluation.replay import recorded_brain
from tests.workflow.world import call, result, said, user

CHAT = classify("POST", "/v1/chat/completions")
TENANT = TenantId("t")
CLIENT = "10.0.0.1"


def facts_of(*messages: dict[str, Any], session: str | None = None) -> RequestFacts:
    headers = [(b"user-agent", b"agent/1")]
    if session is not None:
        headers.append((b"x-turnpike-session", session.encode()))
    body = msgspec.json.encode({"model": "m", "messages": messages, "tools": [{"type": "function"}]})
    return read_facts(CHAT, headers, body)


class Down(MemoryStore):
    """A store that does not answer."""

    async def find(self, keys: Any) -> Any:
        raise StoreUnavailable


class Gateways:
    """Some gateways on one store, in the order in which they were started."""

    def __init__(
        self, *names: str, store: MemoryStore | None = None, are_busy: bool = False, **how: Any
    ) -> None:
        self.now_s = 1.0
        self.store = store or MemoryStore(lambda: self.now_s)
        self.peers = {name: {other: Peer(are_busy) for other in names if other != name} for name in names}
        self.brains = {name: recorded_brain(now=0.0, prefix=name, publishes=True) for name in names}
        self.directories = {
            name: Directory(
                self.store,
                name,
                self.peers[name],
                partial(self._knows, name),
                found_twins=partial(self._found_twins, name),
                idle_s=3600.0,
                **how,
            )
            for name in names
        }
        self.count = 0
        self.hears_nothing = ""
        """The gateway to which nobody tells what two gave."""

    def _found_twins(self, finder: str, names: Sequence[int]) -> None:
        for name, brain in self.brains.items():
            if name == finder or name != self.hears_nothing:
                brain.handle(ev.AmbiguousEvidence(tuple(names)), now=self.now_s)

    def _knows(self, name: str, tenant: TenantId, facts: RequestFacts) -> bool:
        return self.brains[name].sessions.sessions.knows(tenant, facts, now=self.now_s)

    async def goes_to(
        self, at: str, facts: RequestFacts, *, tenant: TenantId = TENANT, client: str = CLIENT
    ) -> str:
        """Which gateway decides; whoever adopts or inherits something has it then."""
        directory = self.directories[at]
        if directory.is_here(tenant, facts):
            return at
        place = await directory.find(tenant, client, facts)
        owner, traces = place.owner or at, place.adopted
        if place.takes_over_session and not self.directories[owner].is_here(tenant, facts):
            traces = await self.directories[owner].inherited(tenant, facts)
        for trace in traces:
            self.brains[owner].handle(ev.SessionAdopted(trace), now=self.now_s)
        return owner

    def turn(
        self,
        at: str,
        facts: RequestFacts,
        message: dict[str, Any],
        *,
        status: int = 200,
        tenant: TenantId = TENANT,
    ) -> str:
        self.count += 1
        request, brain = RequestId(f"r-{self.count}"), self.brains[at]
        commands = brain.handle(ev.RequestArrived(request, tenant, facts), now=self.now_s)
        commands += brain.handle(ev.ResponseStarted(request, status), now=self.now_s)
        answer = Answer(status=status)
        if status < 400:
            observer = observe(CHAT.protocol, CHAT.work, "application/json", None)
            observer.feed(msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]}))
            answer = msgspec.structs.replace(observer.answer(status), has_terminal=True)
        commands += brain.handle(ev.ResponseFinished(request, answer), now=self.now_s)
        for command in commands:
            if isinstance(command, Publish):
                self.directories[at].publish(command)
        (session,) = {
            c.session.session for c in commands if isinstance(c, Dispatch) and c.session is not None
        }
        return session

    def kill(self, name: str) -> None:
        for peers in self.peers.values():
            peers.pop(name, None)


LONG = "I have looked at all of the files, and I know by now what has to be done about them, step by step."
OPENING = (user("Fix the login bug"),)
MADE = said(LONG, call("call_aaaaaaaaaaaaaaaa"))
SECOND = (*OPENING, MADE, result("call_aaaaaaaaaaaaaaaa"))


async def test_what_a_gateway_knows_itself_is_decided_there_without_the_store():
    gateways = Gateways("a", "b", store=Down(lambda: 0.0))
    gateways.turn("a", facts_of(*OPENING), MADE)
    assert gateways.directories["a"].is_here(TENANT, facts_of(*SECOND))
    assert not gateways.directories["b"].is_here(TENANT, facts_of(*SECOND))


@pytest.mark.parametrize(
    ("reply", "again"),
    [
        (MADE, SECOND),
        (said(LONG), (*OPENING, said(LONG), user("And now the tests, please"))),
    ],
    ids=["by the id of a call", "by an answer"],
)
async def test_a_conversation_that_goes_on_finds_its_gateway(reply, again):
    gateways = Gateways("a", "b", "c")
    gateways.turn("a", facts_of(*OPENING), reply)
    for at in "abc":
        assert await gateways.goes_to(at, facts_of(*again)) == "a"


def marked(gateways: Gateways) -> int:
    return sum(value.startswith(b"?") for value, _ in gateways.store._entries.values())


SHORT = said("Next.", call("call_aaaaaaaaaaaaaaaa"))


@pytest.mark.parametrize("reply", [MADE, said(LONG), SHORT], ids=["both", "an answer", "an id"])
async def test_what_two_gateways_gave_to_sessions_of_their_own_proves_nothing_at_either(reply):
    gateways = Gateways("a", "b", "c", are_busy=True)
    calls = reply.get("tool_calls")
    again = facts_of(*OPENING, reply, result(calls[0]["id"]) if calls else user("And now the tests"))
    twins = {gateways.turn(at, facts_of(*OPENING), reply) for at in "ab"}
    for at in "abc":
        where = await gateways.goes_to(at, again)
        assert where in "ab", "it may guess where there is something to guess"
        assert gateways.turn(where, again, said("Done.")) not in twins


async def test_who_was_not_told_of_twins_learns_it_from_the_store():
    gateways = Gateways("a", "b", "c", are_busy=True)
    gateways.hears_nothing = "c"
    twins = {gateways.turn(at, facts_of(*OPENING), MADE) for at in "ab"}
    for name in "ab":
        gateways.kill(name)
    assert await gateways.goes_to("c", facts_of(*SECOND)) == "c"
    assert gateways.turn("c", facts_of(*SECOND), said("Done.")) not in twins


async def test_what_two_tenants_were_given_at_two_gateways_is_each_ones_own():
    gateways = Gateways("a", "b", are_busy=True)
    for at, tenant in [("a", TENANT), ("b", TenantId("other"))]:
        session = gateways.turn(at, facts_of(*OPENING), MADE, tenant=tenant)
        assert gateways.turn(at, facts_of(*SECOND), said("Done."), tenant=tenant) == session
    assert marked(gateways) == 0


async def test_what_one_gateway_gave_twice_is_marked_nowhere():
    """It sees that itself; the others are to find it there."""
    gateways = Gateways("a", "b")
    for _ in range(2):
        gateways.turn("a", facts_of(*OPENING), MADE)
    assert marked(gateways) == 0
    assert await gateways.goes_to("b", facts_of(*SECOND)) == "a"


@pytest.mark.parametrize("third", ["a", "b"])
async def test_a_third_twin_does_not_undo_the_mark(third):
    gateways = Gateways("a", "b", are_busy=True)
    for at in ("a", "b", third):
        gateways.turn(at, facts_of(*OPENING), MADE)
    assert marked(gateways) == 2


async def test_an_id_that_a_client_states_at_two_gateways_still_names_its_session():
    gateways = Gateways("a", "b")
    gateways.hears_nothing = "b"
    session = gateways.turn("a", facts_of(*OPENING, session="run"), MADE)
    gateways.kill("a")
    assert await gateways.goes_to("b", facts_of(*SECOND, session="run")) == "b"
    assert gateways.turn("b", facts_of(*SECOND, session="run"), said("Done.")) == session
    assert not len(gateways.brains["b"].sessions.sessions._twins)


@pytest.mark.parametrize("text", ["Next.", ""])
async def test_an_id_that_repeats_elsewhere_leaves_what_a_conversation_proves(text):
    """Its answers were given to it alone; also where what came last was a call and no word."""
    gateways = Gateways("a", "b", are_busy=True)
    session = gateways.turn("a", facts_of(*OPENING), MADE)
    last = said(text, call("call_bbbbbbbbbbbbbbbb"))
    third = facts_of(*SECOND, last, result("call_bbbbbbbbbbbbbbbb"))
    assert gateways.turn("a", facts_of(*SECOND), last) == session
    gateways.turn("b", facts_of(user("Another task")), said("Go.", call("call_bbbbbbbbbbbbbbbb")))
    assert len(gateways.brains["a"].sessions.sessions._twins) == 1
    assert gateways.turn("a", third, said("Done.")) == session


@pytest.mark.parametrize("text", ["Next.", ""])
async def test_a_twin_that_went_on_before_the_other_began_proves_nothing_at_its_end(text):
    gateways = Gateways("a", "b", are_busy=True)
    last = said(text, call("call_bbbbbbbbbbbbbbbb"))
    third = facts_of(*SECOND, last, result("call_bbbbbbbbbbbbbbbb"))
    twins = {
        gateways.turn("a", facts, made)
        for facts, made in [(facts_of(*OPENING), MADE), (facts_of(*SECOND), last)]
    }
    assert len(twins) == 1, "nobody else was given it by then"
    for facts, made in [(facts_of(*OPENING), MADE), (facts_of(*SECOND), last)]:
        twins.add(gateways.turn("b", facts, made))
    assert gateways.turn("a", third, said("Done.")) not in twins


async def test_evidence_of_a_call_is_there_before_its_answer_has_ended():
    gateways = Gateways("a", "b")
    brain = gateways.brains["a"]
    request = RequestId("r-1")
    brain.handle(ev.RequestArrived(request, TENANT, facts_of(*OPENING)), now=1.0)
    brain.handle(ev.ResponseStarted(request, 200), now=1.0)
    made = MADE["tool_calls"][0]
    seen = brain.handle(ev.ToolCallSeen(request, ToolCall(made["id"], "bash")), now=1.0)
    for command in seen:
        assert isinstance(command, Publish)
        gateways.directories["a"].publish(command)
    assert await gateways.goes_to("b", facts_of(*SECOND)) == "a"


async def test_what_failed_and_comes_again_finds_its_gateway():
    gateways = Gateways("a", "b", are_busy=True)
    gateways.turn("a", facts_of(*OPENING), {}, status=503)
    assert await gateways.goes_to("b", facts_of(*OPENING)) == "a"


@pytest.mark.parametrize("later_s", [9.0, 11.0])
async def test_what_failed_leads_nowhere_once_nobody_would_ask_it_again(later_s):
    gateways = Gateways("a", "b", "c")
    home = await gateways.goes_to("a", facts_of(*OPENING))
    other = min(set("abc") - {home})
    gateways.turn(other, facts_of(*OPENING), {}, status=503)
    gateways.now_s += later_s
    expected = other if later_s < 10.0 else home
    assert [await gateways.goes_to(at, facts_of(*OPENING)) for at in "abc"] == [expected] * 3


async def test_new_sessions_of_a_client_begin_at_one_gateway_and_clients_are_spread():
    gateways = Gateways("a", "b", "c")
    homes = set()
    for client in range(30):
        found = {await gateways.goes_to(at, facts_of(*OPENING), client=f"10.0.0.{client}") for at in "abc"}
        assert len(found) == 1
        homes |= found
    assert homes == {"a", "b", "c"}


async def test_where_the_home_is_busy_a_session_begins_where_it_comes_in():
    gateways = Gateways("a", "b", "c")
    (home,) = {await gateways.goes_to(at, facts_of(*OPENING)) for at in "abc"}
    for peers in gateways.peers.values():
        if home in peers:
            peers[home] = Peer(is_busy=True)
    assert [await gateways.goes_to(at, facts_of(*OPENING)) for at in "abc"] == ["a", "b", "c"]


async def test_a_session_that_is_stated_has_one_home_even_if_that_is_busy():
    gateways = Gateways("a", "b", "c", are_busy=True)
    homes = set()
    for number in range(30):
        facts = facts_of(*OPENING, session=f"run-{number}")
        found = {await gateways.goes_to(at, facts, client=f"10.0.0.{at}") for at in "abc"}
        assert len(found) == 1
        homes |= found
    assert homes == {"a", "b", "c"}


async def test_all_sessions_of_a_tenant_with_a_quota_are_counted_at_one_gateway():
    gateways = Gateways("a", "b", "c", with_quotas=[TENANT], are_busy=True)
    asked = [
        (facts_of(*OPENING, session=f"run-{at}" if at % 2 else None), f"10.0.0.{at}") for at in range(20)
    ]
    homes = {await gateways.goes_to("a", facts, client=client) for facts, client in asked}
    assert len(homes) == 1


async def test_another_tenants_evidence_leads_nowhere():
    gateways = Gateways("a", "b", "c")
    gateways.turn("a", facts_of(*OPENING), MADE)
    other, facts = TenantId("other"), facts_of(*SECOND)
    fresh = Gateways("a", "b", "c")
    for at in "abc":
        assert await gateways.goes_to(at, facts, tenant=other) == await fresh.goes_to(at, facts, tenant=other)
    gateways.kill("a")
    assert not (await gateways.directories["b"].find(other, CLIENT, facts)).adopted


async def test_with_the_store_down_a_run_is_decided_at_its_home():
    gateways = Gateways("a", "b", "c", store=Down(lambda: 0.0))
    (home,) = {await gateways.goes_to(at, facts_of(*OPENING)) for at in "abc"}
    assert {await gateways.goes_to(at, facts_of(*SECOND)) for at in "abc"} == {home}


async def test_with_the_store_down_what_a_gateway_in_doubt_knows_is_decided_there():
    gateways = Gateways("a", "b", store=Down(lambda: 0.0))
    home = await gateways.goes_to("a", facts_of(*OPENING))
    other = "ab".replace(home, "")
    gateways.turn(other, facts_of(*OPENING), MADE)
    gateways.directories[other].is_in_doubt = True
    assert await gateways.goes_to(other, facts_of(*SECOND)) == other


async def test_a_session_goes_on_under_its_name_when_its_gateway_is_gone():
    gateways = Gateways("a", "b", "c")
    session = gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.kill("a")
    first = await gateways.goes_to("b", facts_of(*SECOND))
    assert gateways.turn(first, facts_of(*SECOND), said("Done.")) == session


async def test_what_a_gateway_leaves_behind_goes_where_its_client_begins_anew():
    """So guesses that relate them have both sides at one gateway."""
    gateways = Gateways("a", "b", "c")
    sessions = []
    for at in range(20):
        opening, made = user(f"Task {at}"), said(LONG, call(f"call_aaaaaaaaaaaaaa{at:02}"))
        second = facts_of(opening, made, result(f"call_aaaaaaaaaaaaaa{at:02}"))
        session = gateways.turn("a", facts_of(opening), made)
        sessions.append((f"10.0.0.{at}", second, session))
    gateways.kill("a")
    for client, second, session in sessions:
        (home,) = {await gateways.goes_to(at, facts_of(*OPENING), client=client) for at in "bc"}
        assert [await gateways.goes_to(at, second, client=client) for at in "bc"] == [home, home]
        assert gateways.turn(home, second, said("Done.")) == session


async def test_an_heir_goes_on_with_a_session_whose_gateway_it_does_not_know_to_be_gone():
    gateways = Gateways("a", "b", "c")
    session = gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.peers["b"].pop("a")  # it alone noticed
    gateways.kill("a")
    heir = await gateways.goes_to("b", facts_of(*OPENING))
    (other,) = set("bc") - {heir}
    gateways.peers[heir]["a"] = Peer()  # the other one alone noticed
    assert await gateways.goes_to(other, facts_of(*SECOND)) == heir
    assert gateways.turn(heir, facts_of(*SECOND), said("Done.")) == session


async def test_a_retry_of_an_opening_whose_gateway_is_gone_goes_on_with_it():
    gateways = Gateways("a", "b", "c")
    session = gateways.turn("a", facts_of(*OPENING), {}, status=503)
    gateways.kill("a")
    (heir,) = {await gateways.goes_to(at, facts_of(*OPENING)) for at in "bc"}
    gateways.turn(heir, facts_of(*OPENING), MADE)
    known = gateways.brains[heir].sessions.sessions.get(SessionId(session))
    assert known is not None and known.log[0].retried_by is not None


async def test_a_session_that_was_answered_as_another_is_not_torn_in_two():
    """What it left leads to it alone, also where the other one is taken over first."""
    gateways = Gateways("a", "b", "c", are_busy=True)  # so each is taken over where it comes in
    ids = ["call_aaaaaaaaaaaaaaaa", "call_bbbbbbbbbbbbbbbb"]
    made = [said(LONG, call(each)) for each in ids]
    seconds = [facts_of(*OPENING, each, result(name)) for each, name in zip(made, ids, strict=True)]
    sessions = [gateways.turn("a", facts_of(*OPENING), each) for each in made]
    gateways.turn("a", seconds[1], {}, status=503)
    gateways.kill("a")
    assert await gateways.goes_to("b", seconds[0]) == "b"
    assert gateways.turn("b", seconds[0], said("Done.")) == sessions[0]
    assert await gateways.goes_to("b", seconds[1]) == "b"
    gateways.turn("b", seconds[1], said("Done."))
    retried = gateways.brains["b"].sessions.sessions.get(SessionId(sessions[1]))
    assert retried is not None and retried.log[-2].retried_by is retried.log[-1]


async def test_what_another_version_wrote_of_a_session_is_passed_over():
    gateways = Gateways("a", "b", "c")
    gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.store.publish([Entry(b"t:r-1 t", b"\x93\x01\x02\x03", 60.0)])
    gateways.kill("a")
    home = await gateways.goes_to("b", facts_of(*OPENING))
    assert await gateways.goes_to("b", facts_of(*SECOND)) == home


async def test_of_two_gateways_that_find_an_orphan_the_first_has_it():
    gateways = Gateways("a", "b", "c")
    gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.kill("a")
    places = await asyncio.gather(*(gateways.goes_to(at, facts_of(*SECOND)) for at in "bc"))
    assert len(set(places)) == 1


async def test_an_orphan_whose_heir_is_gone_too_is_not_lost():
    gateways = Gateways("a", "b", "c")
    session = gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.kill("a")
    heir = await gateways.goes_to("b", facts_of(*SECOND))
    (last,) = set("bc") - {heir}
    gateways.kill(heir)
    assert await gateways.goes_to(last, facts_of(*SECOND)) == last
    assert gateways.turn(last, facts_of(*SECOND), said("Done.")) == session


async def test_a_gateway_that_was_taken_for_gone_asks_for_its_own_sessions():
    gateways = Gateways("a", "b")
    gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.kill("a")
    assert await gateways.goes_to("b", facts_of(*SECOND)) == "b"
    done = said("The bug was in the session cookie, which was never renewed; it is now, with a test.")
    gateways.turn("b", facts_of(*SECOND), done)
    gateways.peers["b"]["a"] = Peer()  # it was only paused
    third = facts_of(*SECOND, done, user("Thanks"))
    gateways.directories["a"].is_in_doubt = True
    assert not gateways.directories["a"].is_here(TENANT, facts_of(*SECOND))
    assert await gateways.goes_to("a", third) == "b"


async def test_what_is_published_a_moment_late_is_found_by_a_second_look():
    gateways = Gateways("a", "b")
    looking = asyncio.ensure_future(gateways.goes_to("b", facts_of(*SECOND)))
    await asyncio.sleep(0)
    gateways.turn("a", facts_of(*OPENING), MADE)
    assert await looking == "a"


async def test_who_brings_back_a_foreign_id_is_not_known_by_an_answer_that_another_gave_too():
    """Whoever began the same conversation knows the answer in it, but not the id of its call."""
    gateways = Gateways("a", "b")
    other = said(LONG, call("call_bbbbbbbbbbbbbbbb"))
    gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.turn("b", facts_of(*OPENING), other)
    assert not gateways.directories["b"].is_here(TENANT, facts_of(*SECOND))
    assert await gateways.goes_to("b", facts_of(*SECOND)) == "a"


async def test_in_doubt_a_session_is_its_heirs_while_the_first_turn_there_lasts():
    gateways = Gateways("a", "b")
    gateways.turn("a", facts_of(*OPENING), MADE)
    gateways.kill("a")
    assert await gateways.goes_to("b", facts_of(*SECOND)) == "b"  # which has published nothing yet
    gateways.peers["b"]["a"] = Peer()
    gateways.directories["a"].is_in_doubt = True
    assert await gateways.goes_to("a", facts_of(*SECOND)) == "b"


async def test_in_doubt_what_the_store_has_lost_stays_where_it_is_known():
    gateways = Gateways("a", "b")
    for client in map(str, range(8)):
        gateways.turn("a", facts_of(user(client)), MADE)
    gateways.directories["a"]._store = MemoryStore(lambda: 0.0)
    gateways.directories["a"].is_in_doubt = True
    for client in map(str, range(8)):
        second = facts_of(user(client), MADE, result("call_aaaaaaaaaaaaaaaa"))
        assert await gateways.goes_to("a", second, client=client) == "a"


async def test_of_a_tenant_that_has_enough_in_the_store_nothing_more_is_published():
    other = TenantId("other")
    now = [0.0]
    allowances = Allowances(2_000.0, stays_s=3600.0, now=lambda: now[0])
    gateways = Gateways("a", "b", allowances=allowances)
    for _ in range(20):
        gateways.turn("a", facts_of(*OPENING), MADE)
    withheld, stand = gateways.directories["a"].withheld, len(gateways.store._entries)
    assert withheld > 0 < stand
    gateways.turn("a", facts_of(*OPENING), MADE)
    assert gateways.directories["a"].withheld > withheld and len(gateways.store._entries) == stand
    gateways.turn("a", facts_of(*OPENING), MADE, tenant=other)
    assert await gateways.goes_to("b", facts_of(*SECOND), tenant=other) == "a"
    now[0] = 3600.0
    gateways.turn("a", facts_of(*OPENING), MADE)
    assert len(gateways.store._entries) > stand


def test_what_a_turn_takes_of_its_allowance_is_what_its_entries_are(monkeypatch):
    allowances = Allowances(2_000.0, stays_s=3600.0, now=lambda: 0.0)
    gateways = Gateways("a", "b", allowances=allowances)
    taken: list[float] = []
    stood: list[int] = []

    def take(tenant: TenantId, byte_seconds: float) -> bool:
        taken.append(byte_seconds / 3600.0)
        return True

    monkeypatch.setattr(allowances, "take", take)
    publish = gateways.store.publish

    def counted(entries: Sequence[Entry]) -> None:
        stood.append(sum(module._ENTRY_BYTES + len(each.key) + len(each.value or b"") for each in entries))
        publish(entries)

    monkeypatch.setattr(gateways.store, "publish", counted)
    gateways.turn("a", facts_of(*OPENING, session="s"), MADE)
    assert stood and taken == pytest.approx(stood)


async def test_what_is_stored_at_a_replica_is_remembered_for_a_day():
    gateways, now = Gateways("a"), 3600.0 + 2.0
    for states in ((), ((b"key", ReplicaId("x")),)):
        request = RequestId(f"r-{len(states)}")
        brain = gateways.brains["a"]
        brain.handle(ev.RequestArrived(request, TENANT, facts_of(*OPENING)), now=1.0)
        [published] = [
            each
            for each in brain.handle(
                ev.AnsweredAtOnce(request, Answer(status=200), has_first_token=True), now=1.0
            )
            if isinstance(each, Publish)
        ]
        assert published.trace is not None
        published.trace.states = states
        gateways.directories["a"].publish(published)
    gateways.now_s = now
    found = await gateways.store.find([module._turn_key(TENANT, turn) for turn in (b"r-0", b"r-1")])
    assert [value is not None for value in found] == [False, True]
