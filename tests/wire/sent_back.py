"""How agent clients really send answers back, in miniature: for each, the answers of one run and what became
of them in its next requests, as observed on the wire."""

import json
from typing import Any

ARGUMENTS = '{"city": "Paris", "days": [1, 2]}'
COMPACT = '{"city":"Paris","days":[1,2]}'
THOUGHT = "Let me think."


def _calls(arguments: str, *, first: str = "id") -> list[dict[str, Any]]:
    made = []
    for number in range(2):
        call = {"id": f"call_{number}", "type": "function"}
        function = {"name": "look_up", "arguments": arguments}
        made.append({**call, "function": function} if first == "id" else {"function": function, **call})
    return made


def _answer(text: str | None, *, thought: str | None = None, calls: bool = True) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    return {**message, "tool_calls": _calls(ARGUMENTS)} if calls else message


def _echo(text: str | None, arguments: str = ARGUMENTS, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": _calls(arguments), **more}


def _as_text(text: str) -> dict[str, Any]:
    values = [
        {**call, "function": {"name": "look_up", "arguments": json.loads(ARGUMENTS)}} for call in _calls("")
    ]
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": f"{text}\nCalling tools:\n{values}"}],
    }


Run = list[tuple[dict[str, Any], dict[str, Any]]]


def _run(*echoes: dict[str, Any], thought: str | None = None) -> Run:
    texts = ("Step 0. ", None, "Step 2.", "Step 3.", None, "Step 5.")
    return [(_answer(text, thought=thought), each) for text, each in zip(texts, echoes, strict=True)]


def _same(arguments: str, empty: Any, *, strips: bool = False, **more: Any) -> list[dict[str, Any]]:
    texts = ("Step 0." if strips else "Step 0. ", empty, "Step 2.", "Step 3.", empty, "Step 5.")
    return [_echo(text, arguments, **more) for text in texts]


def _without_text(echoes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if k != "content" or v is not None} for each in echoes]


CHAT: dict[str, Run] = {
    "ai-sdk": _run(*_same(COMPACT, "")),
    "ai-sdk, with thoughts": _run(*_same(COMPACT, "", reasoning_content=THOUGHT), thought=THOUGHT),
    "autogen": _run(*_same(ARGUMENTS, None), thought=THOUGHT),
    "cline": _run(*_same(COMPACT, "", reasoning_content=THOUGHT), thought=THOUGHT),
    "langchain": _run(*_same(ARGUMENTS, None), thought=THOUGHT),
    "mini-swe-agent": _run(
        *_same(ARGUMENTS, None, reasoning_content=THOUGHT, provider_specific_fields={"refusal": None}),
        thought=THOUGHT,
    ),
    "openai-agents": _run(*_without_text(_same(ARGUMENTS, None)), thought=THOUGHT),
    "pi": _run(*_same(COMPACT, None, strips=True)),
    "pydantic-ai": _run(*_same(COMPACT, None, reasoning_content=THOUGHT), thought=THOUGHT),
    "qwen-code": _run(*_same(COMPACT, None, reasoning_content=THOUGHT), thought=THOUGHT),
    "smolagents": [(_answer(f"Step {number}."), _as_text(f"Step {number}.")) for number in range(6)],
    "vllm's own field": [
        ({**_answer("Step."), "reasoning": THOUGHT}, _echo("Step.", reasoning=THOUGHT)) for _ in range(6)
    ],
}

_BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": THOUGHT, "signature": "SIG"},
    {"type": "text", "text": "Step."},
    {"type": "tool_use", "id": "toolu_0", "name": "Bash", "input": {"command": "ls", "all": True}},
]
MESSAGES: dict[str, list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]] = {
    "claude-code": [(_BLOCKS, [*_BLOCKS[:2], {**_BLOCKS[2], "cache_control": {"type": "ephemeral"}}])] * 6,
    "one without thoughts": [(_BLOCKS, _BLOCKS[1:])] * 6,
}
