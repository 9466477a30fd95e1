"""Which trace a session and its turns belong to, and what goes on to the replica (pure).

Source: W3C Trace Context, level 1 (`traceparent`); OpenTelemetry's parent-based sampling.

Deviations: a session without a client's trace has one of its own, named after the session: so trace and span
ids need not be remembered to be known again. A client that traces its run gives the session its trace with
the first turn, and says whether it is sampled; a turn in that trace hangs below the client's own span, and
one in another trace is only linked to it. `tracestate` goes on as it came.

Invariants: a session is in one trace for good; what is no valid `traceparent` is as good as none; at most
`max_sessions` sessions and `MAX_TURNS` turns are remembered, the newest.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest, xxh3_64_hexdigest, xxh3_128_digest

from gateway.domain.ids import RequestId, SessionId
from gateway.wire.traceparent import Context, read_traceparent

MAX_TURNS: Final = 20_000


class Trace(NamedTuple):
    trace_id: bytes
    parent: bytes
    """The client's span above the session's; empty if the session is the root."""
    is_sampled: bool
    own: bytes
    beginning: str
    """Of the header lines that its turns send on."""


def span_id(name: str) -> bytes:
    return xxh3_64_digest(name.encode())


class TraceContexts:
    def __init__(self, share: float, *, max_sessions: int) -> None:
        """`share` of the sessions are sampled, unless the client decides; `max_sessions`: as many as the
        brain keeps."""
        self._max_sessions = max_sessions
        self._threshold = int(share * (1 << 64))
        self._sessions: OrderedDict[SessionId, Trace] = OrderedDict()
        self._turns: OrderedDict[RequestId, tuple[str, Context]] = OrderedDict()

    def arrived(self, turn: RequestId, traceparent: str) -> None:
        if not traceparent or (context := read_traceparent(traceparent)) is None:
            return
        self._turns[turn] = (traceparent, context)
        if len(self._turns) > MAX_TURNS:
            self._turns.popitem(last=False)

    def of_client(self, turn: RequestId) -> Context | None:
        parent = self._turns.get(turn)
        return parent[1] if parent is not None else None

    def of(self, session: SessionId, turn: RequestId | None = None) -> Trace:
        """`turn` is one of it; it matters if this is the session's first request."""
        return self._sessions.get(session) or self._begin(session, turn)

    def _begin(self, session: SessionId, turn: RequestId | None) -> Trace:
        client = self.of_client(turn) if turn is not None else None
        if client is None:
            trace_id = xxh3_128_digest(session.encode())
            client = Context(trace_id, b"", int.from_bytes(trace_id[8:], "big") < self._threshold)
        beginning = f"traceparent: 00-{client.trace_id.hex()}-"
        trace = self._sessions[session] = Trace(*client, span_id(f"session {session}"), beginning)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)
        return trace

    def forget(self, session: SessionId) -> None:
        self._sessions.pop(session, None)

    def header(self, turn: RequestId, session: SessionId | None) -> bytes:
        """The header line for the replica: the turn's span if it is sampled, else the client's value."""
        if session is not None:
            trace = self._sessions.get(session) or self._begin(session, turn)
            if trace.is_sampled:
                return f"{trace.beginning}{xxh3_64_hexdigest(turn.encode())}-01\r\n".encode()
        parent = self._turns.get(turn)
        return b"traceparent: %s\r\n" % parent[0].encode("latin-1") if parent is not None else b""
