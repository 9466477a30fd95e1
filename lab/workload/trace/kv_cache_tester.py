"""kv-cache-tester's recordings of Claude Code: lengths, block hashes, think times.

**Source**: callanjfox/kv-cache-tester (Apache-2.0), `traces`, one session a line. A prompt is given by its
hashes: `hk` blocks as in the request before it in the list, and runs of numbers (`hr`) for the others.

**Taken**: prompt and output lengths. The prefix is the longest run of blocks that an earlier prompt of the
thread begins with (for a sub-agent's first prompt: of any thread). Where those are all blocks of the earlier
prompt, its last partial block and its output are taken for shared, too. A gap is the recorded think time:
a tool's after an answer that ended in a tool call, a person's after any other. Sub-agents are threads,
started by the turn that was the last to begin before them.

**Composed**: a gap that is not recorded is the time between the requests less the answer's. Tools are
nameless: one per answer, `tool`, which asks nothing of its host. All sessions arrive at 0. With
`shared_part`, so much of tools and system prompt is a text that all sessions open with.

**Lost**: what sessions share beyond that; sub-agents of sub-agents.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef
from lab.workload.trace.importer import Choices, Corpus
from lab.workload.trace.shared_blocks import BlockTree

AGENT_TYPE: Final = "claude-code"
_CLOCK_STEP_S: Final = 1.0
"""Recorded moments are rounded to seconds."""


class _Entry(msgspec.Struct, rename={"input_tokens": "in", "output_tokens": "out"}):
    """A request; or a sub-agent, whose `t` is when it ended."""

    t: float
    type: str
    input_tokens: int = 0
    output_tokens: int = 0
    stop: str | None = None
    api_time: float = 0.0
    think_time: float | None = None
    hk: int = 0
    hr: list[tuple[int, int]] = []
    subagent_type: str = ""
    duration_ms: float = 0.0
    tool_tokens: int = 0
    system_tokens: int = 0
    requests: list["_Entry"] = []


class _Recording(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_Entry]
    tool_tokens: int = 0
    system_tokens: int = 0


def _kv_cache_tester(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    for member in members:
        for number, recording in lines_as(_Recording, member, problems):
            try:
                yield _session(recording, choices)
            except ValueError as error:
                problems.add(f"{member.name}, line {number}", error)


KV_CACHE_TESTER: Final = Corpus(
    read=_kv_cache_tester,
    origin="kv-cache-tester, Claude Code sessions (Apache-2.0)",
    how="lengths, prefixes (in blocks), think times as recorded; tools nameless; arrivals all 0",
    knows=frozenset({"sub_agents", "shared_part"}),
)


def _session(recording: _Recording, choices: Choices) -> Session:
    main = [entry for entry in recording.requests if entry.type != "subagent"]
    agents = [entry for entry in recording.requests if entry.type == "subagent"] if choices.sub_agents else []
    if not main:
        raise ValueError("a session without a request")
    openings: BlockTree[TurnRef] = BlockTree()
    turns = _turns(0, main, recording.block_size, openings)
    threads: list[Thread] = []
    started: dict[int, list[tuple[int, _Entry]]] = {}
    for number, agent in enumerate(agents, start=1):
        if not agent.requests or any(request.type == "subagent" for request in agent.requests):
            raise ValueError("a sub-agent without requests, or with sub-agents")
        theirs = _turns(number, agent.requests, recording.block_size, openings)
        key = f"{AGENT_TYPE}/{agent.subagent_type}"
        threads.append(_opened(theirs, key, choices.shared_part * (agent.tool_tokens + agent.system_tokens)))
        begun_s = agent.t - agent.duration_ms / 1e3
        parent = max(0, bisect_right(main, begun_s + _CLOCK_STEP_S, key=lambda entry: entry.t) - 1)
        started.setdefault(parent, []).append((number, agent))
    for at, children in started.items():
        _start(turns, at, children, next_s=main[at + 1].t if at + 1 < len(main) else None)
    shared = choices.shared_part * (recording.tool_tokens + recording.system_tokens)
    return Session(
        id=recording.id, agent_type=AGENT_TYPE, threads=(_opened(turns, AGENT_TYPE, shared), *threads)
    )


def _opened(turns: list[Turn], key: str, shared: float) -> Thread:
    """The thread; it opens with a text of all sessions if that is more than it shares with another thread."""
    tokens = min(int(shared), turns[0].input_tokens)
    if tokens <= turns[0].prefix_tokens:
        return Thread(turns=tuple(turns))
    first = msgspec.structs.replace(turns[0], prefix_of=None, prefix_tokens=0)
    return Thread(turns=(first, *turns[1:]), shared_key=key, shared_tokens=tokens)


def _turns(number: int, entries: list[_Entry], block_size: int, openings: BlockTree[TurnRef]) -> list[Turn]:
    """A thread's turns. Its first prompt is compared with those of other threads, the others among them."""
    tree: BlockTree[TurnRef] = BlockTree()
    turns: list[Turn] = []
    nodes: Sequence[int] = ()
    for at, entry in enumerate(entries):
        if entry.hk > len(nodes):
            raise ValueError(f"a request that has {entry.hk} blocks of one with {len(nodes)}")
        blocks = [first + step for first, count in entry.hr for step in range(count)]
        ref = TurnRef(number, at)
        shared, nodes = tree.add(ref, blocks, behind=nodes[: entry.hk])
        tokens = shared.blocks * block_size if shared is not None else 0
        if shared is not None and shared.is_extension:
            base = entries[shared.owner.turn]
            tokens = base.input_tokens + base.output_tokens
        if at == 0:
            shared, _ = openings.add(ref, blocks)
            tokens = shared.blocks * block_size if shared is not None else 0
        gap_s = _gap_s(entries[at - 1], entry) if at else 0.0
        is_tool = at > 0 and entries[at - 1].stop == "tool_use"
        if is_tool:
            turns[-1] = msgspec.structs.replace(turns[-1], tools=(Tool(name="tool", duration_s=gap_s),))
        turns.append(
            Turn(
                input_tokens=entry.input_tokens,
                output_tokens=max(1, entry.output_tokens),
                prefix_of=shared.owner if shared is not None else None,
                prefix_tokens=min(tokens, entry.input_tokens),
                pause_s=0.0 if is_tool else gap_s,
                is_pause_human=at > 0 and not is_tool,
            )
        )
    return turns


def _gap_s(before: _Entry, entry: _Entry) -> float:
    if entry.think_time is not None:
        return max(0.0, entry.think_time)
    return max(0.0, entry.t - before.t - before.api_time)


def _start(turns: list[Turn], at: int, children: list[tuple[int, _Entry]], *, next_s: float | None) -> None:
    """The turn's tools become the sub-agents that it starts.

    What is left of the gap behind the last one that it waits for is that one's own.
    """
    gap_s = sum(tool.duration_s for tool in turns[at].tools)
    awaited = [number for number, agent in children if next_s is None or agent.t - _CLOCK_STEP_S <= next_s]
    ends = {number: agent.t for number, agent in children}
    last = max(awaited, key=lambda number: ends[number], default=None)
    tools = []
    for number, agent in children:
        rest_s = max(0.0, gap_s - agent.duration_ms / 1e3) if number == last else 0.0
        is_detached = number not in awaited
        tools.append(Tool(name="agent", duration_s=rest_s, starts_thread=number, is_detached=is_detached))
    kept = () if awaited else turns[at].tools
    turns[at] = msgspec.structs.replace(turns[at], tools=(*kept, *tools))
