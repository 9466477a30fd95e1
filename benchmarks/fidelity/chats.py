"""Agents that chat, live and simulated, and their sessions with as many tokens as they send.

A gateway decides by the tools that are called, so live and simulated agents must call the same ones. Live
agents chat (`chat_agents.py`). A workload says how long prompts are, but the template and the calls make them
longer, so tokens are counted as the engines count.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import aiohttp
import msgspec
import transformers

from benchmarks.live import MODEL, Kind
from benchmarks.verdict import Verdict
from lab.engine import tiny_model
from lab.simulator.driver import ClientConfig
from lab.simulator.live import chat_agents
from lab.simulator.live.chat_agents import ChatAgents, Talk, scripts, talk, vocabulary
from lab.simulator.live.endpoint import Question, Reply
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef

CLIENT: Final = ClientConfig(says_when_over=False)
"""As they are."""
SWITCHING: Final = Kind(
    name="switching",
    seed=41,
    turns=(5, 6),
    first_tokens=(1_500, 2_500),
    grows_by=(50, 200),
    output_tokens=(30, 60),
    tool_s=1.0,
    apart_s=4.0,
)
APPENDING: Final = msgspec.structs.replace(
    SWITCHING, name="appending", seed=42, turns=(5, 8), first_tokens=(600, 1_200)
)
"""Half of the agents *switch*: each turn stands under the system prompt of the tool that was called, so that
of a prompt nothing is cached but what was computed ahead. The others *append*."""
TOOLS: Final = ("search", "fetch", "read", "edit", "check")
SYSTEMS: Final = ("plan", *TOOLS)
SYSTEM_TOKENS: Final = 400


class Agents(ChatAgents):
    """Those that switch say what they say under the system prompt of the tool that was called."""

    def __init__(self, client: aiohttp.ClientSession, url: str, talks: dict[str, Talk], systems: Any) -> None:
        super().__init__(client, url, MODEL, talks)
        self._systems: dict[str, str] = systems

    async def ask(self, question: Question) -> Reply:
        name = question.session
        said = self._said.setdefault(name, list(self._talks[name].opening))
        if name.startswith(SWITCHING.name):
            made = sum(message["role"] == "assistant" for message in said)
            said[0] = {"role": "system", "content": self._systems[SYSTEMS[made]]}
        return await super().ask(question)


def said(sessions: Iterable[Session]) -> tuple[dict[str, Talk], dict[str, str]]:
    """In each session, and the system prompts by name. Sessions that switch call each of `TOOLS` in turn."""
    words = vocabulary()
    talks = {each.id: talk(each, words) for each in sessions}
    for name, each in talks.items():
        for turn, tool in zip(each.turns, TOOLS, strict=False) if name.startswith(SWITCHING.name) else ():
            for call in turn.get("tool_calls", ()):
                call["name"] = tool
    systems = {part: " ".join(f"{part} {word}" for word in words[: SYSTEM_TOKENS // 2]) for part in SYSTEMS}
    return talks, systems


class Chats:
    def __init__(self, calibration: Sequence[Session], test: Sequence[Session]) -> None:
        """Names of sessions are different in both."""
        self._talks, self._systems = said([*calibration, *test])
        self._agents: list[Agents] = []
        self._count = Counting()
        self.calibration, self.test = self._counted(calibration), self._counted(test)
        """With the tokens that agents send and get."""
        self.scripts = scripts(self._talks)
        """For the engines."""

    def _counted(self, sessions: Sequence[Session]) -> list[Session]:
        return [counted(each, self._talks[each.id], self._systems, self._count) for each in sessions]

    def ask(self, client: aiohttp.ClientSession, url: str) -> Agents:
        """As `compare.Ask`."""
        self._agents.append(Agents(client, url, self._talks, self._systems))
        return self._agents[-1]

    def judge(self, verdict: Verdict) -> None:
        lengths = {
            (each.id, at): turn.input_tokens
            for each in (*self.calibration, *self.test)
            for at, turn in enumerate(each.threads[0].turns)
        }
        turns = [turn for agents in self._agents for turn in agents.turns]
        other = sum(turn.prompt_tokens != lengths[turn.session, turn.turn] for turn in turns)
        verdict.at_most("prompts_of_another_length", other, 0)


class Counting:
    """Tokens, as the engines' chat template makes them."""

    def __init__(self) -> None:
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_model.build())

    def __call__(self, messages: list[dict[str, Any]], *, asks: bool = False) -> int:
        """`asks`: the model is to go on."""
        text = self._tokenizer.apply_chat_template(
            messages, tools=chat_agents.TOOLS, tokenize=False, add_generation_prompt=asks
        )
        return len(self._tokenizer(text)["input_ids"])


def counted(session: Session, talk: Talk, systems: dict[str, str], count: Counting) -> Session:
    """The session with the tokens that its agent sends and gets."""
    switches = session.id.startswith(SWITCHING.name)
    messages, turns, shared = list(talk.opening), list[Turn](), 0
    for at, (turn, answer) in enumerate(zip(session.threads[0].turns, talk.turns, strict=True)):
        if switches:
            messages[0] = {"role": "system", "content": systems[SYSTEMS[at]]}
        head, known = count(messages[:1]), count(messages)
        shared = shared or head
        messages += [{"role": "tool", "content": result} for result in talk.results[at - 1 : at]]
        asked = count(messages, asks=True)
        opens: dict[str, Any] = {}
        if at and switches:
            opens = {"shared_key": SYSTEMS[at], "shared_tokens": head, "result_tokens": asked - known}
        elif at:
            before = turns[-1].input_tokens + turns[-1].output_tokens
            opens = {"prefix_of": TurnRef(0, at - 1), "prefix_tokens": before}
        messages.append(_message(answer))
        called = answer.get("tool_calls", ())
        turns.append(
            Turn(
                input_tokens=asked,
                output_tokens=count(messages) - asked - 1,  # the template ends the line
                tools=tuple(Tool(name=each["name"], duration_s=turn.tools[0].duration_s) for each in called),
                **opens,
            )
        )
    key = SYSTEMS[0] if switches else "agent"
    thread = Thread(turns=tuple(turns), shared_key=key, shared_tokens=shared)
    return msgspec.structs.replace(session, threads=(thread,))


def _message(answer: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"function": {"name": each["name"], "arguments": json.dumps(each["arguments"])}}
        for each in answer.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": answer["text"], **({"tool_calls": calls} if calls else {})}
