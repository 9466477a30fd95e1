"""The simulator's driver of the brain: events in, commands out, one timer.

Twin of `gateway/server/proxy/driver.py`. Where that one sends bytes to a replica, this one hands a turn to a
simulated engine; where that one answers with a refusal, this one plays the client that gets it: it asks
again when it was told to, as SDKs do, and gives up after so many times.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from gateway.core import events as ev
from gateway.core.commands import (
    Cancel,
    Command,
    Dispatch,
    Prefill,
    Publish,
    Refuse,
    RemotePrefill,
    SendHint,
    Spend,
    StopPrefill,
)
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.records import Record
from gateway.domain.request import Answer, RequestFacts, ToolCall, Usage
from lab.simulator.brain import Brain
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Alarm, Kernel
from lab.simulator.legs import Legs
from lab.simulator.patience import retry_after_s
from lab.workload.trace.format import Session, TurnRef


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_retries: Annotated[int, Meta(ge=0)] = 10
    """Times a refused turn is asked again. SDKs stop at 2 unless told otherwise, coding agents at 10."""
    says_when_over: bool = True
    """Whether the gateway is told that a session is over; few real clients do."""
    dispatches_early: bool = False
    """A tool starts when its call is complete, not when the answer is."""


class NextPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What will be sent when a call's tools have ended, as far as it is known while they run."""

    ref: TurnRef
    tokens: int
    agent: int
    """As `Transcript.agent`."""
    keys: Callable[[], Sequence[bytes]]
    """Of the full blocks of the whole prompt."""


class Call(msgspec.Struct, kw_only=True, eq=False):
    """One LLM call of an agent, while it lives."""

    session: Session
    ref: TurnRef
    tenant: TenantId
    facts: RequestFacts
    keys: Callable[[], list[bytes]]
    """Of the blocks of prompt and output; asked when an engine gets the turn."""
    tool_calls: tuple[ToolCall, ...]
    """That its answer will carry."""
    caller: "Caller"
    marks: tuple[int, ...] = ()
    """Output tokens behind which calls are complete that are made at once."""
    next_prompt: NextPrompt | None = None
    """None if nothing follows."""
    nobodys_keys: Callable[[int], Sequence[bytes]] | None = None
    """Of so many tokens that stand nowhere."""
    arrived_s: float = 0.0
    dispatched_s: float = 0.0
    began_s: float = 0.0
    first_token_s: float = 0.0
    replica: ReplicaId = ReplicaId("")
    known_as: SessionId | None = None
    """What the gateway takes its session for."""
    thread: ThreadId | None = None
    """And the conversation in it."""
    refusals: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class Caller(Protocol):
    """Who made a call."""

    def answered(self, call: Call) -> None: ...

    def reached(self, call: Call, tokens: int) -> None:
        """One of the call's marks."""
        ...

    def gave_up(self, call: Call) -> None: ...


class Engine(Protocol):
    def submit(self, turn: EngineTurn) -> None: ...

    def abort(self, number: int) -> None: ...

    def hint(self, text: str) -> None: ...


