"""A conversation's canonical content, hashed in one pass.

A long session repeats all of its items in every request. So items are hashed as they came, which is nearly
free, and *checkpoints* remember what the conversation was up to where an earlier request ended: only what
was added since is decoded. Some clients move marks about near the end, so a second checkpoint stands a few
items before it.
"""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Raw
from xxhash import xxh3_64_intdigest

from gateway.domain.request import AssistantBlock, Transcript
from gateway.wire.body import RequestBody, ResponsesBody
from gateway.wire.items import ASSISTANT, NOTHING, SYSTEM, TOOL, USER, Item, read_item, read_texts, user_item
from gateway.wire.marks import MAX_WORDS, leave_marks, probe

MAX_BLOCKS: Final = 8
MAX_RECENT: Final = 4
_MAX_RAW: Final = 4
"""Items whose very bytes tell two bodies apart; for the others, what they say is enough."""
_BACK: Final = 4
"""How far before the end marks are still moved about."""
_MAX_TEXTS: Final = 8
_MAX_SYSTEM: Final = 4
_OLD_WORDS: Final = 600
"""A history is probed less than an opening: most are recognised without it."""
_MAX_RUN: Final = 8
_ENDS: Final = (USER, TOOL)
"""What stands between two answers of the model."""
_MAX_KNOWN: Final = 50_000
_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15
"""Odd, so that no item is lost from the polynomial."""


T = TypeVar("T")


class _Checkpoint(NamedTuple):
    """A conversation up to some item that ends no run of the model's."""

    tail: int = 0
    recent: tuple[int, ...] = ()
    blocks: tuple[AssistantBlock, ...] = ()
    run: int = 0


class TranscriptReader:
    """Reads conversations; remembers what they looked like underneath."""

    def __init__(self, max_known: int = _MAX_KNOWN) -> None:
        self._items: _Memory[Item] = _Memory(max_known)
        self._checkpoints: _Memory[_Checkpoint] = _Memory(max_known)

    def read(self, fields: RequestBody, items: Sequence[Raw]) -> Transcript:
        raws = [xxh3_64_intdigest(memoryview(raw)) for raw in items]
        agent = self._agent(fields, items, raws)
        opening = fields.input if isinstance(fields, ResponsesBody) else None
        if isinstance(opening, str):
            found = _follow(_Checkpoint(), [user_item(opening)])
            new, old = [opening], list[str]()
        else:
            found = self._resume(items, raws)
            new, old = self._texts(items, raws)
        return Transcript(
            tail=found.tail,
            recent=found.recent,
            blocks=found.blocks,
            newest_run=found.run,
            body=_combine([agent, len(raws), *raws[-_MAX_RAW:], found.tail]),
            agent=agent,
            asked=leave_marks(new[0]) if new else (),
            new_probes=probe(new, max_words=_OLD_WORDS if found.blocks else MAX_WORDS),
            old_probes=probe(old, max_words=_OLD_WORDS) if old else frozenset(),
        )

    def _resume(self, items: Sequence[Raw], raws: Sequence[int]) -> _Checkpoint:
        """The whole conversation, from the newest checkpoint on."""
        prefixes = []
        prefix = 0
        for raw in raws:
            prefix = (prefix * _STEP + raw) & _MASK
            prefixes.append(prefix)
        state, at = _Checkpoint(), len(raws)
        while at > 0:
            known = self._checkpoints.get(prefixes[at - 1])
            if known is not None:
                state = known
                break
            at -= 1
        read = [self._item(raws[place], items[place]) for place in range(at, len(raws))]
        before = len(raws) - _BACK - at
        cut = next((place for place in range(before, 0, -1) if read[place - 1].kind in _ENDS), 0)
        if cut:
            state = _follow(state, read[:cut])
            self._checkpoints.put(prefixes[at + cut - 1], state)
        found = _follow(state, read[cut:])
        if read and read[-1].kind in _ENDS:
            self._checkpoints.put(prefixes[-1], found)
        return found

    def _item(self, key: int, raw: Raw) -> Item:
        item = self._items.get(key)
        if item is None:
            item = read_item(raw)
            self._items.put(key, item)
        return item

    def _texts(self, items: Sequence[Raw], raws: Sequence[int]) -> tuple[list[str], list[str]]:
        """What was written after the newest answer, and before its end; both newest first."""
        new: list[int] = []
        last_at = 0
        for at in range(len(raws) - 1, -1, -1):
            item = self._item(raws[at], items[at])
            if item.kind == ASSISTANT:
                last_at = at + 1
                break
            if item.kind == USER and item.text and len(new) < _MAX_TEXTS:
                new.append(at)
        if not new and last_at == 0:  # some agents say everything in the system prompt
            new = list(range(len(raws) - 1, -1, -1))
        old = self._written(items, raws, last_at)
        # The newest text is what was asked; what stands before it is preamble more often than not.
        return (
            [text for at in new[:_MAX_TEXTS] for text in reversed(read_texts(items[at]))],
            [text for at in old for text in reversed(read_texts(items[at]))],
        )

    def _written(self, items: Sequence[Raw], raws: Sequence[int], before: int) -> list[int]:
        """Items with texts before this one, newest first; none if the newest made calls.

        For then the ids of its calls are known, or nothing is.
        """
        found: list[int] = []
        for at in range(before - 1, -1, -1):
            item = self._item(raws[at], items[at])
            if item.has_calls and at == before - 1:
                break
            if item.kind in (USER, ASSISTANT) and item.text:
                found.append(at)
                if len(found) == _MAX_TEXTS:
                    break
        return found

    def _agent(self, fields: RequestBody, items: Sequence[Raw], raws: Sequence[int]) -> int:
        first = [self._item(raws[at], items[at]) for at in range(min(_MAX_SYSTEM, len(raws)))]
        parts = [
            xxh3_64_intdigest(memoryview(fields.system)),
            xxh3_64_intdigest(memoryview(fields.instructions)),
        ]
        parts += [item.hash for item in first if item.kind == SYSTEM]
        parts += [xxh3_64_intdigest(memoryview(tool)) for tool in fields.tools or ()]
        return _combine(parts)


