"""The workload file: a header, then one session a line (docs/contribute/workloads.md).

A session is one agent run: threads (the main conversation, and sub-agents) of turns. Nothing in it is a point
in time but `arrival_s`: what happens after that follows from how long each turn and each tool takes where the
workload is run.

Prompts are described by what they share. A turn's first `prefix_tokens` are the first tokens of another
turn's prompt with that turn's output behind it; or, where it refers to no turn, of a text that others open
with, too: where a thread opens, or where an orchestrator puts another system prompt before the same
conversation. All the rest is content that stands nowhere else.

Invariants (`check`): a turn refers only to turns of threads before its own, or before it in its own; a prefix
is no longer than what it is a prefix of, nor than the prompt; a thread opens with a shared text or with a
turn's, never both; every thread but the first is started by exactly one tool, of a thread before it.
"""

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

VERSION = 2
READ = (1, 2)
"""Version 1 lacks `Turn.shared_key`, `shared_tokens` and `result_tokens`, and `Tool.called_at`."""

Tokens = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class ServiceClass(Enum):
    REACTIVE = "reactive"
    """Someone waits."""
    PROACTIVE = "proactive"
    """Background."""


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One tool call of a response. The calls of one response run side by side."""

    name: str
    duration_s: Seconds = 0.0
    """On a host with nothing else to do. A tool that starts a thread lasts as long as that, and then so long
    in addition."""
    cpu_cores: Annotated[float, Meta(ge=0)] = 0.0
    """What it asks of its host while it runs; 0 for waiting on others (a network, a person)."""
    starts_thread: int | None = None
    """Index of the sub-agent's thread that this call runs."""
    called_at: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The part of its response behind which the call is complete, and could be made."""
    is_detached: bool = False
    """The parent goes on without waiting for that thread."""


class TurnRef(msgspec.Struct, frozen=True, array_like=True):
    thread: int
    turn: int


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One LLM call."""

    input_tokens: Annotated[int, Meta(ge=1)]
    output_tokens: Annotated[int, Meta(ge=1)]
    prefix_of: TurnRef | None = None
    """The turn that this prompt shares its beginning with; None if it shares none within its session."""
    prefix_tokens: Tokens = 0
    shared_key: str | None = None
    """Names a text that this prompt opens with, as all with the same key do: another system prompt than the
    thread's. What the thread said before stands behind it, and so it is content of this turn."""
    shared_tokens: Tokens = 0
    result_tokens: Tokens | None = None
    """At the prompt's end, what the tools before it brought: all else is known while they run. None: what it
    shares with an earlier turn is known."""
    tools: tuple[Tool, ...] = ()
    """What its response asks for; the next turn of the thread starts when all of them have ended."""
    pause_s: Seconds = 0.0
    """Before this turn, after the tools of the one before (for a thread's first: after its start)."""
    is_pause_human: bool = False
    """The pause is a person's, not the agent's."""

    @property
    def known_tokens(self) -> int:
        """Of the prompt, before the tools before it have ended."""
        if self.result_tokens is not None:
            return self.input_tokens - self.result_tokens
        return self.prefix_tokens


