"""What an importer of workloads is: a corpus in, sessions out, and a word for the header on either."""

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from lab.workload.problems import Problems
from lab.workload.records import Member
from lab.workload.trace.format import Seconds, Session


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What can be chosen about how a corpus is read. Each kind says which of them it knows."""

    seed: int = 0
    sub_agents: bool = True
    """Sub-agents as threads; otherwise as tools that last as long as they ran."""
    shared_part: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """The part of tools and system prompt that all sessions of the corpus have in common."""
    start_s: Seconds = 0.0
    """Where in the corpus to begin."""
    duration_s: Seconds | None = None
    """How much of it to take, from there."""
    rate: Annotated[float, Meta(gt=0)] = 1.0
    """Times as many arrivals as recorded."""

    def is_within(self, at_s: float) -> bool:
        """Whether that moment of the corpus is wanted."""
        return self.start_s <= at_s and (self.duration_s is None or at_s < self.start_s + self.duration_s)


Reader = Callable[[Iterable[Member], Problems, Choices], Iterator[Session]]
"""Sessions in order of arrival. Ids are unique within the corpus."""


class Corpus(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of source that becomes a workload."""

    read: Reader
    origin: str
    """Its name and licence."""
    how: str
    """What of a session is recorded, and what is estimated or drawn."""
    knows: frozenset[str] = frozenset()
    """Names of `Choices` that mean something for it."""

    def described(self, choices: Choices) -> str:
        """For the header: how it was read, with every choice."""
        usual = Choices()
        names = [name for name in sorted(self.knows) if getattr(choices, name) != getattr(usual, name)]
        chosen = [f"{name}={getattr(choices, name)}" for name in names]
        return "; ".join(filter(None, [self.how, ", ".join(chosen)]))
