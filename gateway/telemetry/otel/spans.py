"""From records to spans: one trace per session (pure).

A session's root goes out with its first traced turn, and has no duration: so a trace has a root while it
grows. Below it are its turns, each with the time in the queue, the prefill and the decoding of every attempt;
afterwards, from the stream, a span for each tool, as long as all tools of its answer took; and at the end
`session`, with its duration and outcome. A session that runs for
another one, and a conversation that another one started, are linked to what they came from.

Source: OpenTelemetry's semantic conventions for generative AI (`chat`, `invoke_agent`, `execute_tool`).

Deviations: attributes that are ours are called `turnpike.…`. No text of a client's is in a span, but for the
names of models and tools, and the contents of turns if the operator wants them (`contents.py`).

Invariants: every span's parent is a span of ours or of the client's; a session has one root; a span's times
are those of the records; at most `MAX_OPEN` turns are open, the oldest are ended for want of room, and at
most `max_sessions` sessions besides those with an open turn, the longest silent are ended; on average at most
`spans_per_s` spans are made: what would make more is left out turn by turn, and counted; so are sessions of
which every turn was.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from gateway.domain import records as rec
from gateway.domain.allowance import Allowance
from gateway.domain.decision import Edge
from gateway.domain.ids import RequestId, SessionId
from gateway.domain.request import Protocol, Usage
from gateway.telemetry.otel.contents import Content, Contents
from gateway.telemetry.otel.otlp import CLIENT, INTERNAL, SERVER, Span
from gateway.telemetry.otel.trace_context import Trace, TraceContexts, span_id

MAX_OPEN: Final = 20_000
_BURST_S: Final = 2.0
_MAX_TEXT: Final = 256
# Of one answer that have a span each; more would show nothing else, since all begin and end together.
_MAX_TOOLS: Final = 32


class _Attempt(msgspec.Struct):
    submitted: rec.GpuSubmit
    first_token_s: float | None = None
    end: rec.GpuEnd | None = None


class _Turn(msgspec.Struct):
    arrived: rec.TurnArrived
    session: SessionId
    trace: Trace
    wait_reason: str | None = None
    routed: rec.Routed | None = None
    routed_first_s: float | None = None
    attempts: list[_Attempt] = []


class _Session(msgspec.Struct):
    trace: Trace
    started: rec.SessionStarted | None
    """Until its root is sent; None also where none must be: what is not known any more had one."""
    started_s: float
    seen_s: float
    turns: int = 0
    open_turns: int = 0
    left_out: int = 0
    """Turns that are not traced, for want of room."""


class Spans:
    def __init__(
        self, contexts: TraceContexts, *, spans_per_s: float, max_sessions: int, contents: Contents
    ) -> None:
        """`max_sessions`: as many as the brain keeps, so that none ends here before it does there;
        `contents`: of turns, for their spans."""
        self._contexts = contexts
        self._contents = contents
        self._max_sessions = max_sessions
        self._allowance = Allowance(per_s=spans_per_s, burst=_BURST_S * spans_per_s)
        self._turns: OrderedDict[RequestId, _Turn] = OrderedDict()
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()
        self._out: list[Span] = []
        self.left_out = 0
        self._takes: dict[type, Callable[[Any], None]] = {
            rec.SessionStarted: self._session_started,
            rec.SessionEnded: self._session_ended,
            rec.TurnArrived: self._arrived,
            rec.ToolStart: self._tools_started,
        }
        # Of turns that are open, and no others: most of a busy gateway's turns are left out.
        self._takes_of_turn: dict[type, Callable[[_Turn, Any], None]] = {
            rec.TurnWaited: self._waited,
            rec.Routed: self._routed,
            rec.GpuSubmit: lambda turn, record: turn.attempts.append(_Attempt(record)),
            rec.GpuFirstToken: self._first_token,
            rec.GpuEnd: self._ended,
            rec.Refused: lambda _, record: self._finish(record.turn, record.at_s, record.reason.value),
            rec.TurnLeft: lambda _, record: self._finish(record.turn, record.at_s, "client_left"),
            rec.ToolEnd: self._tools_ended,
        }

    def take(self, records: Iterable[rec.Record], *, now: float) -> list[Span]:
        self._allowance.take(0.0, now=now)
        takes, takes_of_turn, turns = self._takes, self._takes_of_turn, self._turns
        record: Any
        for record in records:
            kind = type(record)
            take = takes.get(kind)
            if take is not None:
                take(record)
            elif turns and kind in takes_of_turn and (turn := turns.get(record.turn)) is not None:
                takes_of_turn[kind](turn, record)
        return self._flush()

    def end_all(self) -> list[Span]:
        for turn in list(self._turns.values()):
            self._finish(turn.arrived.turn, self._seen_s(turn), "shutdown")
        for name in list(self._sessions):
            self._end_session(name, self._sessions[name].seen_s, "shutdown")
        return self._flush()

    def _seen_s(self, turn: _Turn) -> float:
        session = self._sessions.get(turn.session)
        return max(turn.arrived.at_s, session.seen_s if session is not None else 0.0)

    def _flush(self) -> list[Span]:
        out, self._out = self._out, []
        self._allowance.left -= len(out)
        return out

    # --- sessions ------------------------------------------------------------------------------------

    def _session_started(self, record: rec.SessionStarted) -> None:
        empty = Trace(b"", b"", False, b"", "")
        self._open(record.session, _Session(empty, record, record.at_s, record.at_s))

    def _open(self, name: SessionId, session: _Session) -> None:
        self._sessions[name] = session
        for _ in range(len(self._sessions)):
            if len(self._sessions) <= self._max_sessions:
                break
            oldest = next(iter(self._sessions))
            if self._sessions[oldest].open_turns:
                self._sessions.move_to_end(oldest)
            else:
                self._end_session(oldest, self._sessions[oldest].seen_s, "evicted")

    def _session_ended(self, record: rec.SessionEnded) -> None:
        self._end_session(record.session, record.at_s, record.reason)
        self._contexts.forget(record.session)

    def _root(self, started: rec.SessionStarted, trace: Trace, agent: str) -> Span:
        links = []
        if started.parent is not None:
            parent = self._contexts.of(started.parent)
            links.append((parent.trace_id, parent.own))
        return Span(
            trace.trace_id, trace.own, trace.parent, "invoke_agent", INTERNAL, started.at_s, started.at_s,
            (
                ("gen_ai.operation.name", "invoke_agent"),
                ("gen_ai.conversation.id", started.session),
                ("gen_ai.agent.id", agent or None),
                ("turnpike.tenant", started.tenant),
                ("turnpike.session.source", started.source.value),
            ),
            links,
        )  # fmt: skip

    def _end_session(self, name: SessionId, end_s: float, reason: str) -> None:
        session = self._sessions.pop(name, None)
        if session is None or not session.trace.is_sampled:
            return
        if session.turns and session.left_out == session.turns:
            return  # there is nothing of it
        if reason == "idle":
            end_s = session.seen_s  # it was silent since
        start_s = session.started_s
        self._part(
            session.trace.trace_id, session.trace.own, f"session end {name}", "session",
            start_s, max(end_s, start_s),
            (
                ("gen_ai.conversation.id", name),
                ("turnpike.session.turns", session.turns),
                ("turnpike.session.turns_left_out", session.left_out or None),
                ("turnpike.session.end", reason),
            ),
        )  # fmt: skip

    # --- turns ---------------------------------------------------------------------------------------

    def _arrived(self, record: rec.TurnArrived) -> None:
        if record.session is None:
            return
        session = self._sessions.get(record.session)
        if session is None:  # it was silent for so long that it was ended here
            trace = self._contexts.of(record.session, record.turn)
            session = _Session(trace, None, record.at_s, record.at_s)
            self._open(record.session, session)
        elif not session.turns:
            session.trace = self._contexts.of(record.session, record.turn)
        self._sessions.move_to_end(record.session)
        session.seen_s = record.at_s
        session.turns += 1
        if not session.trace.is_sampled:
            return
        if self._allowance.left <= len(self._out):
            session.left_out += 1
            self.left_out += 1
            return
        if session.started is not None:
            self._out.append(self._root(session.started, session.trace, record.agent))
            session.started = None
        self._turns[record.turn] = _Turn(record, record.session, session.trace)
        session.open_turns += 1
        if len(self._turns) > MAX_OPEN:
            self._finish(next(iter(self._turns)), record.at_s, "lost")

    def _tools_started(self, record: rec.ToolStart) -> None:
        if (session := self._sessions.get(record.session)) is not None:
            session.seen_s = record.at_s

    def _waited(self, turn: _Turn, record: rec.TurnWaited) -> None:
        turn.wait_reason = record.reason.value

    def _routed(self, turn: _Turn, record: rec.Routed) -> None:
        turn.routed = record
        if turn.routed_first_s is None:
            turn.routed_first_s = record.at_s

    def _first_token(self, turn: _Turn, record: rec.GpuFirstToken) -> None:
        if turn.attempts:
            turn.attempts[-1].first_token_s = record.at_s

    def _ended(self, turn: _Turn, record: rec.GpuEnd) -> None:
        if turn.attempts:
            turn.attempts[-1].end = record
        if record.outcome != "failed":  # else it goes elsewhere, or is refused
            self._finish(record.turn, record.at_s, record.outcome)

    def _tools_ended(self, turn: _Turn, record: rec.ToolEnd) -> None:
        session = self._sessions.get(record.session)
        if session is None or not session.trace.is_sampled:
            return
        start_s = record.at_s - record.late_s - record.duration_ms / 1e3
        calls = record.calls or ("",) * len(record.names)
        # Of several, it is unknown which one. `_OTHER` is the conventions' word where no more is known.
        problem = "_OTHER" if record.has_failed and len(record.names) == 1 else ""
        for number, (name, call) in enumerate(zip(record.names[:_MAX_TOOLS], calls, strict=False)):
            self._part(
                session.trace.trace_id, session.trace.own, f"tool {record.turn} {number}",
                f"execute_tool {name[:_MAX_TEXT]}", start_s, record.at_s - record.late_s,
                (
                    ("gen_ai.operation.name", "execute_tool"),
                    ("gen_ai.tool.name", name[:_MAX_TEXT]),
                    ("gen_ai.tool.call.id", call[:_MAX_TEXT] or None),
                    ("gen_ai.tool.type", "function"),
                    ("turnpike.synthetic", True),
                    ("gen_ai.conversation.id", record.session),
                    ("error.type", problem or None),
                ),
                problem,
            )  # fmt: skip

    def _finish(self, name: RequestId, end_s: float, outcome: str) -> None:
        turn = self._turns.pop(name)
        if (session := self._sessions.get(turn.session)) is not None:
            session.seen_s = max(session.seen_s, end_s)
            session.open_turns -= 1
        trace_id, own = turn.trace.trace_id, span_id(name)
        queued_to_s = turn.routed_first_s if turn.routed_first_s is not None else end_s
        if turn.wait_reason is not None:
            attributes = (("turnpike.wait.reason", turn.wait_reason),)
            self._part(trace_id, own, f"queue {name}", "queue", turn.arrived.at_s, queued_to_s, attributes)
        for number, attempt in enumerate(turn.attempts, 1):
            self._attempt(own, turn, number, attempt, end_s)
        end = turn.attempts[-1].end if turn.attempts else None
        content = self._contents.ended(name, (end and end.finish_reason) or outcome)
        self._out.append(_turn_span(turn, own, end_s, outcome, self._contexts, content))

    def _attempt(self, own: bytes, turn: _Turn, number: int, attempt: _Attempt, end_s: float) -> None:
        submitted, end, first_s = attempt.submitted, attempt.end, attempt.first_token_s
        begin_s, ended_s = submitted.at_s, end.at_s if end is not None else end_s
        there = (("turnpike.replica", submitted.replica), ("turnpike.attempt", submitted.attempt))
        error = end.outcome if end is not None and end.outcome in ("failed", "cut") else ""
        parts = [("prefill", begin_s, ended_s, error)]
        if not turn.arrived.is_streamed:  # where the prompt ends and the answer begins cannot be seen
            parts = [("generate", begin_s, ended_s, error)]
        elif first_s is not None:
            parts = [("prefill", begin_s, first_s, ""), ("decode", first_s, ended_s, error)]
        for part, start_s, until_s, why in parts:
            identity = f"{part} {turn.arrived.turn} {number}"
            self._part(turn.trace.trace_id, own, identity, part, start_s, until_s, there, why)

    def _part(
        self, trace_id: bytes, parent: bytes, identity: str, name: str, start_s: float, end_s: float,
        attributes: tuple[tuple[str, str | int | bool | None], ...], error: str = "",
    ) -> None:  # fmt: skip
        self._out.append(
            Span(trace_id, span_id(identity), parent, name, INTERNAL, start_s, end_s, attributes, (), error)
        )


def _problem(outcome: str, end: rec.GpuEnd | None) -> str:
    """`error.type`: a status, `cut`, `client_left`, `error` (reported in an answer that began well),
    `truncated`, `empty`, why it was refused; empty if all is well."""
    if outcome != "finished" or end is None:
        return outcome
    return f"{end.status}" if (end.status or 0) >= 400 else end.failure


def _turn_span(
    turn: _Turn, own: bytes, end_s: float, outcome: str, contexts: TraceContexts, content: Content | None
) -> Span:
    arrived, routed = turn.arrived, turn.routed
    newest = turn.attempts[-1] if turn.attempts else None
    end = newest.end if newest is not None else None
    first_s = newest.first_token_s if newest is not None and arrived.is_streamed else None
    client = contexts.of_client(arrived.turn)
    parent, links = turn.trace.own, []
    if client is not None and client.trace_id == turn.trace.trace_id:
        links.append((turn.trace.trace_id, parent))
        parent = client.span_id
    elif client is not None:
        links.append((client.trace_id, client.span_id))
    if arrived.edge in (Edge.SPAWNED, Edge.FORKS) and arrived.parent is not None:
        links.append((turn.trace.trace_id, span_id(arrived.parent)))
    operation = "text_completion" if arrived.protocol is Protocol.COMPLETIONS else "chat"
    # Whose format it is: the conventions know no name for engines of one's own.
    provider = "anthropic" if arrived.protocol is Protocol.MESSAGES else "openai"
    model = arrived.model[:_MAX_TEXT] if arrived.model is not None else None
    usage = end.usage if end is not None else Usage()
    problem = _problem(outcome, end)
    # `value` of an enumeration is a call of four functions.
    return Span(
        turn.trace.trace_id, own, parent, f"{operation} {model}" if model else operation,
        SERVER if client is not None else CLIENT, arrived.at_s, end_s,
        (
            ("gen_ai.operation.name", operation),
            ("gen_ai.provider.name", provider),
            ("gen_ai.request.model", model),
            ("gen_ai.conversation.id", arrived.session),
            ("gen_ai.usage.input_tokens", usage.prompt_tokens),
            ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
            ("gen_ai.usage.output_tokens", usage.output_tokens),
            ("gen_ai.request.stream", arrived.is_streamed or None),
            ("gen_ai.response.time_to_first_chunk", first_s - arrived.at_s if first_s is not None else None),
            ("gen_ai.response.id", end.response_id if end is not None else None),
            ("gen_ai.response.model", end.response_model if end is not None else None),
            ("gen_ai.agent.id", arrived.agent or None),
            ("gen_ai.response.finish_reasons",
             (end.finish_reason[:_MAX_TEXT],) if end is not None and end.finish_reason else None),
            ("http.response.status_code", end.status if end is not None else None),
            ("error.type", problem or None),
            ("turnpike.request", arrived.turn),
            ("turnpike.thread", arrived.thread),
            ("turnpike.edge", arrived.edge._value_),
            ("turnpike.source", arrived.source._value_),
            ("turnpike.confidence", arrived.confidence),
            ("turnpike.replica", routed.replica if routed is not None else None),
            ("turnpike.placement.reason", routed.reason._value_ if routed is not None else None),
            ("turnpike.queue_ms", routed.waited_ms if routed is not None else None),
        ),
        links, problem, content,
    )  # fmt: skip
