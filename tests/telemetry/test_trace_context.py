"""Trace contexts: honoured, passed on, and made up where there is none."""

import pytest

from gateway.domain.ids import RequestId, SessionId
from gateway.telemetry.otel import trace_context as module
from gateway.telemetry.otel.trace_context import TraceContexts, span_id

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = f"00-{TRACE}-{SPAN}-01"
S, R = SessionId("s-1"), RequestId("r-1")


@pytest.mark.parametrize("value", ["", "x", CLIENT.upper()])
def test_what_is_no_context_is_none(value):
    contexts = TraceContexts(1.0, max_sessions=100)
    contexts.arrived(R, value)
    assert contexts.of_client(R) is None and contexts.header(R, None) == b""


def test_a_session_has_a_trace_of_its_own():
    one, again = TraceContexts(1.0, max_sessions=100).of(S), TraceContexts(1.0, max_sessions=100).of(S)
    assert one == again and len(one.trace_id) == 16 and one.parent == b"" and one.is_sampled
    assert TraceContexts(1.0, max_sessions=100).of(SessionId("s-2")).trace_id != one.trace_id
    header = TraceContexts(1.0, max_sessions=100).header(R, S)
    assert header == f"traceparent: 00-{one.trace_id.hex()}-{span_id(R).hex()}-01\r\n".encode()
    assert len(span_id(R)) == len(one.own) == 8 and span_id(R) != one.own == again.own


def test_a_session_takes_its_trace_from_its_first_turn():
    contexts = TraceContexts(0.0, max_sessions=100)
    contexts.arrived(R, CLIENT)
    trace = contexts.of(S, R)
    assert (trace.trace_id.hex(), trace.parent.hex(), trace.is_sampled) == (TRACE, SPAN, True)
    contexts.arrived(RequestId("r-2"), CLIENT.replace("0af7", "ffff"))
    assert contexts.of(S, RequestId("r-2")) == trace, "for good"
    assert contexts.header(RequestId("r-2"), S).startswith(b"traceparent: 00-" + TRACE.encode())
    contexts.forget(S)
    assert contexts.of(S, RequestId("r-2")).trace_id.hex().startswith("ffff")


def test_what_is_not_sampled_goes_on_as_it_came():
    contexts = TraceContexts(1.0, max_sessions=100)
    said = CLIENT[:-1] + "0"
    contexts.arrived(R, said)
    assert contexts.header(R, S) == b"traceparent: %s\r\n" % said.encode()
    assert contexts.header(R, None) == b"traceparent: %s\r\n" % said.encode(), "no turn"
    assert TraceContexts(0.0, max_sessions=100).header(R, S) == b""


def test_as_many_are_sampled_as_asked_for():
    contexts = TraceContexts(0.25, max_sessions=100)
    sampled = sum(contexts.of(SessionId(f"s-{number}")).is_sampled for number in range(4000))
    assert 850 < sampled < 1150


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_TURNS", 3)
    contexts = TraceContexts(1.0, max_sessions=3)
    for number in range(10):
        contexts.arrived(RequestId(f"r-{number}"), CLIENT)
        contexts.of(SessionId(f"s-{number}"))
    assert len(contexts._sessions) == len(contexts._turns) == 3
