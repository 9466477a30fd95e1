"""What an engine has to do, and what it did."""

from typing import Any

import msgspec

from lab.simulator.engine.turn import EngineTurn


class Work(msgspec.Struct, eq=False):
    """A turn in the engine."""

    turn: EngineTurn
    request: Any
    cached_tokens: int | None = None
    """None until it runs."""
    has_token: bool = False
    marks: int = 0
    """Of the turn's: how many were told."""

    def to_mark(self) -> int | None:
        """Output tokens until the next one; None if there is none."""
        if self.marks == len(self.turn.marks):
            return None
        return int(self.turn.marks[self.marks] - self.request.num_output_tokens)


class EngineCounts(msgspec.Struct):
    """What an engine did so far."""

    steps: int = 0
    scheduled_steps: int = 0
    computed_tokens: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    """Of turns that began to run."""
    cached_tokens: int = 0
    preemptions: int = 0
    again_tokens: int = 0
    """What those had that were preempted, less what they found when they ran again: less than nothing where
    another session, or a host tier, had brought more meanwhile."""
    moved_tokens: int = 0
    """Computed of next prompts while tools ran: nobody wanted the answers."""
