"""AgentCgroup's sessions: Claude Code at work on issues, with what its tools took.

**Source**: eunomia-bpf/agentcgroup (GPL-2.0: to be read where it lies, never copied), normalised to one JSON
object a line: `agents`, with `requests` that hold what they `append`, the `response` and its `usage`.

**Taken**: prompt lengths as the provider counted them; what its cache had of a session's first prompt is a
text that all sessions with that client version open with. Each tool's name and time, the agent's own pauses.

**Composed**: output lengths, from bytes (`estimates`): the recording counts tokens at an answer's start. A
prompt shares its predecessor's prompt and answer; a shorter one than that, what the cache had. All sessions
arrive at 0.

**Lost**: thinking, which is no part of the recorded answers; sub-agents, whose requests were not recorded:
they are tools that take long.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.trace.estimates import message_tokens
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from lab.workload.trace.importer import Choices, Corpus

AGENT_TYPE: Final = "claude-code"


class _Usage(msgspec.Struct):
    inp: Annotated[int, Meta(ge=1)]
    cached: Annotated[int, Meta(ge=0)] = 0


class _Request(msgspec.Struct):
    t_start: float
    t_end: float
    usage: _Usage
    append: list[dict[str, Any]]
    response: dict[str, Any]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.response.get("tool_calls") or []

    @property
    def output_tokens(self) -> int:
        return message_tokens(self.response)

    @property
    def results(self) -> dict[str, float]:
        """When each call's result came back, by its id."""
        return {
            m["tool_call_id"]: float(m.get("t", self.t_start)) for m in self.append if m.get("role") == "tool"
        }


class _Agent(msgspec.Struct):
    agent: str
    requests: Annotated[list[_Request], Meta(min_length=1)]


class _Record(msgspec.Struct):
    session: str
    agents: Annotated[list[_Agent], Meta(min_length=1, max_length=1)]
    cc_version: str = ""


def _agentcgroup(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    for member in members:
        for number, record in lines_as(_Record, member, problems):
            try:
                yield _session(record)
            except KeyError as error:
                problems.add(f"{member.name}, line {number}", f"a call or result without {error}")


AGENTCGROUP: Final = Corpus(
    read=_agentcgroup,
    origin="AgentCgroup, Claude Code on issues (GPL-2.0)",
    how="prompt lengths, tools and times as recorded; outputs estimated, 4 bytes a token; arrivals all 0",
)


def _session(record: _Record) -> Session:
    requests = record.agents[0].requests
    cached = min(requests[0].usage.cached, requests[0].usage.inp)
    thread = Thread(
        turns=tuple(_turn(requests, at) for at in range(len(requests))),
        shared_key=f"{AGENT_TYPE}/{record.cc_version}" if cached else None,
        shared_tokens=cached,
    )
    return Session(id=record.session, agent_type=AGENT_TYPE, threads=(thread,))


def _turn(requests: list[_Request], at: int) -> Turn:
    request = requests[at]
    base, tokens, pause_s = None, 0, 0.0
    if at:
        before = requests[at - 1]
        base = TurnRef(0, at - 1)
        tokens = before.usage.inp + before.output_tokens
        if request.usage.inp < before.usage.inp:
            tokens = request.usage.cached
        ready_s = max([before.t_end, *request.results.values()])
        pause_s = max(0.0, request.t_start - ready_s)
    results = requests[at + 1].results if at + 1 < len(requests) else None
    return Turn(
        input_tokens=request.usage.inp,
        output_tokens=request.output_tokens,
        prefix_of=base,
        prefix_tokens=min(tokens, request.usage.inp),
        pause_s=round(pause_s, 3),
        is_pause_human=at > 0 and not requests[at - 1].calls,
        tools=tuple(_tool(call, request, results) for call in request.calls) if results is not None else (),
    )


def _tool(call: dict[str, Any], request: _Request, results: dict[str, float]) -> Tool:
    """A call whose result nobody recorded takes no time."""
    begun_s = float(call.get("t", request.t_end))
    ended_s = results.get(call["id"], begun_s)
    name = str(call.get("function", {}).get("name", "tool"))
    return Tool(name=name, duration_s=round(max(0.0, ended_s - begun_s), 3))
