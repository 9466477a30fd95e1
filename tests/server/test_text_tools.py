"""Tools that are asked for in text count as native ones do: places, CPU pressure, hints, the graph."""

import hashlib
import json
from typing import Any

import pytest

from gateway.core.snapshot import SessionViews
from gateway.dashboard.graphs import view_graphs
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId
from tests.server.bench import Bench, completion, post, sends

NATIVE, REACT, CODE = "native", "ReAct", "a code block"
SYSTEM = {
    NATIVE: "You mend programs.",
    REACT: "You mend programs. Answer with Thought, Action, Action Input; or with Final Answer.",
    CODE: "You mend programs. Answer with one bash block.",
}
TURNS, TASKS = 4, 3
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def call_id(of: str, number: int) -> str:
    return "call_" + hashlib.sha256(f"{of} {number}".encode()).hexdigest()[:24]


def asks(style: str, of: str, number: int) -> dict[str, Any]:
    command = f"grep -n {of}-{number * 7919} main.py"
    if style == NATIVE:
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id(of, number), "type": "function", "function": function}],
        }
    text = {
        REACT: f'Thought: look for it\nAction: bash\nAction Input: {{"command": "{command}"}}',
        CODE: f"The function {of} may be called elsewhere, so I look by name.\n\n```bash\n{command}\n```",
    }[style]
    return {"role": "assistant", "content": text}


def result(style: str, of: str, number: int) -> dict[str, Any]:
    out = f"{number}: def {of}(): return {number * 31}"
    if style == NATIVE:
        return {"role": "tool", "tool_call_id": call_id(of, number), "content": out}
    if style == REACT:
        return {"role": "user", "content": f"Observation: {out}"}
    return {"role": "user", "content": f"<returncode>0</returncode>\n<output>\n{out}\n</output>"}


class Run:
    """Tasks of one agent, one after the other; what the gateway makes of them."""

    def __init__(self, bench: Bench, style: str) -> None:
        self.bench, self.style = bench, style
        self.records: list[Any] = []
        take = bench.gateway.driver._on_records

        def watch(records: list[Any]) -> None:
            self.records.extend(records)
            take(records)

        bench.gateway.driver._on_records = watch

    async def task(self, of: str, *, turns: int = TURNS) -> list[Any]:
        """After each turn: whether its tools run, for the dashboard, admission and CPU pressure."""
        messages = [
            {"role": "system", "content": SYSTEM[self.style]},
            {"role": "user", "content": f"Mend the function {of} in main.py, which fails its tests."},
        ]
        seen = []
        for number in range(turns):
            is_last = number == TURNS - 1
            said = {"role": "assistant", "content": f"Final Answer: {of} is mended."}
            said = said if is_last else asks(self.style, of, number)
            self.bench.backend.script = sends(completion(said))
            body = {"model": "m", "messages": messages}
            body |= {"tools": TOOLS} if self.style == NATIVE else {}
            assert (await self.bench.ask(post(json.dumps(body).encode()))).status == 200
            messages += [said] if is_last else [said, result(self.style, of, number)]
            seen.append(self.look())
        return seen

    def look(self) -> tuple[Any, ...]:
        brain = self.bench.brain
        newest = next(brain.sessions.sessions.newest_first())
        state = SessionViews(brain).view(newest, now=0.0).state
        pools = brain.admission.pools.values()
        with_tools = sum(sum(pool.places.with_tools.values()) for pool in pools)
        return state, brain.sessions.tools.active_sessions, with_tools, brain.admission._cpu.active

    def of_type(self, kind: type) -> list[Any]:
        return [each for each in self.records if isinstance(each, kind)]

    def tools_seen(self) -> int:
        cpu = self.bench.brain.admission._cpu
        return cpu._seen + len(cpu._unread)

    def graph(self) -> set[tuple[str, str]]:
        (graph,) = view_graphs(self.bench.brain.sessions.conversations.graphs)
        labels = {node.id: node.label for node in graph.nodes}
        return {(labels[edge.from_], labels[edge.to]) for edge in graph.edges}

    def reuse(self) -> float:
        """What engines are told while tools run: how likely the state is to be used again."""
        book = self.bench.brain.sessions
        newest = next(self.bench.brain.sessions.sessions.newest_first())
        thread = newest.log[-1].thread.id
        known = book.conversations.thread(thread)
        assert known is not None
        found = book.conversations.predict(known)
        assert found is not None
        decision = book.hints.retention(known, found, ReplicaId("default-0"), None)
        assert decision is not None
        return decision.reuse


@pytest.mark.parametrize("style", [REACT, CODE])
async def test_they_are_seen_as_native_ones_are(start, style):
    native, text = Run(await start(), NATIVE), Run(await start(), style)
    expected: list[Any] = []
    for number in range(TASKS):
        expected, seen = await native.task(f"f{number}"), await text.task(f"f{number}")
        if style == REACT or number:  # a code block counts once its results were seen to look alike
            assert seen == expected
    assert [state for state, *_ in expected] == ["tool"] * (TURNS - 1) + ["idle"]
    starts = [[each.names for each in run.of_type(rec.ToolStart)] for run in (native, text)]
    assert starts[0][-6:] == starts[1][-6:] == [("bash",)] * 6
    ends = [[each.names for each in run.of_type(rec.ToolEnd)] for run in (native, text)]
    assert ends[0] == ends[1] and native.tools_seen() == len(ends[0])
    assert text.tools_seen() == len(ends[0]) - (style == CODE), "what nobody knew to be a call pressed nobody"
    assert native.graph() <= text.graph()
    await native.task("last", turns=2)
    await text.task("last", turns=2)
    assert text.reuse() == pytest.approx(native.reuse(), abs=0.1) and native.reuse() > 0.5
