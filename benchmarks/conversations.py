"""What agents say, as bytes that are ready to be sent: requests whose conversation grows or stays small.

A request repeats the conversation so far. Its last two messages are the assistant's newest tool call and
the call's result, under the id that the newest response carried; so a gateway that follows tool call ids
finds the session, and one that reads the body has to read all of it. Everything but the ids is made in
advance, from a seed: the generator of load copies nothing and encodes nothing.
"""

import json
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.dialects import CHAT, Dialect

SYSTEM_CHARS: Final = 300
CALL_ID_PREFIX: Final = b"chatcmpl-tool-"
CALL_ID_BYTES: Final = len(CALL_ID_PREFIX) + 32
"""vLLM's form: the prefix and 32 hexadecimal digits."""

_WORDS: Final = (
    "def return self raise ValueError if not in for path read_text() assert None True import from test "
    "session request parser buffer header offset length answer token result state error == != -> {} [0] "
    "\"utf-8\" 'name' # TODO \\d+ \\n // && | $HOME /usr/lib/python3 0x1f 4096 3.14 naïve → …"
).split()


class Conversation:
    """The requests of one agent, one after the other, without end.

    Starts with about `first_bytes` of conversation and grows, turn by turn, by about `turn_bytes`. After
    `turns` turns it starts over as a new session; with a single turn, it stays as it is and only the ids
    change. The bytes are valid until the next call of `request`.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        first_bytes: int,
        turn_bytes: int,
        turns: int,
        stream: bool,
        dialect: Dialect = CHAT,
        system: str = "",
    ) -> None:
        """`system`: its system prompt; by default one that no other agent has."""
        self.dialect = dialect
        rest = dialect.body([])
        del rest[dialect.items]
        self._tail = b"]," + _encoded({"stream": stream, **rest})[1:]
        self._messages = bytearray(b'{"%s":[' % dialect.items.encode())
        self._messages += _joined(dialect.opening(system or text(rng, SYSTEM_CHARS), text(rng, 200)))
        while len(self._messages) + len(self._tail) < first_bytes - turn_bytes:
            self._append_turn(rng, turn_bytes)
        self._ends: list[int] = []
        self._slots: list[tuple[int, int]] = []
        for _ in range(turns):
            self._slots.append(self._append_turn(rng, turn_bytes))
            self._ends.append(len(self._messages))
        self._turn = 0
        self._call_id: bytes | None = None

    def answered(self, call_id: bytes | None) -> None:
        """The newest answer asked for a call of this id, which the next request brings the result of."""
        self._call_id = call_id

    def skip_to(self, turn: int) -> None:
        """Continues there; what went before is as it was left."""
        self._turn = turn % len(self._ends)

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest body."""
        return self._ends[0] + len(self._tail), self._ends[-1] + len(self._tail)

    def request(self) -> list[bytes | memoryview]:
        turn = self._turn
        self._turn = (turn + 1) % len(self._ends)
        if self._call_id is not None:
            for slot in self._slots[turn]:
                self._messages[slot : slot + CALL_ID_BYTES] = self._call_id
        end = self._ends[turn]
        head = self.dialect.head % (end + len(self._tail))
        return [head, memoryview(self._messages)[:end], self._tail]

    def _append_turn(self, rng: random.Random, size: int) -> tuple[int, int]:
        """Returns where the call's id stands in the call and in its result."""
        call_id = (CALL_ID_PREFIX + b"%032x" % rng.getrandbits(128)).decode()
        arguments = json.dumps({"command": text(rng, size // 6)})
        start = len(self._messages)
        self._messages += b"," + _joined(
            self.dialect.asks(text(rng, size // 6), [(call_id, "bash", arguments)])
        )
        result = len(self._messages)
        self._messages += b"," + _encoded(self.dialect.brings(call_id, text(rng, size // 3)))
        id_bytes = call_id.encode()
        return self._messages.index(id_bytes, start), self._messages.index(id_bytes, result)


class Crowd:
    """Agents who share a connection: each asks when all others have, and meanwhile its tool runs."""

    def __init__(self, agents: Sequence[Conversation]) -> None:
        self.dialect = agents[0].dialect
        self._agents = deque(agents)

    def answered(self, call_id: bytes | None) -> None:
        self._agents[-1].answered(call_id)

    def request(self) -> list[bytes | memoryview]:
        self._agents.rotate(-1)
        return self._agents[-1].request()


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


def _joined(items: list[Any]) -> bytes:
    return b",".join(map(_encoded, items))
