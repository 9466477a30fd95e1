"""What an engine's KV cache holds of each session, from the events that it publishes.

Source: vLLM's KV cache events; since 0.30 a stored block names the session that stored it.

Theory of operation. Batches are numbered. A batch that is ahead of the next number says that some were lost:
they are asked for again, and it waits meanwhile; if they cannot be had, nothing that was believed holds, and
the books begin anew. A block belongs to every session that stored or reused it, as far as events say, until
it is removed. Nobody tokenizes: a session's tokens are its blocks times their size.

Deviations: only the device's own blocks are counted, of the attention group that is told first.

Invariants: batches are applied in order, each once; `tokens` of a session is never negative; at most
`max_blocks` blocks and `WAITING` batches that came too early are remembered.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.domain.ids import SessionId

WAITING: Final = 1024
_DEVICE: Final = (None, "GPU")
_MOST_SHARERS: Final = 8

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
    data_parallel_rank: int | None = None


def decode_batch(payload: bytes) -> Batch:
    """Raises msgspec.MsgspecError for what is none."""
    return _DECODER.decode(payload)


_DECODER: Final = msgspec.msgpack.Decoder(Batch)


class _Block(msgspec.Struct, eq=False):
    tokens: int
    sessions: list[SessionId]


class KvBooks:
    """Of one engine."""

    def __init__(self, *, max_blocks: int = 1_000_000) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[Hash, _Block] = OrderedDict()
        self._early: dict[int, Sequence[Event]] = {}
        self._next: int | None = None
        self.tokens: dict[SessionId, float] = {}
        self.lost = 0
        """Batches that nobody could bring back."""

    def missing_from(self) -> int | None:
        """The number from which batches have to be sent again; None if none is missing."""
        return self._next if self._early else None

    def came(self, number: int, events: Sequence[Event]) -> None:
        """A batch; those that were there before are passed over."""
        if self._next is None:
            self._next = number
        if number < self._next:
            return
        if len(self._early) < WAITING:
            self._early[number] = events
        self._apply_ready()

    def gave_up(self) -> None:
        """What is missing cannot be had: the books begin anew with what is there."""
        assert self._early and self._next is not None
        first = min(self._early)
        self.lost += first - self._next
        self._clear()
        self._next = first
        self._apply_ready()

    def restarted(self) -> None:
        """It is another engine now."""
        self._clear()
        self._early.clear()
        self._next = None

    def _apply_ready(self) -> None:
        assert self._next is not None
        while self._next in self._early:
            for event in self._early.pop(self._next):
                self._apply(event)
            self._next += 1

    def _apply(self, event: Event) -> None:
        match event:
            case BlockStored():
                if event.medium in _DEVICE and not event.group_idx:
                    self._stored(event)
            case BlockRemoved():
                if event.medium in _DEVICE and not event.group_idx:
                    for block in event.block_hashes:
                        self._removed(block)
            case AllBlocksCleared():
                self._clear()

    def _stored(self, event: BlockStored) -> None:
        session = SessionId(event.session_id) if event.session_id is not None else None
        for name in event.block_hashes:
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = _Block(event.block_size, [])
                if len(self._blocks) > self._max_blocks:
                    self._removed(next(iter(self._blocks)))
            if session is not None and session not in block.sessions and len(block.sessions) < _MOST_SHARERS:
                block.sessions.append(session)
                self.tokens[session] = self.tokens.get(session, 0.0) + block.tokens

    def _removed(self, name: Hash) -> None:
        block = self._blocks.pop(name, None)
        for session in block.sessions if block is not None else ():
            assert block is not None
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
