"""The soak's clients: agents that behave, and clients that do not.

Each agent runs one session after another over a connection of its own and keeps count of what became of
every request that it sent. Sessions are told apart by a header, by call ids or by content alone, in all
four protocols.
"""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect

ANSWERED: Final = "answered"
"""The whole answer came, from a replica or from the gateway's brain: it carries receipts."""
TURNED_AWAY: Final = "turned_away"
"""The gateway answered without asking its brain: a bad key, a malformed or late request, no room."""
CUT: Final = "cut"
"""An answer with receipts began and broke off."""
LEFT: Final = "left"
"""The client left without an answer: the gateway may have had the whole request, or not."""
UNHEARD: Final = "unheard"
"""The connection ended before anything came back; the gateway may have had the whole request, or not."""

_RECEIPT: Final = b"x-turnpike-reason"
_KINDS: Final = (*DIALECTS, None)
"""None: `/v1/completions`."""
_ODD_TYPES: Final = 8
_TOOLS: Final = ("bash", "read_file", "grep", "write_file")
_PATIENCE_S: Final = 60.0


class Gone(Exception):  # noqa: N818 - what happened
    """The connection ended."""


class Line:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Line":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def reset(self) -> None:
        accepted = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def read_head(self) -> tuple[int, dict[bytes, bytes]]:
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone from error
        first, *lines = head[:-4].split(b"\r\n")
        fields = (line.partition(b":") for line in lines)
        return int(first.split(b" ")[1]), {name.strip().lower(): value.strip() for name, _, value in fields}

    async def read_body(self, fields: dict[bytes, bytes]) -> bytes:
        try:
            if b"content-length" in fields:
                return await self.reader.readexactly(int(fields[b"content-length"]))
            body = bytearray()
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise Gone from error
        return bytes(body)


