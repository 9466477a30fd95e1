"""What a client sends over one WebSocket, stream by stream: in each one message after the other.

A turn that waits holds up what its own stream sends behind it, and no other stream.

Invariants: of a stream at most one message is being passed on; at most `most` streams have one that is.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from gateway.upstream.moments import Run
from gateway.wire.response_frames import Asked
from gateway.wire.websocket_frames import Opcode


class Item(msgspec.Struct, eq=False):
    """One message of the client's."""

    opcode: Opcode
    data: bytes
    asked: Asked | None
    """None: it cannot be read."""

    @property
    def stream(self) -> str | None:
        return self.asked.stream if self.asked is not None else None


class Lanes:
    def __init__(
        self,
        pass_on: Callable[[Item], Coroutine[Any, Any, None]],
        passed: Callable[[], None],
        *,
        most: int,
    ) -> None:
        """`pass_on` may not raise; `passed` is called behind each message."""
        self._pass_on = pass_on
        self._passed = passed
        self._most = most
        self._lanes: dict[str | None, deque[Item]] = {}
        """By stream: what is being passed on, and what stands behind it."""
        self._runs: dict[str | None, Run] = {}
        self.held_bytes = 0
        self.behind_bytes = 0
        """Of those, what stands behind a message that is being passed on."""

    def __len__(self) -> int:
        """Streams that have something to be passed on."""
        return len(self._lanes)

    def have_room(self, stream: str | None) -> bool:
        return stream in self._lanes or len(self._lanes) < self._most

    def put(self, item: Item) -> None:
        """There must be room. It may be passed on before this returns."""
        stream = item.stream
        self.held_bytes += len(item.data)
        lane = self._lanes.get(stream)
        if lane is not None:
            self.behind_bytes += len(item.data)
            lane.append(item)
            return
        self._lanes[stream] = lane = deque((item,))
        run = self._runs[stream] = Run(self._work_off(lane), lambda: self._over(stream))
        run.go_on()

    def forget_those_behind(self) -> None:
        """What is not being passed on yet never will be."""
        for lane in self._lanes.values():
            while len(lane) > 1:
                self.held_bytes -= len(lane[-1].data)
                lane.pop()
        self.behind_bytes = 0

    def close(self) -> None:
        for run in tuple(self._runs.values()):
            run.cancel()

    async def _work_off(self, lane: deque[Item]) -> None:
        while lane:
            await self._pass_on(lane[0])
            self.held_bytes -= len(lane.popleft().data)
            if lane:
                self.behind_bytes -= len(lane[0].data)
                self._passed()

    def _over(self, stream: str | None) -> None:
        del self._lanes[stream], self._runs[stream]
        self._passed()
