"""KV events: an engine's cache as it publishes it, with what got lost on the way replayed.

vLLM publishes them with `--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq",
"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`.

Theory of operation. ZeroMQ silently drops what nobody takes in time; the numbers of the batches
do. A live batch that is ahead of the next number waits while those before it are replayed, and the index goes
on from it whether they came or not. Replays come in order, so nothing else has to wait.

A restarted engine counts from 0 again and holds nothing. It is recognised by its connection, which broke, or
by a live number that is not above the last one: within one engine's life they only rise. Either way the index
begins anew from batch 0. Each connection has a socket of its own, so that nothing of the engine before is
left in a queue.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from zmq.asyncio import Context
from zmq.constants import Event as SocketEvent
from zmq.constants import SocketOption, SocketType

from gateway.config.upstream import KvEventsConfig
from gateway.domain.ids import ReplicaId, SessionId
from gateway.telemetry.log_lines import ChangeLog
from gateway.upstream.kv_events import AllBlocksCleared, KvIndex, decode_batch, number_of

_REPORT_EVERY_S: Final = 0.5
_REPLAY_SILENCE_S: Final = 2.0
# So that the end of a host that could not close its connection is noticed.
_HEARTBEAT_MS: Final = 5000

_AGAIN_S: Final = 0.1

OnTokens = Callable[[ReplicaId, Mapping[SessionId, float]], None]


class KvFeed:
    """Of one replica. `on_tokens` gets what each session has there, when that changed."""

    def __init__(self, replica: ReplicaId, config: KvEventsConfig, on_tokens: OnTokens) -> None:
        self._replica = replica
        self._config = config
        self._on_tokens = on_tokens
        self.index = KvIndex()
        self._last_live = -1
        self._has_changed = False
        self._log = ChangeLog()

    async def run(self) -> None:
        context = Context()
        try:
            async with asyncio.TaskGroup() as both:  # if one ends, so does the other
                both.create_task(self._report())
                both.create_task(self._follow(context))
        finally:
            context.destroy(linger=0)

    async def _follow(self, context: Any) -> None:
        while True:
            events = context.socket(SocketType.SUB)
            broken = events.get_monitor_socket(SocketEvent.DISCONNECTED)
            try:
                events.setsockopt(SocketOption.SUBSCRIBE, b"")
                events.setsockopt(SocketOption.RCVHWM, self._config.backlog)
                events.setsockopt(SocketOption.HEARTBEAT_IVL, _HEARTBEAT_MS)
                events.connect(self._config.endpoint)
                async with asyncio.TaskGroup() as both:
                    listening = both.create_task(self._listen(context, events))
                    await broken.recv_multipart()
                    listening.cancel()
            finally:
                events.disable_monitor()
                broken.close(linger=0)
                events.close(linger=0)
            self._restart()
            await asyncio.sleep(_AGAIN_S)

    async def _listen(self, context: Any, events: Any) -> None:
        self._restart()
        while True:
            _, frame, payload = await events.recv_multipart()
            number = number_of(frame)
            if number <= self._last_live:
                self._restart()
            self._last_live = number
            if number > self.index.next and self._config.replay is not None:
                await self._replay(context, self._config.replay)
            if number > self.index.next > 0:
                self._log.log("lost", logging.WARNING, "kv_events_lost", replica=self._replica)
            self._apply(number, payload)

    def _restart(self) -> None:
        self._has_changed |= self.index.next > 0
        self._last_live = -1
        self.index.restart()

    def _apply(self, number: int, payload: bytes) -> None:
        try:
            events = decode_batch(payload).events
        except msgspec.MsgspecError as error:
            self._log.log("bad", logging.WARNING, "kv_events_malformed", replica=self._replica, cause=error)
            events = [AllBlocksCleared()]  # what it changed is not known
        self.index.apply(number, events)
        self._has_changed = True

    async def _replay(self, context: Any, endpoint: str) -> None:
        replay = context.socket(SocketType.DEALER)
        replay.setsockopt(SocketOption.RCVHWM, self._config.backlog)
        replay.connect(endpoint)
        try:
            await replay.send_multipart([b"", self.index.next.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(_REPLAY_SILENCE_S):
                    *_, frame, payload = await replay.recv_multipart()
                if (number := number_of(frame)) < 0:
                    break
                self._apply(number, payload)
                await asyncio.sleep(0)  # thousands may have come already: others have their turn
        except TimeoutError:
            self._log.log("replay", logging.WARNING, "kv_events_not_replayed", replica=self._replica)
        finally:
            replay.close(linger=0)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            if self._has_changed:
                self._has_changed = False
                self._on_tokens(self._replica, dict(self.index.tokens))
