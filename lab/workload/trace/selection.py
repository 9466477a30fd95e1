"""Which sessions of a corpus, and how much of each: the same choices whatever the corpus.

They apply in the order of `Selection`'s fields.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta

from lab.workload.trace.cutting import cut
from lab.workload.trace.format import Seconds, Session, Thread, Tool, Turn

Count = Annotated[int, Meta(ge=1)]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """None where nothing is asked."""

    match: str | None = None
    """Only sessions whose id fits the pattern."""
    first_prompt_max: Count | None = None
    """Only sessions whose first prompt has at most so many tokens: recorded from their start."""
    turns_max: Count | None = None
    """The main conversation's first turns."""
    context_max: Count | None = None
    """A thread ends before the first turn whose prompt and output are longer."""
    human_gap_max_s: Seconds | None = None
    """A longer pause of a person ends the session's main conversation."""
    tool_max_s: Seconds | None = None
    """No tool lasts longer."""
    turns_min: Count | None = None
    """Only sessions with so many turns left in the main conversation."""
    limit: Count | None = None
    """At most so many sessions."""

    def apply(self, sessions: Iterable[Session]) -> Iterator[Session]:
        chosen = (short for session in sessions for short in self._of(session))
        return islice(chosen, self.limit)

    def _of(self, session: Session) -> Iterator[Session]:
        """The session as far as it is wanted; nothing if it is not."""
        if self.match is not None and not fnmatchcase(session.id, self.match):
            return
        first = session.threads[0].turns[0].input_tokens
        if self.first_prompt_max is not None and first > self.first_prompt_max:
            return
        lengths = [self._length(thread, is_main=not at) for at, thread in enumerate(session.threads)]
        short = cut(session, lengths)
        if short is None or len(short.threads[0].turns) < (self.turns_min or 1):
            return
        yield short if self.tool_max_s is None else _hastened(short, self.tool_max_s)

    def _length(self, thread: Thread, *, is_main: bool) -> int:
        """How many of the thread's turns are wanted."""
        for at, turn in enumerate(thread.turns):
            if self.context_max is not None and turn.input_tokens + turn.output_tokens > self.context_max:
                return at
            if not is_main:
                continue
            if self.turns_max is not None and at == self.turns_max:
                return at
            if (
                self.human_gap_max_s is not None
                and turn.is_pause_human
                and turn.pause_s > self.human_gap_max_s
            ):
                return at
        return len(thread.turns)

    def described(self) -> str:
        """For the header: every choice with its number."""
        default = Selection()
        chosen = [
            f"{name}={value!r}"
            for name, value in msgspec.structs.asdict(self).items()
            if value != getattr(default, name)
        ]
        return ", ".join(chosen)


def _hastened(session: Session, tool_max_s: float) -> Session:
    def tool(known: Tool) -> Tool:
        return msgspec.structs.replace(known, duration_s=min(known.duration_s, tool_max_s))

    def turn(known: Turn) -> Turn:
        return msgspec.structs.replace(known, tools=tuple(tool(each) for each in known.tools))

    threads = (
        msgspec.structs.replace(thread, turns=tuple(turn(each) for each in thread.turns))
        for thread in session.threads
    )
    return msgspec.structs.replace(session, threads=tuple(threads))
