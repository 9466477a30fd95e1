"""Spans: the tree of a session, with the times of the records."""

import random
from typing import Any

import msgspec
import pytest

from gateway.config.telemetry import OtelConfig
from gateway.core.commands import Refuse
from gateway.domain import records as rec
from gateway.domain.decision import Edge, RefusalReason, SessionSource
from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.domain.request import Protocol, Transcript, Usage
from gateway.telemetry.otel import spans as module
from gateway.telemetry.otel.contents import Contents
from gateway.telemetry.otel.otlp import CLIENT, SERVER
from gateway.telemetry.otel.spans import Spans
from gateway.telemetry.otel.trace_context import TraceContexts, span_id
from tests.core.playbook import (
    Playbook,
    arrived,
    cut,
    failed,
    finished,
    first_token,
    left,
    session_finished,
    started,
    stated,
)

ONE, TWO = SessionId("s-1"), SessionId("s-2")
TENANT = TenantId("t")
CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """A brain, and the spans that come of what it tells."""

    def __init__(
        self, share: float = 1.0, spans_per_s: float = 1e6, max_sessions: int = 1000, **settings
    ) -> None:
        self.play = Playbook(**settings)
        self.contexts = TraceContexts(share, max_sessions=max_sessions)
        self.spans = Spans(
            self.contexts, spans_per_s=spans_per_s, max_sessions=max_sessions, contents=Contents(OtelConfig())
        )
        self.seen: list[Any] = []

    def read(self):
        self.seen += self.spans.take(self.play.records, now=self.play.now)
        self.play.records.clear()
        return self.seen

    def turn(self, name: str, session: str, *calls: str, **facts) -> SessionId:
        play = self.play
        facts.setdefault("stream", True)
        play.arrives(name, explicit=stated(session), model="m", **facts)
        play.now += 1.0
        play >> started(name) >> first_token(name)
        play.now += 2.0
        play >> finished(name, *calls, usage=Usage(prompt_tokens=9, cached_tokens=4, output_tokens=2))
        return play.session.id

    def end(self, session: SessionId) -> None:
        self.play >> session_finished(session)


def of(spans, name):
    return [span for span in spans if span.name.startswith(name)]


def test_calls_that_are_recognised_late_ran_when_they_did():
    traced = Traced()
    session = traced.turn("r1", "one")
    traced.play.arrives("r2", explicit=stated("one"), model="m")
    calls = {"names": ("bash",), "duration_ms": 1500.0, "late_s": 4.0}
    late: dict[str, Any] = {"session": session, "turn": RequestId("r2"), **calls}
    traced.play.records.append(rec.ToolEnd(at_s=1009.0, **late))
    [tools] = of(traced.read(), "execute_tool bash")
    assert (tools.start_s, tools.end_s) == (1003.5, 1005.0)


def test_each_tool_has_a_span_and_says_which_call_it_is():
    traced = Traced()
    session = traced.turn("r1", "one")
    for name in ("r2", "r3"):
        traced.play.arrives(name, explicit=stated("one"), model="m")
    at_s = traced.play.now
    ends: dict[str, Any] = {"session": session, "turn": RequestId("r2"), "duration_ms": 2000.0}
    records = traced.play.records
    records.append(rec.ToolEnd(at_s=at_s, names=("bash", "grep", "bash"), calls=("c1", "", "c3"), **ends))
    records.append(rec.ToolEnd(at_s=at_s, names=("x",) * 1000, **{**ends, "turn": RequestId("r3")}))
    spans = of(traced.read(), "execute_tool")
    said = [(span.name, dict(span.attributes)["gen_ai.tool.call.id"]) for span in spans[:3]]
    assert said == [("execute_tool bash", "c1"), ("execute_tool grep", None), ("execute_tool bash", "c3")]
    assert all((span.start_s, span.end_s) == (at_s - 2, at_s) for span in spans)
    assert len({span.span_id for span in spans}) == len(spans) == 3 + module._MAX_TOOLS


