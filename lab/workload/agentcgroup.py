"""AgentCgroup's sessions: a coding agent at work on issues, with wall-clock times.

**Source**: eunomia-bpf/agentcgroup (GPL-2.0: to be read where it lies, never copied), Claude Code sessions
normalised to one JSON object a line: `agents`, each with `requests` that hold what they `append` to the
conversation and the `response`.

**Taken**: every request is one exchange; its messages are all that was appended and answered before. Times,
tool-call ids, response ids and model names as recorded; sub-agents are threads of the session, and those of
several agents interleave as they did.

**Composed**: the form. The client spoke the Messages API; these are chat completions.

**Lost**: system prompts and tool schemas, which were not recorded; thinking; whether a result was an error.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.sessions import UNKNOWN_MODEL, Session, Turn, chat_turn

CLIENT: Final = "agentcgroup"
_NOT_SENT: Final = frozenset({"t", "is_error"})
"""What the corpus notes in messages and calls for its own use."""


class _Request(msgspec.Struct):
    t_start: float
    t_end: float
    append: list[dict[str, Any]]
    response: dict[str, Any]
    id: str | None = None
    model: str = UNKNOWN_MODEL


class _Agent(msgspec.Struct):
    agent: str
    requests: list[_Request]


class _Record(msgspec.Struct):
    session: str
    agents: list[_Agent]


def agentcgroup(members: Iterable[Member], problems: Problems, seed: int) -> Iterator[Session]:
    for member in members:
        for number, record in lines_as(_Record, member, problems):
            begin = min((r.t_start for agent in record.agents for r in agent.requests), default=0.0)
            threads = [_turns(agent, begin) for agent in record.agents]
            yield Session(
                client=CLIENT,
                name=record.session,
                source=f"{member.name}:{number}",
                turns=heapq.merge(*threads, key=lambda turn: turn.at_s),
            )


def _turns(agent: _Agent, begin: float) -> Iterator[Turn]:
    history: list[dict[str, Any]] = []
    for request in agent.requests:
        history += [_sent(message) for message in request.append]
        response = _sent(request.response)
        yield chat_turn(
            history,
            response,
            at_s=request.t_start - begin,
            lasts_s=max(0.0, request.t_end - request.t_start),
            model=request.model,
            response_id=request.id,
            thread=agent.agent,
        )
        history.append(response)


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    """The message as a request holds it."""
    sent = {name: value for name, value in message.items() if name not in _NOT_SENT}
    if sent.get("tool_calls"):
        calls = [{n: v for n, v in call.items() if n not in _NOT_SENT} for call in sent["tool_calls"]]
        sent["tool_calls"] = calls
    return sent