class _Memory(Generic[T]):
    """Remembers what was used lately: at least the newer half of `size`."""

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._newer: dict[int, T] = {}
        self._older: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def get(self, key: int) -> T | None:
        known = self._newer.get(key)
        if known is None:
            known = self._older.get(key)
            if known is not None:
                self.put(key, known)
        return known

    def put(self, key: int, value: T) -> None:
        if len(self._newer) >= self._half:
            self._older, self._newer = self._newer, {}
        self._newer[key] = value


def _follow(state: _Checkpoint, items: Sequence[Item]) -> _Checkpoint:
    """The conversation after these items.

    Several answers may stand in a row, so a block begins at each item of a run that has a text; all of them
    reach to the end of the run.
    """
    tail, recent, run = state.tail, list(reversed(state.recent)), state.run
    blocks: list[AssistantBlock] = list(reversed(state.blocks))
    open_blocks: list[_Open] = []
    for item in items:
        if item.kind in (NOTHING, SYSTEM):
            continue
        if item.kind != ASSISTANT:
            blocks += [block.close() for block in open_blocks]
            open_blocks.clear()
        else:
            for block in open_blocks:
                block.add(item)
            if not open_blocks or (item.text and len(open_blocks) < _MAX_RUN):
                open_blocks.append(_Open(tail, item))
            run = len(open_blocks)
        recent.append(tail)
        tail = (tail * _STEP + item.hash) & _MASK
    blocks += [block.close() for block in open_blocks]
    return _Checkpoint(
        tail, tuple(recent[: -MAX_RECENT - 1 : -1]), tuple(blocks[: -MAX_BLOCKS - 1 : -1]), run
    )


class _Open:
    """A block that may still grow."""

    def __init__(self, tail: int, item: Item) -> None:
        self.tail = tail
        self.texts = [item.text] if item.text else []
        self.has_calls = item.has_calls

    def add(self, item: Item) -> None:
        self.texts += [item.text] if item.text else []
        self.has_calls = self.has_calls or item.has_calls

    def close(self) -> AssistantBlock:
        text = self.texts[0] if len(self.texts) == 1 else _combine(self.texts)
        return AssistantBlock(self.tail, text, self.has_calls)


def _combine(parts: Sequence[int]) -> int:
    total = 0
    for part in parts:
        total = (total * _STEP + part) & _MASK
    return total
