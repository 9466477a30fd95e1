"""A session before it has a place in time: its turns, on a clock that starts with it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from random import Random
from typing import Any, Final

import msgspec

from lab.workload.problems import Problems
from lab.workload.records import Member

UNKNOWN_MODEL: Final = "unknown"
"""The request's `model` where the corpus does not name it."""


class Turn(msgspec.Struct, kw_only=True):
    """One exchange of a session. `at_s` never decreases within a session."""

    at_s: float
    lasts_s: float
    body: Any
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = {}
    status: int = 200
    response: Any = None
    finish: str | None = None
    response_id: str | None = None
    thread: str | None = None


class Session(msgspec.Struct, kw_only=True):
    """`turns` is read once, turn by turn, while other sessions' turns are read beside it."""

    client: str
    name: str
    source: str
    turns: Iterable[Turn]


Importer = Callable[[Iterable[Member], Problems, int], Iterator[Session]]
"""Members, where problems go, and the seed of what must be composed: the sessions in the source's order."""


def selected(sessions: Iterable[Session], *, match: str, limit: int | None) -> Iterator[Session]:
    """Those whose name fits the pattern, `limit` of them at most."""
    return islice((session for session in sessions if fnmatchcase(session.name, match)), limit)


def rng_of(seed: int, name: str) -> Random:
    """A session's own chance: what one session draws moves no other."""
    return Random(f"{seed}/{name}")  # noqa: S311 - times of a workload, not secrets


def chat_turn(
    history: list[dict[str, Any]],
    response: dict[str, Any],
    *,
    at_s: float,
    lasts_s: float,
    model: str = UNKNOWN_MODEL,
    response_id: str | None = None,
    thread: str | None = None,
) -> Turn:
    """A chat completion: `history` so far, answered by `response`. The history is copied, not its messages.

    `finish` follows from the response; of an empty one nobody knows why it ended.
    """
    finish = "tool_calls" if response.get("tool_calls") else "stop" if response.get("content") else None
    return Turn(
        at_s=at_s,
        lasts_s=lasts_s,
        body={"model": model, "messages": list(history)},
        response=response,
        finish=finish,
        response_id=response_id,
        thread=thread,
    )
