"""Recordings made here: small runs of several shapes, in the format that `turnpike eval sessions` reads."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

from tests.given_ids import given

TOOLS = [{"type": "function", "function": {"name": "bash"}}]


class Recorder:
    """Writes exchanges down as they happen; `now` is the clock of all of them."""

    def __init__(self, client: str = "tiny") -> None:
        self.client = client
        self.lines: list[dict[str, Any]] = []
        self.now = 1000.0

    def exchange(
        self,
        session: str,
        messages: list[dict[str, Any]],
        response: Any = None,
        *,
        thread: str | None = None,
        tools: Any = TOOLS,
        status: int = 200,
        lasts: float = 0.5,
        path: str = "/v1/chat/completions",
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        self.now += 1
        line = {
            "t": self.now,
            "t_first_byte": self.now,
            "t_end": self.now + lasts,
            "method": "POST",
            "path": path,
            "headers": {"user-agent": "tiny/1", **(headers or {})},
            "body": {"model": "m", "messages": messages, "tools": tools, **(body or {})},
            "status": status,
            "response": response,
            "finish": "stop" if response else None,
            "response_id": "chatcmpl-1" if response else None,
            "fault": None,
            "cut_after": None,
            "client_disconnected": None,
            "truth": {"client": self.client, "run": session, "session": session, "thread": thread},
            **fields,
        }
        self.lines.append(line)
        return line

    def run(self, session: str, steps: int = 3, **how: Any) -> list[dict[str, Any]]:
        """One agent that calls a tool at every step, then is done."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Please fix the bug in {session}"}]
        for step in range(steps):
            call = {
                "id": given(f"{session}.{how.get('thread')}.{step}"),
                "type": "function",
                "function": {"name": "bash", "arguments": "{}"},
            }
            answer = {"role": "assistant", "content": f"Step {step}.", "tool_calls": [call]}
            self.exchange(session, messages, answer, **how)
            messages = [*messages, answer, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]
        done = {"role": "assistant", "content": f"All of {session} is done."}
        self.exchange(session, messages, done, **how)
        return [*messages, done]

    def write(self, path: Path) -> Path:
        data = "".join(json.dumps(line) + "\n" for line in self.lines).encode() + b"\n"
        if path.suffix == ".xz":
            path.write_bytes(lzma.compress(data))
        elif path.suffix == ".gz":
            path.write_bytes(gzip.compress(data))
        else:
            path.write_bytes(data)
        return path