class Driver:
    """Also the engines' `TurnListener`."""

    def __init__(
        self,
        brain: Brain,
        *,
        kernel: Kernel,
        client: ClientConfig,
        on_record: Callable[[Record], None] | None,
    ) -> None:
        self.brain = brain
        self.engines: Mapping[ReplicaId, Engine] = {}
        """To be set before the first call."""
        self.refusals = 0
        self._kernel = kernel
        self._client = client
        self._on_record = on_record
        self._requests = 0
        self._calls: dict[RequestId, Call] = {}
        self._running: dict[int, RequestId] = {}
        """By the number of the engine's turn."""
        self._turns = 0
        self._paused: dict[SessionId, dict[ThreadId, tuple[EngineTurn, Call]]] = {}
        """The last turns of conversations whose tools run."""
        self._prefills: dict[int, tuple[RequestId, ReplicaId]] = {}
        """Of whose prompt and where, by the number of the engine's turn."""
        self.legs = Legs(kernel=kernel, send=self.send)
        self._timer: Alarm | None = None

    def __len__(self) -> int:
        """Calls that live in the brain."""
        return len(self._calls)

    # --- the agents' side --------------------------------------------------------------------------

    def call(self, call: Call) -> None:
        """The agent asks; the call's caller is told how it ended."""
        call.arrived_s = self._kernel.now
        self._ask(call)

    def send(self, event: ev.Event) -> None:
        for command in self.brain.handle(event, now=self._kernel.now):
            self._carry_out(command)
        self._rearm()

    def _ask(self, call: Call) -> None:
        self._requests += 1
        request = RequestId(f"r-{self._requests:x}")
        self._calls[request] = call
        self.send(ev.RequestArrived(request, call.tenant, call.facts))

    def _refused(self, call: Call, command: Refuse) -> None:
        if command.session is not None:
            call.known_as = command.session.session
        self.refusals += 1
        call.refusals += 1
        if call.refusals > self._client.max_retries:
            # Not at once: whoever hears of it may call again, and the brain is still being listened to.
            self._kernel.after(0.0, call.caller.gave_up, call)
            return
        call.facts = msgspec.structs.replace(call.facts, attempt=call.refusals)
        self._kernel.after(retry_after_s(call.refusals, command.refusal.retry_after_s), self._ask, call)

    # --- the engines' side -------------------------------------------------------------------------

    def first_token(self, turn: EngineTurn) -> None:
        if turn.number in self._prefills or turn.number in self.legs:
            return
        request = self._running[turn.number]
        call = self._calls[request]
        assert turn.began_s is not None
        call.began_s, call.first_token_s = turn.began_s, self._kernel.now
        self.send(ev.ResponseStarted(request, 200))
        self.send(ev.FirstTokenSeen(request))

    def reached(self, turn: EngineTurn, tokens: int) -> None:
        call = self._calls[self._running[turn.number]]
        call.caller.reached(call, tokens)

    def finished(self, turn: EngineTurn, *, cached_tokens: int, preemptions: int) -> None:
        if turn.number in self._prefills:
            usage = Usage(prompt_tokens=turn.input_tokens, cached_tokens=cached_tokens, output_tokens=1)
            of, _ = self._prefills.pop(turn.number)
            self.send(ev.PrefillEnded(of, usage))
            return
        if turn.number in self.legs:
            self.legs.finished(turn, cached_tokens=cached_tokens)
            return
        request = self._running.pop(turn.number)
        call = self._calls.pop(request)
        call.cached_tokens, call.preemptions = cached_tokens, preemptions
        for tool_call in call.tool_calls:
            self.send(ev.ToolCallSeen(request, tool_call))
        answer = Answer(
            status=200,
            tool_calls=call.tool_calls,
            usage=Usage(
                prompt_tokens=turn.turn.input_tokens,
                cached_tokens=cached_tokens,
                output_tokens=turn.turn.output_tokens,
            ),
            finish_reason="tool_calls" if call.tool_calls else "stop",
            has_terminal=True,
        )
        if call.tool_calls and call.known_as is not None and call.thread is not None:
            self._paused.setdefault(call.known_as, {})[call.thread] = turn, call
        self.send(ev.ResponseFinished(request, answer))
        call.caller.answered(call)

    # --- the brain's side --------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Dispatch):
            self._dispatch(command)
        elif isinstance(command, Refuse):
            self.legs.let_go(command.request)
            self._refused(self._calls.pop(command.request), command)
        elif isinstance(command, SendHint):
            self.engines[command.replica].hint(command.hint)
        elif isinstance(command, Prefill):
            self._prefill(command)
        elif isinstance(command, StopPrefill):
            self._kernel.after(0.0, self._stop_prefill, command.turn)
        elif isinstance(command, RemotePrefill):
            self._begin_leg(command)
        elif self._on_record is not None and not isinstance(command, Publish | Spend | Cancel):
            self._on_record(command)

    def _dispatch(self, command: Dispatch) -> None:
        call = self._calls[command.request]
        call.replica = command.placement.replica
        call.dispatched_s = self._kernel.now
        if command.session is not None:
            call.known_as = command.session.session
            call.thread = command.session.thread
            self._paused.get(call.known_as, {}).pop(call.thread, None)
        self._turns += 1
        self._running[self._turns] = command.request
        turn = EngineTurn(
            number=self._turns,
            session=call.session,
            ref=call.ref,
            keys=call.keys(),
            submitted_s=self._kernel.now,
            hint=command.hint,
            marks=call.marks,
            source=self.legs.source_of(command),
        )
        self.engines[call.replica].submit(turn)

    def _begin_leg(self, command: RemotePrefill) -> None:
        call = self._calls[command.request]
        self._turns += 1
        turn = EngineTurn(
            number=self._turns,
            session=call.session,
            ref=call.ref,
            keys=call.keys(),
            submitted_s=self._kernel.now,
            is_prefill=True,
            hands_over=True,
        )
        if self.legs.begin(command, turn, self.engines[command.replica]):
            self.engines[command.replica].submit(turn)

    def _prefill(self, command: Prefill) -> None:
        paused = self._paused.get(command.session, {}).get(command.thread)
        if paused is None:  # it is over, and did not say so
            self._kernel.after(0.0, self.send, ev.PrefillEnded(command.turn, None))
            return
        last, call = paused
        self._turns += 1
        self._prefills[self._turns] = (command.turn, command.replica)
        turn = msgspec.structs.replace(
            last,
            number=self._turns,
            submitted_s=self._kernel.now,
            hint=command.hint,
            is_prefill=True,
            marks=(),
        )
        turn.began_s, turn.cached_tokens = None, 0
        _look_ahead(turn, call, command.agent or call.facts.transcript.agent)
        self.engines[command.replica].submit(turn)

    def _stop_prefill(self, of: RequestId) -> None:
        """Unless it has ended meanwhile."""
        for number, (turn, replica) in tuple(self._prefills.items()):
            if turn == of:
                del self._prefills[number]
                self.engines[replica].abort(number)
                self.send(ev.PrefillEnded(of, None))

    def session_over(self, session: SessionId) -> None:
        """Its agent asks nothing more, whether it says so or not."""
        self._paused.pop(session, None)

    def end(self) -> None:
        """All sessions are over; prefills may be under way of some that did not say so."""
        for turn, _ in tuple(self._prefills.values()):
            self._stop_prefill(turn)

    def _rearm(self) -> None:
        due_s = self.brain.next_deadline_s()
        if self._timer is not None:
            # A timer that fires early only asks again, so one that is due sooner than needed may stay.
            if due_s is not None and self._timer.time_s <= due_s:
                return
            self._timer.call_off()
            self._timer = None
        if due_s is not None:
            # What is overdue is done in small bites, so that a moment's events are never held up.
            self._timer = self._kernel.at(max(due_s, self._kernel.now + 0.001), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.send(ev.TimerFired())


def _look_ahead(turn: EngineTurn, call: Call, agent: int) -> None:
    """Makes it one of the next turn's prompt, under that system prompt.

    It is as much of it as is known, if the next turn will have that one; else a text as long that nobody will
    send."""
    following = call.next_prompt
    if following is not None and following.agent == agent:
        turn.ref, turn.known_tokens, turn.keys = following.ref, following.tokens, following.keys()
    else:
        assert call.nobodys_keys is not None
        turn.known_tokens = turn.turn.input_tokens + turn.turn.output_tokens
        turn.keys = call.nobodys_keys(turn.known_tokens)
