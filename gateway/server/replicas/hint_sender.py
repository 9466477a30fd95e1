"""Hints at the pause: `POST /turnpike/hints`, in the background.

A hint is worth something for a moment and never worth waiting for. Each replica gets what has gathered while
the last message was on its way, in one message; what is too much is dropped, the oldest first.

Invariants: one message to a replica at a time; at most `MAX_WAITING` hints wait for each; nothing here raises
into the brain's driver.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import aiohttp

from gateway.domain.ids import ReplicaId
from gateway.server.runtime.tasks import TaskGroup
from gateway.upstream.replica import Replica, open_session

MAX_WAITING: Final = 1024
_AT_ONCE: Final = 256
_TIMEOUT_S: Final = 5.0


class HintSender:
    def __init__(self, replicas: Mapping[ReplicaId, Replica], tasks: TaskGroup) -> None:
        self._replicas = replicas
        self._tasks = tasks
        # Of the replicas that hints are being sent to.
        self._waiting: dict[ReplicaId, deque[str]] = {}
        self._session: aiohttp.ClientSession | None = None
        self.sent = self.dropped = self.failed = 0

    def send(self, replica: ReplicaId, hint: str) -> None:
        waiting = self._waiting.get(replica)
        if waiting is None:
            if replica not in self._replicas:
                self.dropped += 1
                return
            self._waiting[replica] = deque([hint])
            self._tasks.spawn(self._deliver(replica))
            return
        if len(waiting) >= MAX_WAITING:
            waiting.popleft()
            self.dropped += 1
        waiting.append(hint)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _deliver(self, replica: ReplicaId) -> None:
        waiting = self._waiting[replica]
        try:
            while waiting:
                some = [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]
                if await self._post(replica, some):
                    self.sent += len(some)
                else:
                    self.failed += len(some)
        finally:
            del self._waiting[replica]

    async def _post(self, replica: ReplicaId, hints: list[str]) -> bool:
        known = self._replicas.get(replica)
        if known is None:
            return False
        if self._session is None:
            self._session = open_session(_TIMEOUT_S)
        content = f'{{"hints":[{",".join(hints)}]}}'.encode()
        try:
            async with known.ask(self._session, "POST", "/turnpike/hints", content=content) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
