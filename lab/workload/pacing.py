"""Durations where a corpus has none. Means, drawn exponentially so that sessions do not keep step."""

from random import Random
from typing import Any, Final

FIRST_TOKEN_S: Final = 0.5
ANSWER_CHARS_PER_S: Final = 200.0
"""About 50 tokens a second."""
TOOL_S: Final = 1.0
USER_S: Final = 10.0
"""A person, or the model that plays one, reads and types."""


def answer_s(rng: Random, answer: Any) -> float:
    """How long the model takes: a first token's time, and time in proportion to the answer's text."""
    return rng.expovariate(1.0 / FIRST_TOKEN_S) + len(str(answer)) / ANSWER_CHARS_PER_S


def gap_s(rng: Random, role: str) -> float:
    """How long until the message that follows an answer comes back: a tool's result, or a user's word."""
    return rng.expovariate(1.0 / (USER_S if role == "user" else TOOL_S))
