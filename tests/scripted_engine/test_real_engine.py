"""A real vLLM plays scripts: every route, streaming, grammars, prefix cache, preemption.

One engine for the whole file. Its KV cache holds 5,120 tokens, so the crowd test preempts.
"""

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from scripted_engine.process import EngineOptions, ScriptedEngine

pytestmark = [pytest.mark.heavy, pytest.mark.engine, pytest.mark.timeout(300)]

TINY_CACHE = ("--num-gpu-blocks-override", "160", "--max-num-batched-tokens", "512")
LOOK = {"text": "I look at the code.", "tool_calls": [{"name": "bash", "arguments": {"command": "cat a.py"}}]}
BOTH = {
    "tool_calls": [
        {"name": "bash", "arguments": {"command": "ls"}},
        {"name": "read", "arguments": {"path": "ü/日本.txt"}},
    ]
}
FIX = {"turns": [LOOK, BOTH, {"text": "Fixed. 🎉"}], "without_tools": "A title", "final": "Nothing is left."}
CROWD = 8
WORDS = ["alpha", "return", "self.value", "日本", "{x}", "🎉", "the quick brown fox", "\n\n"]


def long_text(seed: int) -> str:
    rng = random.Random(seed)
    return f"Report {seed}: " + " ".join(rng.choices(WORDS, k=300)).strip()


def long_turn(seed: int) -> dict[str, Any]:
    return {
        "text": long_text(seed),
        "tool_calls": [{"name": "bash", "arguments": {"command": f"echo {seed}"}}],
    }


SCRIPTS = {
    "default": {"turns": [{"text": "No script."}]},
    "scripts": {"fix": FIX, **{f"long-{n}": {"turns": [long_turn(n)]} for n in range(CROWD)}},
}


def function(name: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"name": name, "parameters": {**schema, "additionalProperties": False}}


FUNCTIONS = [function("bash", "command"), function("read", "path")]
CHAT_TOOLS = [{"type": "function", "function": each} for each in FUNCTIONS]
RESPONSES_TOOLS = [{"type": "function", **each} for each in FUNCTIONS]
MESSAGES_TOOLS = [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS]
USER = {"role": "user", "content": "please [[script:fix]] it"}


class Client:
    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine

    def send(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps({"model": "scripted", **body}).encode()
        request = urllib.request.Request(self.engine.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            return str(answer.read().decode())

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.send(path, body))

    def chat(self, *messages: Any, tools: bool = True, **more: Any) -> Any:
        offered = {"tools": CHAT_TOOLS} if tools else {}
        return self.ask("/v1/chat/completions", {"messages": list(messages) or [USER], **offered, **more})

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        lines = self.send(path, {**body, "stream": True}).splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with ScriptedEngine(SCRIPTS, EngineOptions(max_model_len=4096, extra_args=TINY_CACHE)) as engine:
        yield Client(engine)


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = message.get("tool_calls") or []
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def results_for(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message["tool_calls"]]


def test_a_conversation_by_chat_completions(client: Client) -> None:
    history: list[Any] = [{"role": "system", "content": "word " * 200}, USER]
    expected = [
        ("I look at the code.", [("bash", {"command": "cat a.py"})], "tool_calls"),
        ("", [("bash", {"command": "ls"}), ("read", {"path": "ü/日本.txt"})], "tool_calls"),
        ("Fixed. 🎉", [], "stop"),
        ("Nothing is left.", [], "stop"),
    ]
    cached = []
    for text, calls, reason in expected:
        answer = client.chat(*history)
        message = answer["choices"][0]["message"]
        assert (message["content"] or "").strip() == text
        assert calls_of(message) == calls
        assert answer["choices"][0]["finish_reason"] == reason
        usage = answer["usage"]
        cached.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
        history += [message, *(results_for(message) if calls else [{"role": "user", "content": "go on"}])]
    # Each turn's prompt extends what the turn before it left in the cache, generated tokens included.
    for (earlier, _), (_, hit) in pairwise(cached):
        assert hit >= earlier - 32


def test_chat_streams_token_by_token(client: Client) -> None:
    body = {"messages": [USER], "tools": CHAT_TOOLS}
    most = 0
    for _ in range(5):  # on a busy machine several tokens may come as one chunk
        chunks = client.stream("/v1/chat/completions", body)
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        texts = [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]
        deltas = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
        arguments = "".join(delta["function"].get("arguments") or "" for delta in deltas)
        assert "".join(texts).strip() == "I look at the code."
        assert arguments == '{"command": "cat a.py"}'
        assert choices[-1]["finish_reason"] == "tool_calls"
        most = max(most, len(texts))
        if most >= 4:
            return
    raise AssertionError(f"in {most} chunks at most")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "bash"}}])