class Thread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A conversation: turns, one after the other."""

    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]
    shared_key: str | None = None
    """Names a text that the first prompt opens with, as all threads with the same key do."""
    shared_tokens: Tokens = 0


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One agent run."""

    id: str
    threads: Annotated[tuple[Thread, ...], Meta(min_length=1)]
    """The main conversation first."""
    arrival_s: Seconds = 0.0
    tenant: str = "default"
    service_class: ServiceClass = ServiceClass.REACTIVE
    agent_type: str = ""
    """Sessions of one kind: the same program, prompts and tools."""
    deadline_s: Seconds | None = None
    """After arrival, if somebody set one."""

    @property
    def turns(self) -> int:
        return sum(len(thread.turns) for thread in self.threads)

    @property
    def peak_tokens(self) -> int:
        """The longest context that it reaches: prompt and output."""
        return max(t.input_tokens + t.output_tokens for thread in self.threads for t in thread.turns)

    def opening(self, ref: TurnRef) -> tuple[str | None, int]:
        """The text that this turn's prompt opens with, and how much of it; without a name, if that is another
        turn's, or its own."""
        thread = self.threads[ref.thread]
        turn = thread.turns[ref.turn]
        if turn.prefix_of is not None:
            return None, 0
        if ref.turn == 0:
            return thread.shared_key, thread.shared_tokens
        return turn.shared_key, turn.shared_tokens

    def spoken_under(self, ref: TurnRef) -> tuple[str | None, int]:
        """The same through whichever turns its prompt begins with."""
        most = self.peak_tokens
        turn = self.threads[ref.thread].turns[ref.turn]
        while turn.prefix_of is not None:
            most = min(most, turn.prefix_tokens)
            ref = turn.prefix_of
            turn = self.threads[ref.thread].turns[ref.turn]
        key, tokens = self.opening(ref)
        return key, min(most, tokens)


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where something in a workload comes from."""

    what: str
    """What was taken: `sessions`, `arrivals`, `tenants`, ..."""
    origin: str
    """Name of the corpus or generator, with its licence if it is recorded."""
    how: str = ""
    """What was selected, cut, scaled or drawn, with every number."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of the file."""

    turnpike_workload: int = VERSION
    name: str
    sources: tuple[Source, ...] = ()
    seed: int | None = None
    """Of whatever was drawn."""


def check(session: Session) -> None:
    """Raises ValueError that names the first broken invariant."""
    started = [0] * len(session.threads)
    for number, thread in enumerate(session.threads):
        for at, turn in enumerate(thread.turns):
            where = f"session {session.id!r}, thread {number}, turn {at}"
            _check_prefix(session, number, at, where)
            _check_parts(turn, at, where)
            for tool in turn.tools:
                if tool.starts_thread is not None:
                    if not number < tool.starts_thread < len(session.threads):
                        raise ValueError(f"{where}: tool {tool.name!r} starts no later thread")
                    started[tool.starts_thread] += 1
        if thread.shared_tokens > thread.turns[0].input_tokens:
            raise ValueError(f"session {session.id!r}, thread {number}: shares more than its first prompt")
        if thread.shared_tokens and thread.shared_key is None:
            raise ValueError(f"session {session.id!r}, thread {number}: shares a text without a key")
        if thread.shared_tokens and thread.turns[0].prefix_of is not None:
            raise ValueError(f"session {session.id!r}, thread {number}: opens with two texts")
    if started[0] or any(count != 1 for count in started[1:]):
        raise ValueError(f"session {session.id!r}: every thread but the first is started by one tool")


def _check_parts(turn: Turn, at: int, where: str) -> None:
    if at == 0 and turn.shared_key is not None:
        raise ValueError(f"{where}: what a first prompt opens with is its thread's")
    if turn.shared_tokens and (turn.prefix_of is not None or turn.shared_key is None):
        raise ValueError(f"{where}: shares a text without a key, or opens with two texts")
    if turn.shared_tokens + (turn.result_tokens or 0) > turn.input_tokens:
        raise ValueError(f"{where}: its parts are longer than its prompt")


def _check_prefix(session: Session, number: int, at: int, where: str) -> None:
    turn = session.threads[number].turns[at]
    if turn.prefix_of is None:
        if turn.prefix_tokens:
            raise ValueError(f"{where}: a prefix of nothing")
        return
    ref = turn.prefix_of
    if not 0 <= ref.thread <= number or ref.turn < 0:
        raise ValueError(f"{where}: refers to a thread that is not before it")
    if ref.turn >= (at if ref.thread == number else len(session.threads[ref.thread].turns)):
        raise ValueError(f"{where}: refers to a turn that is not before it")
    base = session.threads[ref.thread].turns[ref.turn]
    if turn.prefix_tokens > min(turn.input_tokens, base.input_tokens + base.output_tokens):
        raise ValueError(f"{where}: its prefix is longer than what it is a prefix of")
