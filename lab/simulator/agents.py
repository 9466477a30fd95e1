"""Agents: they play the sessions of a workload against the gateway.

An agent asks, waits for the whole answer, runs the tools that it asks for on its host, pauses as long as the
workload says, and asks again. A tool that starts a sub-agent ends with it, unless it was sent off to run on
its own. The calls of a conversation's last answer are made, but nobody waits for what they do, so only
those that start a sub-agent are played.
"""

import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec

from gateway.domain.ids import SessionId, TenantId
from gateway.domain.request import Claims, ExplicitId, RequestFacts, ToolCall, Transcript, Work
from gateway.domain.request import Protocol as Wire
from gateway.identity.explicit_ids import TURNPIKE_SCHEMA
from lab.simulator.driver import Call, NextPrompt
from lab.simulator.hosts import ToolHost
from lab.simulator.kernel import Kernel
from lab.workload.trace.content import ContentChain
from lab.workload.trace.format import ServiceClass, Session, Tool, Turn, TurnRef

_BYTES_PER_TOKEN: Final = 4
_MAIN: Final = "0"


class Audience(Protocol):
    """Who wants to know how a session goes."""

    def turn_answered(self, call: Call) -> None: ...

    def session_over(self, agent: "Agent") -> None: ...


class Gateway(Protocol):
    """Whom agents call."""

    def call(self, call: Call) -> None:
        """The call's caller is told how it ends."""
        ...


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What agents act on; the same for all of a simulation."""

    kernel: Kernel
    gateway: Gateway
    content: ContentChain
    audience: Audience
    says_when_over: bool = True
    dispatches_early: bool = False
    """Tools start when their calls are complete, not when the answer is."""


class Agent:
    """One session."""

    def __init__(self, session: Session, host: ToolHost, stage: Stage) -> None:
        self.session = session
        self.host = host
        self.stage = stage
        self.turns = 0
        """That were answered."""
        self.started_s = 0.0
        self.failed = False
        self.final_first_token_s = 0.0
        self.end_s = 0.0
        self.known_as: SessionId | None = None
        self._live_threads = 0
        self._was_ended_by_id = False

    def start(self) -> None:
        self.started_s = self.stage.kernel.now
        self.run_thread(0, None)

    def claims(self) -> Claims | None:
        """What its client says now of how urgent it is. Who waits for it, and says no more, says nothing."""
        service_class = self.session.service_class
        return Claims(service_class=service_class.value) if service_class is ServiceClass.PROACTIVE else None

    def transcript(self, ref: TurnRef) -> Transcript:
        """Its system prompt says what kind of agent it is, and its client all else."""
        speaks = agent_of(self.session, ref)
        return Transcript(agent=speaks, agent_type=speaks)

    def run_thread(self, number: int, ended: Callable[[], None] | None) -> None:
        self._live_threads += 1
        _Conversation(self, number, ended).start()

    def is_final(self, ref: TurnRef) -> bool:
        """Whether the client says that the run ends with this turn."""
        if not self.stage.says_when_over:
            return False
        thread = self.session.threads[ref.thread]
        if ref.thread != 0 or ref.turn != len(thread.turns) - 1 or self._live_threads > 1:
            return False
        return all(tool.starts_thread is None for tool in thread.turns[ref.turn].tools)

    def answered(self, call: Call) -> None:
        self.turns += 1
        self.known_as = call.known_as
        explicit = call.facts.explicit
        self._was_ended_by_id = explicit is not None and explicit.final
        if call.ref.thread == 0:
            self.final_first_token_s, self.end_s = call.first_token_s, self.stage.kernel.now
        self.stage.audience.turn_answered(call)

    def gave_up(self) -> None:
        """A call was refused too often: no conversation of the session asks anything more."""
        if not self.failed:
            self.failed = True
            self.final_first_token_s = self.end_s = self.stage.kernel.now

    def thread_ended(self, ended: Callable[[], None] | None) -> None:
        if ended is not None:
            ended()
        self._live_threads -= 1
        if self._live_threads == 0:
            self.stage.content.forget(self.session.id)
            self.stage.audience.session_over(self)

    @property
    def must_be_finished(self) -> bool:
        """Whether the gateway has yet to be told that the run is over. One that fails tells nobody."""
        is_said = self.failed or self._was_ended_by_id or not self.stage.says_when_over
        return not is_said and self.known_as is not None


def agent_of(session: Session, ref: TurnRef) -> int:
    """As `Transcript.agent`: of its kind, or of the system prompt that an orchestrator put there, or that a
    sub-agent has for its own."""
    thread = session.threads[ref.thread]
    opening = session.spoken_under(ref)[0]
    if any(turn.shared_key is not None for turn in thread.turns) or opening != session.threads[0].shared_key:
        return zlib.crc32(f"{session.agent_type} {opening}".encode())
    return zlib.crc32(session.agent_type.encode())


class _Conversation:
    """One thread of a session: one call at a time."""

    def __init__(self, agent: Agent, number: int, ended: Callable[[], None] | None) -> None:
        self._agent = agent
        self._kernel = agent.stage.kernel
        self._number = number
        self._thread = agent.session.threads[number]
        self._ended = ended
        self._at = 0
        self._open_tools = 0
        self._calls: tuple[ToolCall, ...] = ()
        """Of the last answer."""
        self._begun: set[int] = set()
        """Which of the answer's calls were made before it was complete."""

    def start(self) -> None:
        self._kernel.after(self._thread.turns[0].pause_s, self._ask)

    def answered(self, call: Call) -> None:
        """As `Caller`."""
        self._agent.answered(call)
        turn = self._thread.turns[self._at]
        is_last = self._at == len(self._thread.turns) - 1
        self._at += 1
        self._calls = call.tool_calls
        for number, tool in enumerate(turn.tools):
            if number in self._begun:
                continue
            if not is_last:
                self._open_tools += 1
                self._begin(tool, self._tool_ended)
            elif tool.starts_thread is not None:
                self._agent.run_thread(tool.starts_thread, None)
        if is_last:
            self._agent.thread_ended(self._ended)
        else:
            self._tool_ended()

    def reached(self, call: Call, tokens: int) -> None:
        """As `Caller`: so much of the answer is there."""
        turn = self._thread.turns[self._at]
        for number, tool in enumerate(turn.tools):
            if number not in self._begun and _mark(turn, tool) <= tokens:
                self._begun.add(number)
                self._open_tools += 1
                self._begin(tool, self._tool_ended)

    def gave_up(self, call: Call) -> None:
        """As `Caller`."""
        self._agent.gave_up()
        self._agent.thread_ended(self._ended)

    def _begin(self, tool: Tool, done: Callable[[], None]) -> None:
        run = partial(self._agent.host.run, tool.duration_s, tool.cpu_cores, done)
        if tool.starts_thread is None:
            run()
        elif tool.is_detached:
            self._agent.run_thread(tool.starts_thread, None)
            run()
        else:
            self._agent.run_thread(tool.starts_thread, run)

    def _tool_ended(self) -> None:
        self._open_tools -= 1
        if self._open_tools == 0 and not self._agent.failed:
            self._kernel.after(self._thread.turns[self._at].pause_s, self._ask)
        elif self._open_tools == 0:
            self._agent.thread_ended(self._ended)

    def _ask(self) -> None:
        agent, session = self._agent, self._agent.session
        if agent.failed:  # in another of its conversations
            agent.thread_ended(self._ended)
            return
        ref = TurnRef(self._number, self._at)
        turn = self._thread.turns[self._at]
        self._open_tools = 1  # the answer: no tool may be the last before all have begun
        self._begun.clear()
        results = tuple(call.id for call in self._calls)
        facts = RequestFacts(
            protocol=Wire.CHAT,
            work=Work.GENERATE,
            stream=True,
            body_bytes=_BYTES_PER_TOKEN * turn.input_tokens,
            message_count=2 * self._at + 2,
            tool_count=1,
            explicit=ExplicitId(
                schema=TURNPIKE_SCHEMA,
                session=session.id,
                thread=str(self._number),
                parent=_MAIN if self._number else None,
                final=agent.is_final(ref),
            ),
            claims=agent.claims(),
            transcript=agent.transcript(ref),
            echoed_ids=results,
            tool_result_ids=results,
            is_background=session.service_class is ServiceClass.PROACTIVE,
            is_replayable=True,
        )
        calls = tuple(
            ToolCall(f"{session.id}/{self._number}.{self._at}.{number}", tool.name)
            for number, tool in enumerate(turn.tools)
        )
        agent.stage.gateway.call(
            Call(
                session=session,
                ref=ref,
                tenant=TenantId(session.tenant),
                facts=facts,
                keys=partial(self._keys, ref),
                tool_calls=calls,
                caller=self,
                marks=self._marks(turn),
                next_prompt=self._next_prompt(ref),
                nobodys_keys=partial(agent.stage.content.keys_of_nobody, f"{session.id} {ref}"),
            )
        )

    def _marks(self, turn: Turn) -> tuple[int, ...]:
        if not self._agent.stage.dispatches_early or self._at == len(self._thread.turns) - 1:
            return ()
        marks = {_mark(turn, tool) for tool in turn.tools}
        return tuple(sorted(mark for mark in marks if mark < turn.output_tokens))

    def _next_prompt(self, ref: TurnRef) -> NextPrompt | None:
        if self._at == len(self._thread.turns) - 1:
            return None
        session, following = self._agent.session, TurnRef(ref.thread, ref.turn + 1)
        return NextPrompt(
            ref=following,
            tokens=max(1, self._thread.turns[following.turn].known_tokens),
            agent=agent_of(session, following),
            keys=partial(self._agent.stage.content.prompt_keys, session, following),
        )

    def _keys(self, ref: TurnRef) -> list[bytes]:
        content = self._agent.stage.content.begin(self._agent.session, ref)
        content.extend(self._thread.turns[ref.turn].output_tokens)
        return content.keys


def _mark(turn: Turn, tool: Tool) -> int:
    """Tokens of the answer behind which the call is complete."""
    return math.ceil(tool.called_at * turn.output_tokens)
