"""Sessions of made-up agents: what a kind of agent does, as numbers, and sessions drawn from that.

An agent opens with its program's prompt and tools, which all of its kind share, and a task. Every response
but the last calls tools; their results and the response itself make the next prompt longer. A prompt that
would be too long is replaced by the opening and a summary. A call may be a sub-agent's: a thread of its own
kind, whose last answer is the call's result. An orchestrator's next prompt opens with a system prompt that
tells how to read what the tools brought, the same for all sessions whose response called the same ones; what
was said stands behind it.
"""

from collections.abc import Sequence
from random import Random
from typing import Annotated, Final, TypedDict

import msgspec
from msgspec import Meta

from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from lab.workload.trace.spread import Spread

Part = Annotated[float, Meta(ge=0, le=1)]


class ToolKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    lasts_s: Spread
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """How often it is called, against the others."""
    cpu_cores: Annotated[float, Meta(ge=0)] = 0.0


class AgentKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    turns: Spread
    opening_tokens: Annotated[int, Meta(ge=0)]
    """Of the program: system prompt and tools."""
    task_tokens: Spread
    """What the session brings; also the length of a summary."""
    output_tokens: Spread
    """Of a response that calls tools."""
    final_tokens: Spread
    """Of the last one."""
    result_tokens: Spread = Spread(median=500)
    """Of a tool's result."""
    tools: tuple[ToolKind, ...] = ()
    """None: every response is for a person."""
    calls: Spread = Spread(median=1)
    """How many tools a response calls."""
    person_s: Spread = Spread(median=20, sigma=1.0)
    """How long a person takes to answer, where there are no tools, or where one is asked."""
    asks_person: Part = 0.0
    """How often a response is for a person though there are tools."""
    context_max: Annotated[int, Meta(ge=1)] = 131_072
    call_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of each call, beside what its response has besides."""
    calls_behind: Part = 1.0
    """The part of a response behind which its calls begin, all equally long. 1: they are complete with it."""
    same_tool: Part = 0.0
    """How often a call is of the tool that its response called first."""
    reading_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of the system prompt behind a response's tools; 0: it stays the one that it was."""
    result_share: Spread | None = None
    """Of the next prompt, what its tools brought, instead of so much for each result."""
    sub_agent: "AgentKind | None" = None
    sub_agent_part: Part = 0.0
    """How many of the calls are sub-agents."""


def session_of(kind: AgentKind, rng: Random, *, id_: str) -> Session:
    """One session of that kind. Its content is its own but for the opening."""
    threads: list[Thread | None] = [None]
    threads[0] = _thread(kind, rng, 0, threads)
    done = [thread for thread in threads if thread is not None]
    return Session(id=id_, agent_type=kind.name, threads=tuple(done))


def _thread(kind: AgentKind, rng: Random, number: int, threads: list[Thread | None]) -> Thread:
    """The thread of that number. Sub-agents' threads are appended to `threads`."""
    count = max(1, kind.turns.count(rng))
    turns: list[Turn] = []
    prompt = max(1, kind.opening_tokens + kind.task_tokens.count(rng))
    base, prefix, pause_s = None, 0, 0.0
    shared: _Shared = _UNCHANGED
    for at in range(count):
        is_last = at == count - 1
        output = max(1, (kind.final_tokens if is_last else kind.output_tokens).count(rng))
        if at and prompt + output > kind.context_max:
            prefix = min(prefix, kind.opening_tokens)
            prompt = max(1, kind.opening_tokens + kind.task_tokens.count(rng))
            shared = _UNCHANGED
        is_person = not kind.tools or rng.random() < kind.asks_person
        tools: tuple[Tool, ...] = ()
        results = 0
        if not is_last and not is_person:
            tools, results = _called(kind, rng, threads)
            output += kind.call_tokens * len(tools)
        elif not is_last:
            results = max(1, kind.result_tokens.count(rng))
        turns.append(
            Turn(
                input_tokens=prompt,
                output_tokens=output,
                prefix_of=base,
                prefix_tokens=min(prefix, prompt),
                tools=_complete(kind, tools),
                pause_s=pause_s,
                is_pause_human=pause_s > 0,
                **shared,
            )
        )
        base, prefix = TurnRef(number, at), prompt + output
        if kind.result_share is not None and tools:
            share = kind.result_share.draw(rng)
            results = max(1, round(prefix * share / (1.0 - share)))
        prompt = prefix + results
        shared = _UNCHANGED
        if kind.reading_tokens and tools:
            base, prefix, prompt, shared = _read(kind, turns, TurnRef(number, at), results)
        pause_s = 0.0 if tools else round(kind.person_s.draw(rng), 3)
    key = f"agent/{kind.name}" if kind.opening_tokens else None
    opening = min(kind.opening_tokens, turns[0].input_tokens)
    return Thread(turns=tuple(turns), shared_key=key, shared_tokens=opening)