def test_a_turn_says_what_its_answer_is_and_which_agent_asked():
    traced = Traced()
    facts: dict[str, Any] = {"explicit": stated("one"), "transcript": Transcript(agent_type=0xA9, tail=1)}
    traced.play.begins("r1", model="alias", **facts) >> first_token("r1")
    traced.play >> finished("r1", response_id="chatcmpl-1", model="qwen")
    spans = traced.read()
    [turn] = of(spans, "chat alias")
    said = dict(turn.attributes)
    assert (said["gen_ai.request.model"], said["gen_ai.response.model"]) == ("alias", "qwen")
    assert said["gen_ai.response.id"] == "chatcmpl-1" and said["gen_ai.agent.id"] == f"{0xA9:016x}"
    [root] = of(spans, "invoke_agent")
    assert dict(root.attributes)["gen_ai.agent.id"] == f"{0xA9:016x}"


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_stream_says_that_it_is_one_and_when_it_began(is_streamed):
    traced = Traced()
    traced.turn("r1", "one", stream=is_streamed)
    [chat] = of(traced.read(), "chat")
    said = dict(chat.attributes)
    assert said["gen_ai.request.stream"] is (True if is_streamed else None)
    assert said["gen_ai.response.time_to_first_chunk"] == (1.0 if is_streamed else None)


@pytest.mark.parametrize(("names", "problem"), [(("bash",), "_OTHER"), (("bash", "edit"), None)])
def test_a_single_call_says_that_it_failed(names, problem):
    traced = Traced()
    session = traced.turn("r1", "one")
    traced.play.arrives("r2", explicit=stated("one"), model="m")
    of_it: dict[str, Any] = {"session": session, "turn": RequestId("r2"), "names": names}
    traced.play.records.append(rec.ToolEnd(at_s=1009.0, duration_ms=1.0, has_failed=True, **of_it))
    tools = of(traced.read(), "execute_tool")
    assert [(dict(each.attributes)["error.type"], each.error or None) for each in tools] == [
        (problem, problem) for _ in names
    ]


@pytest.mark.parametrize(
    ("fields", "problem"), [({"failure": "error"}, "error"), ({"status": 500}, "500"), ({}, None)]
)
def test_a_turn_says_what_went_wrong(fields, problem):
    traced = Traced()
    traced.play.begins("r1", explicit=stated("one"), model="m") >> finished("r1", **fields)
    [chat] = of(traced.read(), "chat")
    assert (dict(chat.attributes)["error.type"], chat.error or None) == (problem, problem)


def test_the_tree_of_a_session():
    traced = Traced()
    session = traced.turn("r1", "one", "c1")
    traced.play.now += 5.0
    traced.turn("r2", "one", tool_result_ids=("c1",))
    traced.play.now += 1.0
    traced.end(session)
    spans = traced.read()
    [root] = of(spans, "invoke_agent")
    assert (root.parent, root.start_s, root.end_s) == (b"", 1000.0, 1000.0)
    assert spans[0] is root, "a trace has a root while it grows"
    [end] = of(spans, "session")
    assert (end.parent, end.start_s, end.end_s) == (root.span_id, 1000.0, 1012.0)
    assert dict(end.attributes)["turnpike.session.turns"] == 2
    assert root.span_id == traced.contexts.of(session).own
    one, two = of(spans, "chat m")
    assert (one.start_s, one.end_s, two.start_s, two.end_s) == (1000.0, 1003.0, 1008.0, 1011.0)
    assert one.parent == two.parent == root.span_id and one.kind == CLIENT and not one.error
    said = dict(one.attributes)
    assert said["gen_ai.usage.input_tokens"] == 9 and said["gen_ai.usage.cache_read.input_tokens"] == 4
    assert said["gen_ai.conversation.id"] == session and said["turnpike.replica"] == "a"
    assert said["http.response.status_code"] == 200 and "error.type" not in {k for k, v in said.items() if v}
    [tools] = of(spans, "execute_tool bash")
    assert (tools.start_s, tools.end_s, tools.parent) == (1003.0, 1008.0, root.span_id)
    assert dict(tools.attributes)["gen_ai.tool.call.id"].startswith("call_")
    below = [(span.name, span.start_s, span.end_s) for span in spans if span.parent == one.span_id]
    assert below == [("prefill", 1000.0, 1001.0), ("decode", 1001.0, 1003.0)]
    assert len({span.trace_id for span in spans}) == 1 and len({span.span_id for span in spans}) == len(spans)