def test_a_forced_tool_call_is_the_scripts(client: Client, choice: Any) -> None:
    message = client.chat(tool_choice=choice)["choices"][0]["message"]
    assert calls_of(message) == [("bash", {"command": "cat a.py"})]


def test_a_schema_the_script_does_not_fit_is_obeyed_and_ends(client: Client) -> None:
    properties = {"title": {"type": "string"}, "n": {"type": "integer"}, "k": {"enum": ["a", "b"]}}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(properties)}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
    choice = client.chat(tools=False, response_format=wanted, max_tokens=100)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert sorted(json.loads(choice["message"]["content"])) == ["k", "n", "title"]


def test_a_conversation_by_responses(client: Client) -> None:
    start = {"input": [{"role": "user", "content": "[[script:fix]]"}], "tools": RESPONSES_TOOLS}
    events = client.stream("/v1/responses", start)
    assert events[-1]["type"] == "response.completed"
    first = events[-1]["response"]
    assert sum(event["type"] == "response.output_text.delta" for event in events) >= 2
    assert client.ask(f"/v1/responses/{first['id']}")["output"] == first["output"]
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    assert json.loads(call["arguments"]) == {"command": "cat a.py"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    chained = {"input": [result], "previous_response_id": first["id"], "tools": RESPONSES_TOOLS}
    names = [item.get("name") for item in client.ask("/v1/responses", chained)["output"]]
    assert names == ["bash", "read"]


def test_a_conversation_by_messages(client: Client) -> None:
    ask = {"role": "user", "content": [{"type": "text", "text": "[[script:fix]]"}]}
    body: dict[str, Any] = {"max_tokens": 200, "tools": MESSAGES_TOOLS, "system": "Be brief."}
    events = client.stream("/v1/messages", {**body, "messages": [ask]})
    partial = [event["delta"].get("partial_json", "") for event in events if "delta" in event]
    assert json.loads("".join(partial)) == {"command": "cat a.py"}
    assert [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"] == [
        "tool_use"
    ]
    said = client.ask("/v1/messages", {**body, "messages": [ask]})
    used = next(block for block in said["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": "ok"}
    history = [ask, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": [result]}]
    following = client.ask("/v1/messages", {**body, "messages": history})
    assert [block["name"] for block in following["content"]] == ["bash", "read"]


def preemptions(client: Client) -> float:
    lines = client.send("/metrics").splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_preemptions_total")
    )


def test_a_crowd_is_preempted_and_every_reply_is_exact(client: Client) -> None:
    """Chunked prefill too: a prompt of 1,000 tokens takes two steps of 512."""

    def play(seed: int) -> bool:
        system = {"role": "system", "content": " ".join(f"w{seed}-{n}" for n in range(200))}
        forced: dict[str, Any] = {"tool_choice": "required"} if seed % 3 == 1 else {}
        answer = client.chat(system, {"role": "user", "content": f"[[script:long-{seed}]]"}, **forced)
        message = answer["choices"][0]["message"]
        text = "" if forced else long_text(seed)
        told = (message["content"] or "").removesuffix("\n")
        return told == text and calls_of(message) == [("bash", {"command": f"echo {seed}"})]

    before = preemptions(client)
    with ThreadPoolExecutor(CROWD) as pool:
        assert all(pool.map(play, range(CROWD)))
    assert preemptions(client) > before
