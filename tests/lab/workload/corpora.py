"""Corpora made up here, in the shape of the recorded ones; and what must hold of all that is imported."""

import json
from collections.abc import Iterable
from typing import Any

from lab.workload.exchange import Exchange
from lab.workload.problems import Problems
from lab.workload.records import Member
from lab.workload.sessions import Importer, Session, Turn


def member(*records: Any, name: str = "corpus") -> Member:
    """A member with a record a line; bytes stand as they are."""
    return Member(name, [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records])


def imported(importer: Importer, *members: Member) -> list[tuple[Session, list[Turn]]]:
    """The sessions with their turns; there must be no problem."""
    problems = Problems()
    found = [(session, list(session.turns)) for session in importer(iter(members), problems, 0)]
    assert problems.count == 0, problems.shown
    return found


def assert_histories_grow(turns: Iterable[Turn]) -> None:
    """Within a thread, every request holds the one before it, its answer, and at least one message more."""
    before: dict[str | None, list[Any]] = {}
    for turn in turns:
        messages = turn.body["messages"]
        if turn.thread in before:
            known = before[turn.thread]
            assert messages[: len(known)] == known
            assert len(messages) > len(known)
        before[turn.thread] = [*messages, turn.response]


def assert_in_time(turns: list[Turn]) -> None:
    assert all(turn.lasts_s >= 0 and turn.at_s >= 0 for turn in turns)
    assert [turn.at_s for turn in turns] == sorted(turn.at_s for turn in turns)


def of_sessions(exchanges: Iterable[Exchange]) -> dict[str, list[Exchange]]:
    sessions: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        sessions.setdefault(exchange.truth.session, []).append(exchange)
    return sessions


def said(role: str, text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def called(call_id: str, name: str = "look_up", arguments: str = "{}") -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return said("assistant", None, tool_calls=[call])