def test_a_turn_that_waited_and_one_that_left_and_one_that_was_refused():
    traced = Traced(max_running_per_replica=1, max_waiting=1)
    play = traced.play
    play.arrives("r1", explicit=stated("one"))
    play >> arrived("r2", explicit=stated("two"))
    play.arrives("r3", explicit=stated("three"))
    play.now += 4.0
    play >> left("r2")
    play >> started("r1") >> cut("r1")
    spans = traced.read()
    waited, refused, broken = (
        next(span for span in spans if span.span_id == span_id(name)) for name in ("r2", "r3", "r1")
    )
    [queue] = of(spans, "queue")
    assert (queue.start_s, queue.end_s, queue.parent) == (1000.0, 1004.0, waited.span_id)
    assert dict(queue.attributes) == {"turnpike.wait.reason": "concurrency_full"}
    assert (waited.error, refused.error, broken.error) == ("client_left", "queue_full", "cut")


def test_every_attempt_is_shown():
    traced = Traced(replicas="a b")
    play = traced.play
    play.arrives("r1", explicit=stated("one"), stream=True)
    play.now += 1.0
    play >> failed("r1")
    play.take()
    play.now += 1.0
    play >> started("r1") >> first_token("r1") >> finished("r1")
    spans = traced.read()
    parts = [(span.name, span.start_s, span.end_s, span.error) for span in spans[1:-1]]
    assert parts == [
        ("prefill", 1000.0, 1001.0, "failed"),
        ("prefill", 1001.0, 1002.0, ""),
        ("decode", 1002.0, 1002.0, ""),
    ]
    assert spans[-1].span_id == span_id("r1") and not spans[-1].error


def test_where_nothing_is_streamed_the_end_of_the_prompt_is_not_made_up():
    traced = Traced()
    traced.turn("r1", "one", stream=False)
    [turn] = of(traced.read(), "chat")
    [generating] = of(traced.seen, "generate")
    assert (generating.start_s, generating.end_s) == (1000.0, 1003.0) and turn.end_s == 1003.0
    assert not of(traced.seen, "prefill") and not of(traced.seen, "decode")


