"""A conversation's canonical content, hashed in one pass.

A long session repeats all of its items in every request. So each item is hashed as it came, which is
nearly free, and a bounded memory says what the canonical content of those bytes was: only items not seen
before are decoded.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Raw
from xxhash import xxh3_64_intdigest

from gateway.domain.request import AssistantBlock, Transcript
from gateway.wire.body import RequestBody, ResponsesBody
from gateway.wire.items import ASSISTANT, NOTHING, SYSTEM, USER, Item, read_item, read_texts, user_item
from gateway.wire.marks import MAX_WORDS, leave_marks, probe

MAX_POSITIONS: Final = 1024
MAX_BLOCKS: Final = 64
_MAX_TEXTS: Final = 8
_OLD_WORDS: Final = 600
"""A history is probed far less than an opening: most are recognised without it."""
_MAX_RUN: Final = 8
_MAX_KNOWN: Final = 50_000
_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15
"""Odd, so that no item is lost from the polynomial."""


class _Block(NamedTuple):
    at: int
    run: int
    """How many blocks of its run there are so far, this one included."""
    text: int
    has_calls: bool


class TranscriptReader:
    """Reads conversations; remembers what items look like underneath."""

    def __init__(self, max_known: int = _MAX_KNOWN) -> None:
        self._max_known = max_known
        self._known: dict[int, Item] = {}
        self._older: dict[int, Item] = {}

    def read(self, fields: RequestBody, items: Sequence[Raw]) -> Transcript:
        raws = [xxh3_64_intdigest(memoryview(raw)) for raw in items]
        read = [self._item(key, raw) for key, raw in zip(raws, items, strict=True)]
        agent = _agent(fields, read)
        opening = fields.input if isinstance(fields, ResponsesBody) else None
        if isinstance(opening, str):
            read = [user_item(opening)]
        chain, blocks, last_at = _chain(read)
        new, old = ([opening], []) if isinstance(opening, str) else _texts(items, read, last_at)
        has_history = bool(blocks)
        dropped = max(0, len(chain) - MAX_POSITIONS)
        return Transcript(
            chain=tuple(chain[-MAX_POSITIONS:]),
            blocks=_newest(blocks, dropped),
            newest_at=_newest_at(blocks) - dropped,
            body=_combine([agent, *raws, chain[-1] if chain else 0]),
            agent=agent,
            asked=_asked(new),
            new_probes=probe(new, max_words=_OLD_WORDS if has_history else MAX_WORDS),
            old_probes=probe(old, max_words=_OLD_WORDS) if old else frozenset(),
        )

    def _item(self, key: int, raw: Raw) -> Item:
        item = self._known.get(key)
        if item is None:
            item = self._older.get(key)
            if item is None:
                item = read_item(raw)
            if len(self._known) >= self._max_known // 2:
                self._older, self._known = self._known, {}
            self._known[key] = item
        return item


def _chain(items: Sequence[Item]) -> tuple[list[int], list[_Block], int]:
    """The cumulative hashes, the assistant blocks oldest first, and where the newest run of them ends.

    Several answers may stand in a row, so a block begins at each item of a run that has a text; all of them
    reach to the end of the run.
    """
    chain: list[int] = []
    blocks: list[_Block] = []
    total = last_at = run = 0
    for at, (kind, own, text, has_calls) in enumerate(items):
        if kind in (NOTHING, SYSTEM):
            continue
        if kind != ASSISTANT:
            run = 0
        else:
            for index in range(len(blocks) - min(run, len(blocks)), len(blocks)):
                start, _, said, had_calls = blocks[index]
                whole = _combine([said, text]) if said and text else said or text
                blocks[index] = _Block(start, run, whole, had_calls or has_calls)
            if run == 0 or (text and run < _MAX_RUN):
                run += 1
                blocks.append(_Block(len(chain), run, text, has_calls))
            last_at = at + 1
        total = (total * _STEP + own) & _MASK
        chain.append(total)
    return chain, blocks, last_at


def _newest_at(blocks: Sequence[_Block]) -> int:
    """Where the newest run begins."""
    return blocks[-blocks[-1].run].at if blocks else 0


def _newest(blocks: Sequence[_Block], dropped: int) -> tuple[AssistantBlock, ...]:
    return tuple(
        AssistantBlock(block.at - dropped, block.text, block.has_calls)
        for block in reversed(blocks[-MAX_BLOCKS:])
        if block.at >= dropped
    )


def _texts(items: Sequence[Raw], read: Sequence[Item], last_at: int) -> tuple[list[str], list[str]]:
    """What was written after the newest assistant block, and before its end; both newest first."""
    new = [at for at in range(len(read) - 1, last_at - 1, -1) if read[at].kind == USER and read[at].text]
    if not new and last_at == 0:  # some agents say everything in the system prompt
        new = [at for at in range(len(read) - 1, -1, -1) if read[at].kind == SYSTEM]
    old = [at for at in range(last_at - 1, -1, -1) if read[at].kind in (USER, ASSISTANT) and read[at].text]
    return (
        [text for at in new[:_MAX_TEXTS] for text in reversed(read_texts(items[at]))],
        [text for at in old[:_MAX_TEXTS] for text in reversed(read_texts(items[at]))],
    )


def _asked(new: list[str]) -> tuple[int, ...]:
    """The newest text is what was asked; what stands before it is preamble more often than not."""
    return leave_marks(new[0]) if new else ()


def _agent(fields: RequestBody, read: Sequence[Item]) -> int:
    parts = [xxh3_64_intdigest(memoryview(fields.system)), xxh3_64_intdigest(memoryview(fields.instructions))]
    parts += [item.hash for item in read[:4] if item.kind == SYSTEM]
    parts += [xxh3_64_intdigest(memoryview(tool)) for tool in fields.tools or ()]
    return _combine(parts)


def _combine(parts: Sequence[int]) -> int:
    total = 0
    for part in parts:
        total = (total * _STEP + part) & _MASK
    return total
