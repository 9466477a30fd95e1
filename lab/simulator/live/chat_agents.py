"""Sessions of a workload as agents that chat: each turn but the last calls a tool and brings its result.

They do what agents do that are told nothing but a base URL: the conversation so far goes to
`/v1/chat/completions`, with tools, streamed. A workload has no words, so theirs are made up, one token each;
what the model says is in a script that the engines play (`scripted_engine`). So every gateway gets the
same requests, and the same answers.
"""

import asyncio
import json
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from lab.engine import tiny_model
from lab.simulator.live.endpoint import Endpoint, Question, Reply, TurnedAwayError
from lab.workload.trace.format import Session

TOOL: Final = "run"
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Runs a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]
NAMED_BY: Final = ("x-session-id", "x-smg-routing-key")
"""Headers of those who say which session a request belongs to, as vllm-router and smg want it."""
_CALL_TOKENS: Final = 24
"""Of a call, beside its command's words."""
_COMMAND_WORDS: Final = 4


class Talk(msgspec.Struct, frozen=True):
    """What is said in one session."""

    opening: list[dict[str, Any]]
    turns: list[dict[str, Any]]
    """Of the model, as a script says them."""
    results: list[str]
    """Of the tool."""


class Turned(msgspec.Struct, frozen=True):
    """One turn that was answered, as the engine counts."""

    session: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    reusable_tokens: int
    """What the turn before left: all of its prompt and its answer."""


def vocabulary() -> list[str]:
    """Words that are one token each, with the blank before them."""
    pieces = json.loads((tiny_model.build() / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(piece[1:] for piece in pieces if re.fullmatch("Ġ[a-z]{3,9}", piece))


def talk(session: Session, vocabulary: Sequence[str]) -> Talk:
    """About as long as the workload says. Of its first conversation alone; others have no part here."""
    thread = session.threads[0]

    def words(name: str, count: int) -> str:
        return " ".join(random.Random(name).choices(vocabulary, k=max(1, count)))  # noqa: S311 - no secret

    first = thread.turns[0].input_tokens - thread.shared_tokens
    task = f"[[script:{session.id}]] {words(f'task {session.id}', first)}"
    turns, results = [], []
    for at, turn in enumerate(thread.turns):
        name = f"{session.id} {at}"
        said: dict[str, Any] = {"text": words(f"said {name}", turn.output_tokens - _CALL_TOKENS)}
        if at + 1 < len(thread.turns):
            arguments = {"command": words(f"command {name}", _COMMAND_WORDS)}
            said["tool_calls"] = [{"name": TOOL, "arguments": arguments}]
            new = thread.turns[at + 1].input_tokens - turn.input_tokens - turn.output_tokens
            results.append(words(f"result {name}", new))
        turns.append(said)
    shared = words(f"shared {thread.shared_key}", thread.shared_tokens)
    return Talk([{"role": "system", "content": shared}, {"role": "user", "content": task}], turns, results)


def scripts(talks: dict[str, Talk]) -> dict[str, Any]:
    """For the engines."""
    return {"scripts": {session: {"turns": talk.turns} for session, talk in talks.items()}}


class ChatAgents(Endpoint):
    """Each question is the next turn of its session's talk; its tokens do not matter."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        url: str,
        model: str,
        talks: dict[str, Talk],
        *,
        headers: Iterable[str] = (),
    ) -> None:
        """`headers`: those that say which session it is."""
        self._client = client
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._talks = talks
        self._names = tuple(headers)
        self._said: dict[str, list[dict[str, Any]]] = {}
        self._left: dict[str, int] = {}
        self.turns: list[Turned] = []

    async def ask(self, question: Question) -> Reply:
        name = question.session
        messages = self._said.setdefault(name, list(self._talks[name].opening))
        number = sum(message["role"] == "assistant" for message in messages)
        body = {
            "model": self._model, "messages": messages, "tools": TOOLS, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        headers = dict.fromkeys(self._names, name)
        try:
            async with self._client.post(self._url, json=body, headers=headers) as response:
                if response.status != 200:
                    raise TurnedAwayError(None)
                answer = await _heard(response)
        except (aiohttp.ClientError, TimeoutError):
            raise TurnedAwayError(None) from None
        self._next(name, number, answer)
        return answer.reply

    def _next(self, name: str, number: int, answer: "_Answer") -> None:
        self.turns.append(
            Turned(name, number, answer.prompt_tokens, answer.reply.cached_tokens, self._left.get(name, 0))
        )
        self._left[name] = answer.prompt_tokens + answer.reply.output_tokens
        self._said[name].append(answer.message)
        for call in answer.message.get("tool_calls", ()):
            result = self._talks[name].results[number]
            self._said[name].append({"role": "tool", "tool_call_id": call["id"], "content": result})


class _Answer(msgspec.Struct, frozen=True):
    message: dict[str, Any]
    prompt_tokens: int
    reply: Reply


async def _heard(response: aiohttp.ClientResponse) -> _Answer:
    clock = asyncio.get_running_loop().time
    first_s, text = 0.0, ""
    usage: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        event = msgspec.json.decode(line[6:])
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            first_s = first_s or clock()
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                function = part.get("function") or {}
                call = calls.setdefault(part["index"], {"type": "function", "function": {"arguments": ""}})
                if part.get("id"):
                    call["id"] = part["id"]
                if function.get("name"):
                    call["function"]["name"] = function["name"]
                call["function"]["arguments"] += function.get("arguments") or ""
    if not usage:
        raise TurnedAwayError(None)
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    details = usage.get("prompt_tokens_details") or {}
    reply = Reply(
        first_token_s=first_s,
        end_s=clock(),
        token_ids=[],
        cached_tokens=details.get("cached_tokens") or 0,
        output_tokens=usage["completion_tokens"],
        replica=response.headers.get("x-turnpike-replica", ""),
        queued_s=float(response.headers.get("x-turnpike-queue-ms", 0.0)) / 1e3,
    )
    return _Answer(message, usage["prompt_tokens"], reply)
