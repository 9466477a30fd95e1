"""What the brain of one gateway among several has published of a turn, and when."""

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Publish
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import Answer, RequestFacts, ToolCall, Utterance
from gateway.wire.endpoints import classify
from gateway.wire.facts import read_facts
from gateway.wire.hashing import hash_text
from gateway.workflow import evidence
from lab.evaluation.replay import recorded_brain
from tests.workflow.world import call, user

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
    assert only.given[-1] == said_before and not only.names
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
