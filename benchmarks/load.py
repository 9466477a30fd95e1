"""Load: agents that call, wait for the answer, and call again, each on a connection of its own.

A closed loop over kept connections, on raw sockets. Every answer is checked: its status, its tool call,
for a stream the number of its events and its end mark. What is counted: answers and events that arrived
within the measured time, and how long each answer took from the request's first byte to its own last one.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools
import msgspec

from benchmarks.answers import find_call_id
from benchmarks.conversations import Conversation, Crowd

_EVENT: Final = b"data: {"
_ENDS: Final = (b"data: [DONE]\n\n", b'"type":"response.completed"}\n\n', b'"type":"message_stop"}\n\n')
_PATIENCE_S: Final = 10.0
"""For the last answers to come, after the measured time."""

Check = Callable[[int, bytes], bool]
"""Whether an answer of this status with this body is right."""


class Outcome(msgspec.Struct, kw_only=True):
    """What one measurement saw. An answer that was not right counts as a failure and as nothing else."""

    seconds: float
    answers: int = 0
    events: int = 0
    answered: int = 0
    """Answers in all, those before and after the measured time included."""
    failures: int = 0
    latencies_ms: list[float] = []
    first_failure: str = ""

    def fail(self, what: str) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or what


def is_right(status: int, body: bytes) -> bool:
    """A whole answer."""
    return status == 200 and body.endswith(b"}")


def is_right_stream(events: int) -> Check:
    """A stream of so many events and the end mark."""

    def check(status: int, body: bytes) -> bool:
        return status == 200 and body.endswith(_ENDS) and body.count(_EVENT) == events

    return check


class _Clock:
    """The measured time, and whether the agents should go on."""

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        self.start = time.perf_counter() + warm_up_s
        self.end = self.start + seconds

    def counts(self, now: float) -> bool:
        return self.start <= now < self.end


class Agent(asyncio.Protocol):
    """One connection. `over` is done when it has had its last answer, `gone` when it is closed."""

    def __init__(
        self, conversation: Conversation | Crowd, check: Check, clock: _Clock, tally: Outcome, pause_s: float
    ) -> None:
        self._conversation = conversation
        self._is_apart = conversation.dialect.is_apart
        self._pause_s = pause_s
        self._check = check
        self._clock = clock
        self._tally = tally
        self._body: list[bytes] = []
        self._sent = 0.0
        self._now = 0.0
        self.over = asyncio.get_running_loop().create_future()
        self.gone = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket").fileno()
        asyncio.get_running_loop().call_later(self._pause_s * random.random(), self._call)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._clock.counts(self._now):
            self._tally.events += data.count(_EVENT)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._tally.fail(f"not HTTP: {error}")
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self._tally.fail("the connection was closed")
            self.over.set_result(None)
        self.gone.set_result(None)

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        call_id = find_call_id(body)
        self._conversation.answered(call_id)
        status = self._parser.get_status_code()
        if call_id is None or not self._check(status, body):
            self._tally.fail(f"status {status}: {body[-200:]!r}")
        else:
            self._tally.answered += 1
            if self._clock.counts(self._now):
                self._tally.answers += 1
                self._tally.latencies_ms.append((self._now - self._sent) * 1e3)
        pause_s = self._pause_s * random.uniform(0.5, 1.5)
        if self._now + pause_s < self._clock.end:
            asyncio.get_running_loop().call_later(pause_s, self._call)  # not from within the parser
        else:
            self.over.set_result(None)

    def _call(self) -> None:
        if self.transport.is_closing():
            return
        self._body = []
        self._parser = httptools.HttpResponseParser(self)
        self._sent = time.perf_counter()
        head, *body = self._conversation.request()
        if self._is_apart:
            os.write(self._socket, head)
            asyncio.get_running_loop().call_soon(self.transport.writelines, body)
        else:
            self.transport.writelines([head, *body])


async def drive(
    port: int,
    conversations: Sequence[Conversation | Crowd],
    check: Check,
    *,
    warm_up_s: float,
    seconds: float,
    pause_s: float = 0.0,
    host: str = "127.0.0.1",
) -> Outcome:
    """All agents at once, for so long; each then gets its last answer, and leaves. `pause_s`: what a tool
    takes, on average."""
    loop = asyncio.get_running_loop()
    clock, tally = _Clock(warm_up_s, seconds), Outcome(seconds=seconds)
    connected = [
        await loop.create_connection(lambda each=each: Agent(each, check, clock, tally, pause_s), host, port)  # type: ignore[misc]
        for each in conversations
    ]
    agents = [agent for _, agent in connected]
    _, late = await asyncio.wait(
        [agent.over for agent in agents], timeout=clock.end - time.perf_counter() + _PATIENCE_S
    )
    for agent in agents:
        if agent.over in late:
            tally.fail("no answer")
            agent.over.set_result(None)
        agent.transport.abort()
    await asyncio.wait([agent.gone for agent in agents])
    return tally
