"""What agents say, as bytes that are ready to be sent: requests whose conversation grows or stays small.

A request repeats the conversation so far. Its last two messages are the assistant's newest tool call and
the call's result, under the id that the newest response carried; so a gateway that follows tool call ids
finds the session, and one that reads the body has to read all of it. Everything but the ids is made in
advance, from a seed: the generator of load copies nothing and encodes nothing.
"""

import json
import random
from typing import Any, Final

CALL_ID_PREFIX: Final = b"chatcmpl-tool-"
CALL_ID_BYTES: Final = len(CALL_ID_PREFIX) + 32
"""vLLM's form: the prefix and 32 hexadecimal digits."""
MODEL: Final = "bench-model"

_WORDS: Final = (
    "def return self raise ValueError if not in for path read_text() assert None True import from test "
    "session request parser buffer header offset length answer token result state error == != -> {} [0] "
    "\"utf-8\" 'name' # TODO \\d+ \\n // && | $HOME /usr/lib/python3 0x1f 4096 3.14 naïve → …"
).split()

_HEAD: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAccept: application/json\r\n"
    b"Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.8.1\r\n"
    b"X-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
    b"X-Stainless-Runtime-Version: 3.12.3\r\nX-Stainless-Async: false\r\nX-Stainless-Retry-Count: 0\r\n"
    b"X-Stainless-Read-Timeout: 600\r\nAuthorization: Bearer EMPTY\r\nContent-Length: %d\r\n\r\n"
)
"""As the OpenAI SDK sends it."""


class Conversation:
    """The requests of one agent, one after the other, without end.

    Starts with about `first_bytes` of conversation and grows, turn by turn, by about `turn_bytes`. After
    `turns` turns it starts over as a new session; with a single turn, it stays as it is and only the ids
    change. The bytes are valid until the next call of `request`.
    """

    def __init__(
        self, rng: random.Random, *, first_bytes: int, turn_bytes: int, turns: int, stream: bool
    ) -> None:
        self._tail = _tail(stream=stream)
        self._messages = bytearray(b'{"messages":[')
        self._messages += _encoded({"role": "system", "content": text(rng, 300)})
        self._messages += b"," + _encoded({"role": "user", "content": text(rng, 200)})
        while len(self._messages) + len(self._tail) < first_bytes - turn_bytes:
            self._append_turn(rng, turn_bytes)
        self._ends: list[int] = []
        self._slots: list[tuple[int, int]] = []
        for _ in range(turns):
            self._slots.append(self._append_turn(rng, turn_bytes))
            self._ends.append(len(self._messages))
        self._turn = 0

    def skip_to(self, turn: int) -> None:
        """Continues there; what went before is as it was left."""
        self._turn = turn % len(self._ends)

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest body."""
        return self._ends[0] + len(self._tail), self._ends[-1] + len(self._tail)

    def request(self, call_id: bytes | None) -> list[bytes | memoryview]:
        """The next request, which answers the tool call of this id; None before there was any."""
        turn = self._turn
        self._turn = (turn + 1) % len(self._ends)
        if call_id is not None:
            for slot in self._slots[turn]:
                self._messages[slot : slot + CALL_ID_BYTES] = call_id
        end = self._ends[turn]
        return [_HEAD % (end + len(self._tail)), memoryview(self._messages)[:end], self._tail]

    def _append_turn(self, rng: random.Random, size: int) -> tuple[int, int]:
        """Returns where the call's id stands in the call and in its result."""
        call_id = (CALL_ID_PREFIX + b"%032x" % rng.getrandbits(128)).decode()
        arguments = json.dumps({"command": text(rng, size // 6)})
        call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        start = len(self._messages)
        self._messages += b"," + _encoded(
            {"role": "assistant", "content": text(rng, size // 6), "tool_calls": [call]}
        )
        result = len(self._messages)
        self._messages += b"," + _encoded(
            {"role": "tool", "tool_call_id": call_id, "content": text(rng, size // 3)}
        )
        id_bytes = call_id.encode()
        return self._messages.index(id_bytes, start), self._messages.index(id_bytes, result)


def text(rng: random.Random, size: int) -> str:
    """Something like source code, with the quotes, backslashes and line ends that JSON has to escape."""
    words: list[str] = []
    while size > 0:
        word = rng.choice(_WORDS) + (rng.choice(("\n    ", "\n")) if rng.random() < 0.1 else " ")
        words.append(word)
        size -= len(word)
    return "".join(words)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _tail(*, stream: bool) -> bytes:
    parameters = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The command to run in the shell."}},
        "required": ["command"],
    }
    tool = {"name": "bash", "description": "Run a command in a shell.", "parameters": parameters}
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "stream": stream, "temperature": 0}
    if stream:
        fields["stream_options"] = {"include_usage": False}
    fields["tools"] = [{"type": "function", "function": tool}]
    return b"]," + _encoded(fields)[1:]
