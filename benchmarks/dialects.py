"""How agents speak each protocol: the head that their SDK sends, what a turn adds, what stands around it.

Chat is what the OpenAI SDK for Python sends: its HTTP library writes a head and a body apart. Responses is
Codex, Messages is Claude Code; both write a request in one go.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

MODEL: Final = "bench-model"
_DESCRIPTION: Final = "Run a command in a shell."
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "The command to run in the shell."}},
    "required": ["command"],
}

_OPENAI: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 3.52.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 3.52.0\r\n"
    b"X-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
    b"X-Stainless-Runtime-Version: 3.12.3\r\nAuthorization: Bearer EMPTY\r\nX-Stainless-Async: false\r\n"
    b"X-Stainless-Retry-Count: 0\r\nX-Stainless-Read-Timeout: 600\r\nContent-Length: %d\r\n\r\n"
)
_CODEX: Final = (
    b"POST /v1/responses HTTP/1.1\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer EMPTY\r\noriginator: codex_exec\r\n"
    b"user-agent: codex_exec/0.169.0 (Debian 12.0.0; x86_64) dumb (codex_exec; 0.169.0)\r\n"
    b"host: gateway\r\ncontent-length: %d\r\n\r\n"
)
"""Without the headers that name its session, so that it has to be found."""
_CLAUDE: Final = (
    b"POST /v1/messages?beta=true HTTP/1.1\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
    b"User-Agent: claude-cli/2.1.197 (external, sdk-cli)\r\nX-Stainless-Arch: x64\r\nX-Stainless-Lang: js\r\n"
    b"X-Stainless-OS: Linux\r\nX-Stainless-Package-Version: 0.94.0\r\nX-Stainless-Retry-Count: 0\r\n"
    b"X-Stainless-Runtime: node\r\nX-Stainless-Runtime-Version: v26.3.0\r\nX-Stainless-Timeout: 600\r\n"
    b"anthropic-beta: claude-code-20250219,interleaved-thinking-2025-05-14\r\n"
    b"anthropic-dangerous-direct-browser-access: true\r\nanthropic-version: 2023-06-01\r\n"
    b"x-api-key: EMPTY\r\nx-app: cli\r\nConnection: keep-alive\r\nHost: gateway\r\n"
    b"Accept-Encoding: gzip, deflate, br, zstd\r\nContent-Length: %d\r\n\r\n"
)


Call = tuple[str, str, str]
"""Its id, the tool's name, and the arguments as JSON."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    head: bytes
    """With a place for the length of the body."""
    is_apart: bool = False
    """The head is written before the body, by itself."""
    items: str = "messages"
    """The name of the field that holds the conversation."""
    opening: Callable[[str, str], list[Any]]
    """The first items: a system prompt and a user's."""
    user: Callable[[str], Any] = lambda text: {"role": "user", "content": text}
    asks: Callable[[str, list[Call]], list[Any]]
    """What the model's answer becomes: its text, and its calls."""
    brings: Callable[[str, str], Any]
    """The result of the call of that id."""
    tool: Callable[[str], Any]
    fields: dict[str, Any]
    """The rest of the body."""

    @property
    def path(self) -> bytes:
        return self.head.split(b" ", 2)[1].partition(b"?")[0]

    def body(self, items: list[Any], tools: Sequence[str] = ("bash",), **more: Any) -> dict[str, Any]:
        return {self.items: items, **self.fields, "tools": [self.tool(name) for name in tools], **more}


def _chat_calls(text: str, calls: list[Call]) -> list[Any]:
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return [{"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}]


def _responses_calls(text: str, calls: list[Call]) -> list[Any]:
    made = [
        {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}
        for call_id, name, arguments in calls
    ]
    content = [{"type": "output_text", "text": text}]
    return [{"type": "message", "role": "assistant", "content": content}, *made]


def _messages_calls(text: str, calls: list[Call]) -> list[Any]:
    made = [
        {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
        for call_id, name, arguments in calls
    ]
    return [{"role": "assistant", "content": [{"type": "text", "text": text}, *made]}]


def _messages_result(call_id: str, text: str) -> dict[str, Any]:
    result = {"tool_use_id": call_id, "type": "tool_result", "content": text, "is_error": False}
    return {"role": "user", "content": [result]}


def _message(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _function(name: str) -> dict[str, Any]:
    return {"name": name, "description": _DESCRIPTION, "parameters": _PARAMETERS}


CHAT: Final = Dialect(
    name="chat",
    head=_OPENAI,
    is_apart=True,
    opening=lambda system, user: [{"role": "system", "content": system}, {"role": "user", "content": user}],
    asks=_chat_calls,
    brings=lambda call_id, text: {"role": "tool", "tool_call_id": call_id, "content": text},
    tool=lambda name: {"type": "function", "function": _function(name)},
    fields={"model": MODEL, "max_tokens": 64, "temperature": 0},
)
RESPONSES: Final = Dialect(
    name="responses",
    head=_CODEX,
    items="input",
    opening=lambda system, user: [_message(system, "developer"), _message(user)],
    user=_message,
    asks=_responses_calls,
    brings=lambda call_id, text: {"type": "function_call_output", "call_id": call_id, "output": text},
    tool=lambda name: {"type": "function", **_function(name)},
    fields={"model": MODEL, "instructions": "You are a coding agent.", "store": False, "tool_choice": "auto"},
)
MESSAGES: Final = Dialect(
    name="messages",
    head=_CLAUDE,
    opening=lambda system, user: [
        {"role": "user", "content": [{"type": "text", "text": text} for text in (system, user)]}
    ],
    asks=_messages_calls,
    brings=_messages_result,
    tool=lambda name: {"name": name, "description": _DESCRIPTION, "input_schema": _PARAMETERS},
    fields={
        "model": MODEL,
        "max_tokens": 32000,
        "system": [{"type": "text", "text": "You are a Claude agent."}],
    },
)
DIALECTS: Final = (CHAT, RESPONSES, MESSAGES)
