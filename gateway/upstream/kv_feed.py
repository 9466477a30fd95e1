"""KV events: what an engine publishes of its cache is listened to, and what got lost on the way is asked for
again.

vLLM publishes them with `--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq",
"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`. ZeroMQ drops what nobody takes in time, and
says nothing; the numbers of the batches do.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from zmq.asyncio import Context
from zmq.constants import SocketOption, SocketType

from gateway.config.upstream import KvEventsConfig
from gateway.domain.ids import ReplicaId, SessionId
from gateway.upstream.kv_events import KvBooks, decode_batch, number_of

_log = logging.getLogger(__name__)
_TELL_EVERY_S: Final = 0.5
_REPLAY_WITHIN_S: Final = 2.0

OnTokens = Callable[[ReplicaId, Mapping[SessionId, float]], None]


class KvFeed:
    """Of one replica. `on_tokens` is told what each session has there, when that changed."""

    def __init__(self, replica: ReplicaId, config: KvEventsConfig, on_tokens: OnTokens) -> None:
        self._replica = replica
        self._config = config
        self._on_tokens = on_tokens
        self.books = KvBooks()
        self._is_news = False

    async def run(self) -> None:
        context = Context()
        events = context.socket(SocketType.SUB)
        events.setsockopt(SocketOption.SUBSCRIBE, b"")
        events.setsockopt(SocketOption.RCVHWM, self._config.backlog)
        events.connect(self._config.endpoint)
        try:
            async with asyncio.TaskGroup() as both:  # if one ends, so does the other
                both.create_task(self._tell())
                both.create_task(self._listen(context, events))
        finally:
            events.close(linger=0)
            context.term()

    async def _listen(self, context: Any, events: Any) -> None:
        while True:
            _, number, payload = await events.recv_multipart()
            self._take(number_of(number), payload)
            if self.books.missing_from() is not None:
                await self._recover(context)

    def _take(self, number: int, payload: bytes) -> None:
        try:
            self.books.came(number, decode_batch(payload).events)
        except msgspec.MsgspecError as error:
            _log.warning("%s publishes what is no batch of KV events: %s", self._replica, error)
        self._is_news = True

    async def _recover(self, context: Any) -> None:
        missing = self.books.missing_from()
        if self._config.replay is not None and missing is not None:
            asking = context.socket(SocketType.DEALER)
            asking.connect(self._config.replay)
            try:
                async with asyncio.timeout(_REPLAY_WITHIN_S):
                    await asking.send_multipart([b"", missing.to_bytes(8, "big", signed=True)])
                    while self.books.missing_from() is not None:
                        *_, number, payload = await asking.recv_multipart()
                        if number_of(number) < 0:
                            break
                        self._take(number_of(number), payload)
            except TimeoutError:
                _log.warning("%s does not send lost KV events again", self._replica)
            finally:
                asking.close(linger=0)
        if self.books.missing_from() is not None:
            self.books.gave_up()
            _log.warning("KV events of %s are lost: its books begin anew", self._replica)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            if self._is_news:
                self._is_news = False
                self._on_tokens(self._replica, dict(self.books.tokens))