class Agent:
    def __init__(self, number: int, port: int, keys: dict[str, str], counts: Counter[str], seed: int) -> None:
        self._port, self._counts = port, counts
        self._dice = random.Random(seed * 1_000_003 + number)
        self._number, self._sessions = number, 0
        self._keys = keys
        self._line: Line | None = None
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            self._sessions += 1
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._session()
            except (OSError, Gone, TimeoutError) as error:
                self._counts[f"session ended by {type(error).__name__}"] += 1
                self._hang_up()
                await asyncio.sleep(0.1)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.reset()
            self._line = None

    async def _session(self) -> None:
        dice = self._dice
        kind = dice.choices(_KINDS, (6, 2, 3, 1))[0]
        how = dice.choice(("stated", "ids", "content"))
        name = f"run-{self._number}-{self._sessions}"
        tenant = dice.choice(sorted(self._keys))
        headers = f"Authorization: Bearer {self._keys[tenant]}\r\n"
        if dice.random() < 0.005:
            headers = "Authorization: Bearer nobody's\r\n"
        if how == "stated":
            headers += dice.choice(("x-turnpike-session", "x-claude-code-session-id")) + f": {name}\r\n"
        # With every tenant there are more types than the gateway may remember, all of them soon seen.
        odd = dice.randrange(_ODD_TYPES) if dice.random() < 0.15 else None
        system = (
            f"You are agent {dice.randrange(6) if odd is None else f'odd-{odd}'}. "
            + "Follow the rules. " * 60
        )
        tools = _TOOLS if odd is None else [f"tool-{odd}-{at}" for at in range(6)]
        task = f"Task {dice.getrandbits(40)}: mend the tests."
        items = [] if kind is None else kind.opening(system, task)
        for _ in range(min(30, 1 + int(dice.expovariate(0.25)))):
            if self.is_over:
                return
            is_stream = dice.random() < 0.8
            body: dict[str, Any] = {"prompt": f"{system}\n{task}", "stream": is_stream}
            if kind is not None:
                body = body_of(kind, system, items, tools if how != "content" else (), is_stream=is_stream)
            body["model"] = "big" if dice.random() < 0.004 else "agent"
            path = "/v1/completions" if kind is None else kind.path.decode()
            answer = await self._turn(path, headers, json.dumps(body).encode())
            if answer is None or kind is None:
                return
            items += echo(kind, answer, is_stream=is_stream)
            await asyncio.sleep(dice.uniform(0.02, 0.4))

    async def _turn(self, path: str, headers: str, body: bytes) -> bytes | None:
        """The answer's body; None if the session goes on no further."""
        dice, counts = self._dice, self._counts
        line = self._line = self._line or await Line.open(self._port)
        head = f"POST {path} HTTP/1.1\r\nHost: gw\r\n{headers}Content-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        whim = dice.random()
        if whim < 0.01:
            await self._misbehave(line, request)
            return None
        counts["sent"] += 1
        line.writer.write(request)
        if whim < 0.03:  # leaves before the answer, politely or not
            await asyncio.sleep(dice.uniform(0.0, 0.03))
            counts[LEFT] += 1
            if dice.random() < 0.5:
                line.writer.write_eof()
                await asyncio.sleep(0.01)
            self._hang_up()
            return None
        try:
            status, fields = await line.read_head()
        except Gone:
            counts[UNHEARD] += 1
            raise
        is_told = _RECEIPT in fields
        if whim < 0.06:  # leaves in the middle of it, perhaps after having stopped reading for long
            if whim < 0.04:
                await asyncio.sleep(dice.uniform(0.5, 4.0))
            counts[CUT if is_told else TURNED_AWAY] += 1
            self._hang_up()
            return None
        try:
            answer = await line.read_body(fields)
        except Gone:
            counts[CUT if is_told else TURNED_AWAY] += 1
            raise
        counts[ANSWERED if is_told else TURNED_AWAY] += 1
        counts[f"status {status}"] += 1
        if fields.get(b"connection") == b"close":
            self._hang_up()
        return answer if status == 200 else None

    async def _misbehave(self, line: Line, request: bytes) -> None:
        """What no agent should send. Nothing of it reaches the brain, or all of it, and is counted."""
        dice, counts = self._dice, self._counts
        what = dice.randrange(6)
        counts["misbehaved"] += 1
        if what == 0:
            line.writer.write(dice.randbytes(500))
        elif what == 1:
            line.writer.write(b"GET / HTTP/1.1\r\n" + b"x-filler: " + b"a" * 100_000)
        elif what == 2:
            line.writer.write(request[: len(request) // 2])
            await asyncio.sleep(dice.uniform(0.0, 5.0))
        elif what == 3:
            line.writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: gw\r\nContent-Length: 99999999\r\n\r\n")
        elif what == 4:  # many at once, and nobody reads
            line.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: gw\r\n\r\n" * 300)
            await asyncio.sleep(dice.uniform(0.0, 2.0))
        else:
            for at in range(0, min(len(request), 4000) - 1, 200):
                line.writer.write(request[at : at + 200])
                await asyncio.sleep(0.01)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                await line.reader.read(1 << 16)
        self._hang_up()


async def flood(port: int, key: str, counts: Counter[str], seed: int) -> None:
    """A tenant that now and then sends a hundred strangers' requests at once."""
    dice = random.Random(seed)

    async def one() -> None:
        line = await Line.open(port)
        items = CHAT.opening("You answer once.", f"Question {dice.getrandbits(50)}")
        body = json.dumps(CHAT.body(items, (), stream=False)).encode()
        line.writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        counts["sent"] += 1
        try:
            status, fields = await line.read_head()
            await line.read_body(fields)
        except Gone:
            counts[UNHEARD] += 1
        else:
            counts[ANSWERED if _RECEIPT in fields else TURNED_AWAY] += 1
            counts[f"status {status}"] += 1
        line.reset()

    while True:
        await asyncio.gather(*(one() for _ in range(100)), return_exceptions=True)
        await asyncio.sleep(dice.uniform(2.0, 6.0))


def body_of(
    kind: Dialect, system: str, items: list[Any], tools: Sequence[str], *, is_stream: bool
) -> dict[str, Any]:
    """An agent's type stands where its protocol has it."""
    where = {RESPONSES.name: "instructions", MESSAGES.name: "system"}.get(kind.name)
    return kind.body(items, tools, stream=is_stream, **({where: system} if where else {}))


def echo(kind: Dialect, answer: bytes, *, is_stream: bool) -> list[Any]:
    """The answer as the next request quotes it, with results of its calls."""
    text, calls = _heard(kind, answer, is_stream=is_stream)
    made = kind.asks(text or "-", [(call, name, "{}") for call, name in calls])
    return [*made, *([kind.brings(call, "ok") for call, _ in calls] or [kind.user("Go on.")])]


def _heard(kind: Dialect, answer: bytes, *, is_stream: bool) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls of an answer."""
    events = [answer]
    if is_stream:
        events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")] or [answer]
    text, calls = "", list[tuple[str, str]]()
    for event in events:
        try:
            value = json.loads(event)
        except ValueError:
            continue
        if kind is CHAT:
            for choice in value.get("choices") or ():
                said = choice.get("delta") or choice.get("message") or {}
                text += said.get("content") or ""
                found = [each for each in said.get("tool_calls") or () if each.get("id")]
                calls += [(each["id"], each["function"]["name"]) for each in found]
        elif kind is MESSAGES:
            text += (value.get("delta") or {}).get("text") or ""
            for each in (value.get("content_block") or {}, *(value.get("content") or ())):
                text += each.get("text") or ""
                calls += [(each["id"], each["name"])] if each.get("type") == "tool_use" else []
        else:
            whole = value if value.get("object") == "response" else value.get("response") or {}
            for item in whole.get("output") or ():
                text += "".join(part.get("text") or "" for part in item.get("content") or ())
                calls += [(item["call_id"], item["name"])] if item["type"] == "function_call" else []
    return text, list(dict.fromkeys(calls))
