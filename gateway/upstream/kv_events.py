"""What an engine's KV cache holds of each session, from the events that it publishes.

Source: vLLM's KV cache events; since 0.30 a stored block names the session that stored it.

Theory of operation. An engine numbers its batches from 0. They are applied in the order of their numbers; one
that was applied before (the live stream and a replay overlap) changes nothing. A number that is ahead of the
next one says that batches were lost for good: nothing that was believed holds, and the index begins anew with
that batch. A block belongs to every session that stored or reused it, as far as events say, until it is
removed. Nobody tokenizes: a session's tokens are its blocks times their size.

Deviations: only the device's own blocks are counted, of the attention group that is named first.

Invariants: `tokens` of a session is never negative; at most `_MAX_BLOCKS` blocks are remembered.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.domain.ids import SessionId

_DEVICE: Final = (None, "GPU")
_MOST_SHARERS: Final = 8
_MAX_BLOCKS: Final = 1_000_000

Hash = bytes | int


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored"):
    block_hashes: list[Hash]
    block_size: int
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[Event]


decode_batch: Final = msgspec.msgpack.Decoder(Batch).decode


class _Block(msgspec.Struct, eq=False):
    tokens: int
    sessions: list[SessionId]


class KvIndex:
    """Of one engine's life."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Hash, _Block] = OrderedDict()
        # The number of the batch that is wanted next.
        self.next = 0
        self.tokens: dict[SessionId, float] = {}

    def apply(self, number: int, events: Sequence[Event]) -> None:
        if number < self.next:
            return
        if number > self.next:
            self._clear()
        for event in events:
            self._apply(event)
        self.next = number + 1

    def restart(self) -> None:
        self._clear()
        self.next = 0

    def _apply(self, event: Event) -> None:
        if isinstance(event, AllBlocksCleared):
            self._clear()
        elif event.medium in _DEVICE and not event.group_idx:
            if isinstance(event, BlockStored):
                self._stored(event)
            else:
                for block in event.block_hashes:
                    self._removed(block)

    def _stored(self, event: BlockStored) -> None:
        session = SessionId(event.session_id) if event.session_id is not None else None
        for name in event.block_hashes:
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = _Block(event.block_size, [])
                if len(self._blocks) > _MAX_BLOCKS:
                    self._removed(next(iter(self._blocks)))
            if session is not None and session not in block.sessions and len(block.sessions) < _MOST_SHARERS:
                block.sessions.append(session)
                self.tokens[session] = self.tokens.get(session, 0.0) + block.tokens

    def _removed(self, name: Hash) -> None:
        if (block := self._blocks.pop(name, None)) is None:
            return
        for session in block.sessions:
            left = self.tokens[session] - block.tokens
            if left > 0:
                self.tokens[session] = left
            else:
                del self.tokens[session]

    def _clear(self) -> None:
        self._blocks.clear()
        self.tokens.clear()


def number_of(frame: bytes) -> int:
    """Of the frame that a publisher puts before a batch; negative at the end of what is sent again."""
    return int.from_bytes(frame, "big", signed=True)
