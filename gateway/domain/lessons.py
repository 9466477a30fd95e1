"""Lessons: what one gateway saw of agents, tools and engines, for the others to learn from it as well.

A lesson is one observation, as a learner takes it in: a gateway that is told all lessons of another knows
what it would if it had seen that traffic itself. Nothing is added up and nothing is told on, so nothing
counts twice.

Invariants: what is taken together fits into `MAX_BYTES`, and no owner takes another's share of that; a batch
is read lesson by lesson, and what is malformed, out of range or of another version is passed over; the
owner of a lesson is told beside it, and nobody else learns from it.
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId, TenantId

PERIOD_S: Final = 2.0
"""After which what was noted is told."""
MAX_BYTES: Final = 49_152
"""Of the lessons that are taken at once, with the names of their owners."""
_SCARCE_FROM: Final = 32_768
"""From then on an owner notes no more than its share of that: what is left is for those who come late."""
_MAX_SENT: Final = 65_536
"""Of a batch that is read: with what the format adds."""

Name = Annotated[str, Meta(max_length=64)]
Names = Annotated[tuple[Name, ...], Meta(max_length=16)]
Id = Annotated[str, Meta(max_length=256)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]
Tokens = Annotated[float, Meta(ge=0.0, le=1e8)]
Growth = Annotated[float, Meta(ge=-1e8, le=1e8)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Turn = Annotated[int, Meta(ge=1, le=1_000_000)]


class Came(enum.IntEnum):
    """What came of a step of a conversation, or of a silence of a session."""

    BACK = 0
    """It went on."""
    END = 1
    """Nothing, as far as can be told."""
    NO_END = 2
    """It counted as ended, and has come back."""
    TASK = 3
    """Nothing, for so long that the conversation counts as a task."""
    NO_TASK = 4
    """It counted as a task, and has come back."""


class StepTaken(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The agent's conversation asked for these tools, after it had asked for those."""

    kind: int
    client: int
    is_child: bool
    tools: Names
    before: Names | None
    """None for a conversation's first step."""


class StepFollowed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What came behind a step."""

    kind: int
    client: int
    is_child: bool
    tools: Names
    word: int
    came: Came
    gap_s: Seconds = 0.0


class ToolRan(msgspec.Struct, frozen=True, array_like=True, tag=3):
    agent: int
    name: Name
    duration_s: Seconds
    observation_bytes: Tokens
    has_failed: bool


class TurnMade(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A session's n-th turn ended."""

    pool: Id
    agent: int
    turn: Turn
    turn_s: Seconds
    grown: Growth | None


class Fact(enum.IntEnum):
    FIRST_PROMPT = 0
    """Tokens of a session's first prompt."""
    SHARED = 1
    """Of these, tokens that were cached already."""
    CYCLE = 2
    """Seconds from one turn to the next."""
    END = 3
    """The turn was a session's last."""
    NO_END = 4
    """It was not."""


class SessionWas(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """One more thing that is learned of sessions of a type."""

    pool: Id
    agent: int
    fact: Fact
    value: Tokens
    """Tokens, seconds, or the turn's number."""


class Silence(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """What came of a session's silence."""

    pool: Id
    agent: int
    has_tools: bool
    """Tools ran meanwhile."""
    came: Came
    length_s: Seconds = 0.0


class TurnTook(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """How long an engine took for a turn, and what it had to do."""

    replica: ReplicaId
    new_tokens: Tokens
    """Of the prompt; as was expected, like what follows."""
    cached_tokens: Tokens
    decoding: Count
    """Turns that were sent there before, and what they asked of it (`gateway/cost/estimator.py`)."""
    decoding_context_tokens: Tokens
    queued_tokens: Tokens
    queued_products: Annotated[float, Meta(ge=0.0, le=1e16)]
    queued_prompt_tokens: Tokens
    is_streamed: bool
    is_whole: bool
    """It came to its end."""
    duration_s: Seconds
    first_token_s: Seconds | None
    """None if nobody saw it."""
    output_tokens: Count | None
    """As was counted, like what follows; None if nobody counted."""
    counted_new: Tokens | None
    counted_cached: Tokens


OfAgents = StepTaken | StepFollowed
OfSessions = TurnMade | SessionWas | Silence
Lesson = OfAgents | ToolRan | OfSessions | TurnTook
Owned = tuple[TenantId, Lesson]
"""And whose it is."""

_ENCODER: Final = msgspec.msgpack.Encoder()
_LESSON: Final[msgspec.msgpack.Decoder[Lesson]] = msgspec.msgpack.Decoder(Lesson)
_BATCH: Final = msgspec.msgpack.Decoder(dict[Id, list[msgspec.Raw]])
_BROKEN: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Noted:
    """Of one owner."""

    __slots__ = ("bytes", "lessons")

    def __init__(self) -> None:
        self.lessons: list[msgspec.Raw] = []
        self.bytes = 0


class Notes:
    """What is to be told to other gateways."""

    def __init__(self) -> None:
        self._kept: dict[TenantId, _Noted] = {}
        self._bytes = 0
        self.is_muted = False
        """While others' lessons are learned from: they are not ours to tell."""
        self.noted = self.dropped = 0
        """Lessons; of those, the ones that there was no room for."""

    def note(self, owner: TenantId, lesson: Lesson) -> None:
        if self.is_muted:
            return
        self.noted += 1
        kept = self._kept.get(owner)
        if kept and self._bytes >= _SCARCE_FROM and kept.bytes >= _SCARCE_FROM // len(self._kept):
            self.dropped += 1
            return
        told = _ENCODER.encode(lesson)
        size = len(told)
        if kept is None:
            kept = _Noted()
            size += len(owner)
        if self._bytes + size > MAX_BYTES:
            self.dropped += 1
            return
        self._kept[owner] = kept
        kept.lessons.append(msgspec.Raw(told))
        kept.bytes += size
        self._bytes += size

    def take(self) -> bytes:
        """All that was noted since, as a batch; empty if nothing was."""
        batch = {owner: kept.lessons for owner, kept in self._kept.items()}
        self._kept, self._bytes = {}, 0
        return _ENCODER.encode(batch) if batch else b""


def read(batch: bytes) -> list[Owned]:
    """The lessons of a batch, as far as they make sense."""
    found: list[Owned] = []
    try:
        told = _BATCH.decode(batch) if len(batch) <= _MAX_SENT else {}
    except _BROKEN:
        return found
    for owner, lessons in told.items():
        for each in lessons:
            try:
                found.append((TenantId(owner), _LESSON.decode(each)))
            except _BROKEN:
                continue
    return found