def test_a_client_that_traces_itself_has_its_turns_below_its_own_spans():
    traced = Traced()
    traced.contexts.arrived(RequestId("r1"), CLIENTS)
    traced.contexts.arrived(RequestId("r2"), CLIENTS.replace("b7ad", "beef"))
    traced.contexts.arrived(RequestId("r3"), CLIENTS.replace("0af7", "ffff"))
    for name in ("r1", "r2", "r3"):
        traced.turn(name, "one")
    traced.end(traced.play.session.id)
    spans = traced.read()
    assert {span.trace_id.hex() for span in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    [root] = of(spans, "invoke_agent")
    assert root.parent.hex() == "b7ad6b7169203331"
    one, two, three = of(spans, "chat")
    assert one.parent.hex() == "b7ad6b7169203331" and two.parent.hex() == "beef6b7169203331"
    assert one.links == [(root.trace_id, root.span_id)] and one.kind == SERVER
    assert three.parent == root.span_id and three.links[0][0].hex().startswith("ffff")


def test_sub_agents_are_linked():
    records: list[rec.Record] = []
    for number, (edge, parent) in enumerate(
        ((Edge.OPENS, None), (Edge.SPAWNED, "r0"), (Edge.CONTINUES, "r1"))
    ):
        turn = RequestId(f"r{number}")
        records.append(
            rec.TurnArrived(
                at_s=1.0, turn=turn, session=ONE, tenant=TENANT, protocol=Protocol.MESSAGES, model=None,
                source=SessionSource.CALL_ID, confidence=1.0, body_bytes=1, message_count=1, tool_count=0,
                edge=edge, parent=RequestId(parent) if parent else None,
            )
        )  # fmt: skip
        records.append(
            rec.Refused(
                at_s=2.0, turn=turn, session=ONE, tenant=TENANT, reason=RefusalReason.QUEUE_FULL,
                waited_ms=0.0,
            )
        )  # fmt: skip
    child = rec.SessionStarted(
        at_s=1.0, session=TWO, tenant=TENANT, source=SessionSource.NEW, confidence=1.0, schema=None,
        parent=ONE,
    )  # fmt: skip
    contexts = TraceContexts(1.0, max_sessions=9)
    spans = Spans(contexts, spans_per_s=1e6, max_sessions=9, contents=Contents(OtelConfig()))
    out = spans.take(records, now=1.0)
    assert [span.links for span in out] == [[], [(contexts.of(ONE).trace_id, span_id("r0"))], []]
    [root] = spans.take([child, msgspec.structs.replace(records[0], session=TWO)], now=1.0)
    assert root.span_id == contexts.of(TWO).own
    assert root.links == [(contexts.of(ONE).trace_id, contexts.of(ONE).own)]


def test_nothing_of_a_session_that_is_not_sampled():
    traced = Traced(share=0.0)
    session = traced.turn("r1", "one", "c1")
    traced.turn("r2", "one", tool_result_ids=("c1",))
    traced.end(session)
    assert traced.read() == [] and traced.spans.end_all() == [] and not traced.spans.left_out


def test_what_would_be_too_many_is_left_out_and_said():
    traced = Traced(spans_per_s=2.0)
    for number in range(40):
        traced.turn(f"r{number}", "one")
        traced.read()
        traced.play.now -= 3.0  # no time passes
    assert 0 < len(of(traced.seen, "chat")) <= 5 and traced.spans.left_out >= 35
    left_out = traced.turn("other", "two")
    traced.end(left_out)
    assert len(of(traced.read(), "invoke_agent")) == 1, "nothing of the other one was traced"
    traced.play.now += 100.0
    session = traced.turn("later", "one")
    traced.end(session)
    spans = traced.read()
    assert spans[-2].span_id == span_id("later") or span_id("later") in {span.span_id for span in spans}
    [root] = of(spans, "invoke_agent")
    [end] = of(spans, "session")
    assert end.parent == root.span_id
    assert dict(end.attributes)["turnpike.session.turns_left_out"] == traced.spans.left_out - 1
    assert dict(end.attributes)["turnpike.session.turns"] == 41


def test_the_end_of_the_gateway_ends_everything():
    traced = Traced()
    traced.turn("r1", "one")
    traced.play.arrives("r2", explicit=stated("two"), stream=True)
    traced.read()
    spans = traced.spans.end_all()
    assert {span.name for span in spans} == {"chat", "prefill", "session"} and len(spans) == 4
    assert all(span.end_s >= span.start_s for span in spans) and traced.spans.end_all() == []


def test_what_is_open_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_OPEN", 5)
    traced = Traced(max_sessions=7)
    for number in range(20):
        traced.play.arrives(f"r{number}", explicit=stated(f"s{number}"))
    spans = traced.read()
    assert (len(traced.spans._turns), len(traced.spans._sessions)) == (5, 7)
    assert len(of(spans, "invoke_agent")) == 20 and len(of(spans, "chat")) == 15
    assert len(of(spans, "session")) == 13


def test_a_live_session_is_not_ended_and_one_that_comes_back_has_no_second_root():
    traced = Traced(max_sessions=2)
    traced.play.arrives("live", explicit=stated("live"))
    back = traced.turn("r1", "back")
    for number in range(5):
        traced.turn(f"o{number}", f"other-{number}")
    spans = traced.read()
    ended = {dict(span.attributes)["gen_ai.conversation.id"] for span in of(spans, "session")}
    assert traced.spans._turns.keys() == {"live"}
    session = traced.spans._turns[RequestId("live")].arrived.session
    assert session not in ended and back in ended
    traced.turn("r2", "back")
    spans = traced.read()
    roots = [span.span_id for span in of(spans, "invoke_agent")]
    assert len(roots) == len(set(roots)) == 7
    [late] = [span for span in spans if span.span_id == span_id("r2")]
    assert late.parent == traced.contexts.of(back).own and late.parent in roots


@pytest.mark.parametrize("seed", range(10))
def test_every_parent_is_there(seed):
    rng = random.Random(seed)
    traced = Traced(replicas="a b", max_running_per_replica=3, max_waiting=4)
    play = traced.play
    live: dict[str, str] = {}

    def tell(event) -> None:
        play >> event
        while play.decisions:
            if isinstance(decision := play.take(), Refuse):
                live.pop(decision.request, None)

    for number in range(150):
        play.now += rng.random()
        name = f"r{number}"
        if rng.random() < 0.5 or not live:
            live[name] = "new"
            tell(arrived(name, explicit=stated(f"s{rng.randrange(8)}")))
            continue
        name = rng.choice(list(live))
        if name in play.brain.waiting_room.turns:
            tell(left(name))
            del live[name]
        elif live[name] == "new":
            tell(started(name))
            tell(first_token(name))
            live[name] = "answering"
        else:
            tell(rng.choice((finished, cut, left))(name))
            del live[name]
        if rng.random() < 0.1:
            traced.read()
    spans = traced.read() + traced.spans.end_all()
    known = {(span.trace_id, span.span_id) for span in spans}
    assert len(known) == len(spans), "each once"
    assert all(not span.parent or (span.trace_id, span.parent) in known for span in spans)
    assert not traced.spans._turns and not traced.spans._sessions