class _Shared(TypedDict):
    shared_key: str | None
    shared_tokens: int
    result_tokens: int | None


_UNCHANGED: Final = _Shared(shared_key=None, shared_tokens=0, result_tokens=None)


def _read(
    kind: AgentKind, turns: Sequence[Turn], last: TurnRef, results: int
) -> tuple[TurnRef | None, int, int, _Shared]:
    """How the next prompt begins, under the system prompt that reads what these tools brought.

    With which turn's tokens and how many; how long it is; and what it is made of."""
    key = f"agent/{kind.name}/" + "+".join(sorted({tool.name for tool in turns[-1].tools}))
    before, opening = turns[-1], _opening(kind, turns, last.turn)
    said = before.input_tokens + before.output_tokens - opening
    prompt = kind.reading_tokens + said + results
    shared = _Shared(shared_key=None, shared_tokens=0, result_tokens=results)
    for at in range(last.turn, 0, -1):  # the latest that stood under it goes on
        if _spoken_under(turns, at) == key:
            there = turns[at]
            return TurnRef(last.thread, at), there.input_tokens + there.output_tokens, prompt, shared
    shared = _Shared(shared_key=key, shared_tokens=kind.reading_tokens, result_tokens=results)
    return None, 0, prompt, shared


def _opening(kind: AgentKind, turns: Sequence[Turn], at: int) -> int:
    """Tokens of the system prompt that this turn stands under."""
    return kind.opening_tokens if _spoken_under(turns, at) is None else kind.reading_tokens


def _spoken_under(turns: Sequence[Turn], at: int) -> str | None:
    """The name of the system prompt that this turn stands under; None for the thread's own."""
    while (base := turns[at].prefix_of) is not None:
        at = base.turn
    return turns[at].shared_key


def _complete(kind: AgentKind, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """With where in their response each is complete."""
    if kind.calls_behind >= 1.0:
        return tools
    length = (1.0 - kind.calls_behind) / max(1, len(tools))
    return tuple(
        msgspec.structs.replace(tool, called_at=min(1.0, round(kind.calls_behind + number * length, 4)))
        for number, tool in enumerate(tools, start=1)
    )


def _called(kind: AgentKind, rng: Random, threads: list[Thread | None]) -> tuple[tuple[Tool, ...], int]:
    """What a response calls, and how long the results are."""
    tools: list[Tool] = []
    results = 0
    first: ToolKind | None = None
    for _ in range(max(1, kind.calls.count(rng))):
        if kind.sub_agent is not None and rng.random() < kind.sub_agent_part:
            number = len(threads)
            threads.append(None)
            thread = _thread(kind.sub_agent, rng, number, threads)
            threads[number] = thread
            tools.append(Tool(name=kind.sub_agent.name, starts_thread=number))
            results += thread.turns[-1].output_tokens
        else:
            is_same = first is not None and kind.same_tool > 0.0 and rng.random() < kind.same_tool
            tool = first if is_same and first is not None else _picked(kind.tools, rng)
            first = first or tool
            lasts_s = round(tool.lasts_s.draw(rng), 3)
            tools.append(Tool(name=tool.name, duration_s=lasts_s, cpu_cores=tool.cpu_cores))
            results += max(1, kind.result_tokens.count(rng))
    return tuple(tools), results


def _picked(tools: Sequence[ToolKind], rng: Random) -> ToolKind:
    return rng.choices(tools, weights=[tool.weight for tool in tools])[0]
