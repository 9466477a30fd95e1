"""What is foreseen, on a real engine: it takes such a request, and the next turn finds all of it."""

import json
import urllib.request
from typing import Any

import pytest

from gateway.domain.request import Protocol, Work
from gateway.prefill_ahead.history_rewrite import echo, plain_manner
from gateway.prefill_ahead.next_prompt import next_prompt, read_head
from gateway.responses.content import ResponseContent
from gateway.responses.observer import observe
from tests.engines import MODEL, Fleet

LONG = " ".join(f"word{number}" for number in range(300))
CALL = {"text": "Looking.", "tool_calls": [{"name": "ls", "arguments": {"path": "."}}] * 2}
SCRIPTS = {"ahead": {"turns": [CALL, {"text": "Done."}]}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
MESSAGES_TOOLS = [{"name": "ls", "input_schema": {"type": "object"}}]
BLOCKS = 3
"""Of 16 tokens, by which the two may differ: the results, and how an answer begins."""


def chat(system: str, *messages: Any) -> dict[str, Any]:
    said = [{"role": "system", "content": system}, *messages]
    return {"model": MODEL, "messages": said, "tools": CHAT_TOOLS}


def messages(system: str, *said: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 99, "system": system, "messages": said, "tools": MESSAGES_TOOLS}


def results(protocol: Protocol, message: dict[str, Any]) -> list[dict[str, Any]]:
    if protocol is Protocol.CHAT:
        ids = [each["id"] for each in message["tool_calls"]]
        return [{"role": "tool", "tool_call_id": each, "content": "main.py README.md"} for each in ids]
    ids = [each["id"] for each in message["content"] if each["type"] == "tool_use"]
    found = [{"type": "tool_result", "tool_use_id": each, "content": "main.py README.md"} for each in ids]
    return [{"role": "user", "content": found}]


def post(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: bytes = response.read()
    return answer


@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("protocol", "path", "make"),
    [(Protocol.CHAT, "/v1/chat/completions", chat), (Protocol.MESSAGES, "/v1/messages", messages)],
    ids=["chat", "messages"],
)
def test_the_next_turn_finds_what_was_foreseen(
    fleet: Fleet, protocol: Protocol, path: str, make: Any, streams: bool
) -> None:
    fleet.play({"scripts": SCRIPTS})
    url = fleet.scripted[0].url + path
    named = f"{protocol.value} {streams}"  # so that nothing is found of another run
    asks = {"role": "user", "content": f"[[script:ahead]] {named} {LONG}"}
    first = json.dumps({**make(f"You plan. {named}", asks), "stream": streams}).encode()

    said = ResponseContent()
    kind = "text/event-stream" if streams else "application/json"
    observer = observe(protocol, Work.GENERATE, kind, None, content=said)
    observer.feed(post(url, first))
    assert observer.answer(200).has_terminal and said.is_whole and len(said.parts) == 3

    under = f"You read. {named} {LONG}"
    head = read_head(json.dumps(make(under)).encode())
    foreseen = next_prompt(protocol, first, said, plain_manner(protocol), head)
    assert foreseen is not None
    ahead = observe(protocol, Work.GENERATE, "application/json", None)
    ahead.feed(post(url, foreseen))
    computed = ahead.answer(200).usage

    echoed = echo(protocol, said, plain_manner(protocol))
    last = make(under, asks, echoed, *results(protocol, echoed))
    observer = observe(protocol, Work.GENERATE, "application/json", None)
    observer.feed(post(url, json.dumps(last).encode()))
    found = observer.answer(200).usage
    assert computed.prompt_tokens is not None and found.cached_tokens is not None
    assert (computed.cached_tokens or 0) < 0.1 * computed.prompt_tokens, "it was computed"
    assert computed.prompt_tokens - BLOCKS * 16 <= found.cached_tokens <= computed.prompt_tokens
    assert computed.output_tokens == 1
