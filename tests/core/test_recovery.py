"""A decision that fails by a fault of ours; what one gateway among several publishes, and when."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Publish, Refuse
from gateway.domain.decision import RefusalReason
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import Answer, RequestFacts, ToolCall, Utterance
from gateway.identity import evidence
from gateway.requests.facts import read_facts
from gateway.wire.endpoints import classify
from gateway.wire.hashing import hash_text
from lab.evaluation.replay import recorded_brain
from lab.simulator.invariants import check_books
from tests.core.playbook import Playbook, arrived, dispatch, down, failed, finished, left, started
from tests.workflow.world import call, user

FAULTS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "session inference": lambda brain: (brain.sessions, "turn_arrived"),
    "admission": lambda brain: (brain.admission, "decide"),
    "placement": lambda brain: (brain.placement, "place"),
}
"""Of what is asked before a turn is sent."""
LATE: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "forecasts": lambda brain: (brain.forecasts, "sent"),
    "health": lambda brain: (brain.fleet.health, "sent"),
    "classes": lambda brain: (brain.dispatcher._to_engines, "class_of"),
}
"""When its place on a replica is booked already."""
AFTERWARDS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "placement": lambda brain: (brain.placement, "turn_over"),
    "admission": lambda brain: (brain.admission, "turn_over"),
    "forecasts": lambda brain: (brain.forecasts, "ended"),
    "health": lambda brain: (brain.fleet.health, "ended"),
}


class Faulty(Playbook):
    def fails(self, where: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(*where, fail)

    def survives(self, event: ev.Event) -> list[Dispatch | Refuse]:
        with pytest.raises(ZeroDivisionError):
            self.brain.handle(event, now=self.now)
        commands = self.brain.recover(now=self.now)
        check_books(self.brain)
        return [each for each in commands if isinstance(each, Dispatch | Refuse)]


@pytest.mark.parametrize("what", FAULTS)
def test_a_turn_whose_decision_fails_is_sent_all_the_same(what, monkeypatch):
    play = Faulty(replicas="a b", max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    with monkeypatch.context() as broken:
        play.fails(FAULTS[what](play.brain), broken)
        (sent,) = play.survives(arrived("r2"))
    assert isinstance(sent, Dispatch) and (sent.request, sent.placement.replica) == ("r2", "b")
    play >> started("r2") >> finished("r2") >> arrived("r3") << dispatch("r3", to="b")
    play >> left("r3") >> left("r1")
    assert not play.brain.live and play.brain.faults == 1


@pytest.mark.parametrize("what", LATE)
def test_a_turn_whose_sending_fails_leaves_no_place_taken(what, monkeypatch):
    play = Faulty(replicas="a b", max_running_per_replica=1)
    with monkeypatch.context() as broken:
        play.fails(LATE[what](play.brain), broken)
        (refused,) = play.survives(arrived("r1"))
    assert isinstance(refused, Refuse) and refused.refusal.reason is RefusalReason.INTERNAL
    assert not play.brain.live
    play >> arrived("r2") << dispatch("r2", to="b")
    play >> arrived("r3") << dispatch("r3", to="a")


def test_who_waits_does_not_hang_when_its_place_is_found_by_another_that_ends(monkeypatch):
    play = Faulty(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> arrived("r2") >> started("r1")
    with monkeypatch.context() as broken:
        play.fails(FAULTS["placement"](play.brain), broken)
        (sent,) = play.survives(finished("r1"))
    assert isinstance(sent, Dispatch) and sent.request == "r2"


@pytest.mark.parametrize("what", AFTERWARDS)
def test_a_turn_whose_end_fails_is_over(what, monkeypatch):
    play = Faulty(max_running_per_replica=1)
    play >> arrived("r1") << dispatch("r1", to="a")
    play >> started("r1") >> arrived("r2")
    with monkeypatch.context() as broken:
        play.fails(AFTERWARDS[what](play.brain), broken)
        (sent,) = play.survives(finished("r1"))
    assert isinstance(sent, Dispatch) and set(play.brain.live) == {sent.request} == {"r2"}


def test_what_builds_on_state_is_not_passed_on_unseen(monkeypatch):
    play = Faulty(replicas="a b", tenants_have_keys=True, core={"reject_unknown_ids": True})
    book = play.brain.sessions
    for of, fault in ((book, "find_home"), (book.residence, "find")):
        with monkeypatch.context() as broken:
            play.fails((of, fault), broken)
            (refused,) = play.survives(arrived(fault, state_ids=("resp_of_another",)))
        assert isinstance(refused, Refuse) and refused.refusal.reason is RefusalReason.INTERNAL


def test_what_was_sent_before_is_not_sent_again(monkeypatch):
    play = Faulty(replicas="a b")
    play >> arrived("r1") << dispatch("r1", to="a")
    with monkeypatch.context() as broken:
        play.fails(AFTERWARDS["forecasts"](play.brain), broken)
        (refused,) = play.survives(failed("r1"))
    assert isinstance(refused, Refuse) and not play.brain.live


def test_whom_nobody_can_run_is_refused(monkeypatch):
    play = Faulty()
    play >> down("a")
    play.fails(FAULTS["admission"](play.brain), monkeypatch)
    (refused,) = play.survives(arrived("r1"))
    assert isinstance(refused, Refuse) and refused.refusal.reason is RefusalReason.INTERNAL


TENANT = TenantId("t")
CALL_ID = call("call_aaaaaaaaaaaaaaaa")["id"]


def opening(session: str | None = None) -> RequestFacts:
    headers = [(b"x-turnpike-session", session.encode())] if session is not None else []
    body = msgspec.json.encode({"model": "m", "messages": [user("Fix the login bug")]})
    return read_facts(classify("POST", "/v1/chat/completions"), headers, body)


def published_for(
    *events: ev.Event, facts: RequestFacts | None = None, publishes: bool = True
) -> list[list[Publish]]:
    """By a brain of several, with each event of a turn that opens a conversation."""
    brain = recorded_brain(now=0.0, publishes=publishes)
    brain.handle(ev.RequestArrived(RequestId("r-1"), TENANT, facts or opening()), now=1.0)
    commands = [brain.handle(event, now=1.0) for event in events]
    return [[each for each in some if isinstance(each, Publish)] for some in commands]


def made_by_a_call(*state_ids: str) -> tuple[Answer, ToolCall, set[int]]:
    """An answer that stores something, its call, and the names of all that it mints."""
    call_made = ToolCall(CALL_ID, "bash")
    answer = Answer(
        status=200,
        tool_calls=(call_made,),
        utterance=Utterance(text=7, chars=100),
        state_ids=state_ids,
        has_terminal=True,
    )
    minted = {evidence.of_minted(TENANT, hash_text(each)) for each in (call_made.id, *state_ids)}
    return answer, call_made, minted


def test_an_answer_that_came_whole_is_published_in_one_piece():
    answer, _, minted = made_by_a_call("resp_1f9c2a7e", "msg_8d2e4b6a")
    ((only,),) = published_for(ev.AnsweredAtOnce(RequestId("r-1"), answer, has_first_token=True))
    said_before = evidence.of_answer(TENANT, opening().transcript.tail, 7)
    assert only.given[-1] == said_before and len(only.names) == 1, "the session, as its answer names it"
    assert len(only.given) == 4 and set(only.given[:-1]) == minted
    assert only.trace is not None and only.trace.calls == 1


def test_of_an_answer_that_streams_ids_are_published_once_when_they_are_seen():
    answer, call_made, minted = made_by_a_call()
    request = RequestId("r-1")
    _, (at_once,), (at_the_end,) = published_for(
        ev.ResponseStarted(request, 200),
        ev.ToolCallSeen(request, call_made),
        ev.ResponseFinished(request, answer),
    )
    assert set(at_once.given) == minted and at_once.trace is None
    assert not minted & set(at_the_end.given) and at_the_end.trace is not None


def test_a_turn_that_failed_is_found_for_as_long_as_it_may_be_sent_again():
    (found,) = published_for(ev.AnsweredAtOnce(RequestId("r-1"), Answer(status=503), has_first_token=False))
    whole, again = found
    assert whole.trace is not None and whole.lasts_s is None
    assert again.trace is None and again.lasts_s == 10.0 and not again.given
    assert again.names == (evidence.of_failed(TENANT, opening().transcript.body),)


def test_an_only_gateway_publishes_nothing():
    request, (answer, call_made, _) = RequestId("r-1"), made_by_a_call("resp_1f9c2a7e")
    published = published_for(
        ev.ResponseStarted(request, 200),
        ev.ToolCallSeen(request, call_made),
        ev.ResponseFinished(request, answer),
        facts=opening("run-1"),
        publishes=False,
    )
    assert published == [[], [], []]


def test_what_is_due_of_another_turn_stays_its_own():
    brain = recorded_brain(now=0.0, publishes=True)
    brain.handle(ev.RequestArrived(RequestId("r-1"), TENANT, opening()), now=1.0)
    stated = opening("run-1").explicit
    assert brain.sessions.publishing is not None and stated is not None
    brain.sessions.publishing.opened(RequestId("r-2"), TENANT, stated)
    answer, _, minted = made_by_a_call()
    commands = brain.handle(ev.AnsweredAtOnce(RequestId("r-1"), answer, has_first_token=True), now=1.0)
    other, own = [each for each in commands if isinstance(each, Publish)]
    assert (other.request, other.names) == (
        "r-2",
        (evidence.of_stated(TENANT, stated.schema, stated.session),),
    )
    assert own.request == "r-1" and set(own.given[:-1]) == minted
