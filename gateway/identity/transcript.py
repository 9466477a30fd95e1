"""A conversation's canonical content, hashed in one pass.

A long session repeats all of its items in every request. So items are hashed as they came, which is nearly
free, and *checkpoints* remember what the conversation was up to where an earlier request ended: only what
was added since is decoded. Some clients move marks about near the end, so a second checkpoint stands a few
items before it.
"""

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.request import AssistantBlock, NewItems, PromptHead, Transcript
from gateway.identity.agent_type import agent_skeleton
from gateway.identity.items import ASIDE, ASSISTANT, SYSTEM, TOOL, USER, Item, read_item
from gateway.identity.memory import Memory
from gateway.identity.prompt_head import head_of, short_hashes
from gateway.identity.repeats import read_step
from gateway.identity.returned_call_ids import MAX_ITEMS, NO_ECHOES, Echoes, read_echoes
from gateway.wire.body import ABSENT, RequestBody
from gateway.wire.grown_body import Items
from gateway.wire.hashing import digest, digest_all

MAX_BLOCKS: Final = 8
MAX_RECENT: Final = 4
# The newest items, which distinguish two bodies by their bytes; of older ones the content counts.
_MAX_RAW: Final = 4
# How far before the end marks are still moved about.
_BACK: Final = 4
_MAX_SYSTEM: Final = 4
_MAX_NEW: Final = 32
_MAX_RUN: Final = 8
# What stands between two answers of the model.
_ENDS: Final = (USER, TOOL)
# Requests, some 600 bytes each; a conversation that pauses for half as many of others is read anew.
_MAX_KNOWN: Final = 40_000
# Places at which a checkpoint is looked for. A conversation that grew by more is read as if it were new.
_MAX_TRIED: Final = 256
_TRIED_AT_ONCE: Final = 16
_SLICE_BYTES: Final = 2**18
# An empty item takes as long to read as so many bytes of a long one.
_BYTES_OF_ITEM: Final = 2**9
_STRIDE: Final = 64
_MASK: Final = 2**64 - 1


class _Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """A conversation up to some item that ends no run of the model's."""

    tail: int = 0
    recent: tuple[int, ...] = ()
    blocks: tuple[AssistantBlock, ...] = ()
    run: int = 0
    call_end: int = 0
    """Number of items up to the newest call."""
    answer_end: int = 0
    """Number of items up to the model's newest."""
    media_bytes: int = 0


_EMPTY: Final = _Checkpoint()


class TranscriptReader:
    def __init__(self, max_known: int = _MAX_KNOWN) -> None:
        self._items: Memory[Item] = Memory(max_known)
        self._checkpoints: Memory[_Checkpoint] = Memory(max_known)
        self._agents: Memory[tuple[int, int, PromptHead]] = Memory(max_known)
        # By the bytes that a type is made of: sessions of one agent begin alike, and go on otherwise.
        self._types: Memory[tuple[int, bytes, bytes]] = Memory(max_known)
        # Whether repeats are counted: `NewItems.called` costs another look at the newest items.
        self.reads_steps = False

    def reading(
        self, fields: RequestBody, items: Sequence[Raw]
    ) -> Generator[None, None, tuple[Transcript, Echoes]]:
        raws = items.hashes if isinstance(items, Items) else digest_all(items)
        # Equal items differ in meaning behind other stored state.
        before = fields.previous_response_id, fields.conversation
        stored = 0 if before == (ABSENT, ABSENT) else hash((*digest_all(before),))
        agent, agent_type, head = self._agent(fields, items, raws, stored)
        found = yield from self._resume(items, raws)
        end = len(raws)
        is_prefill = found.answer_end == end and found.call_end != end
        news = self._news(items, raws) if is_prefill else range(found.answer_end, end)
        echoes = NO_ECHOES
        if found.call_end:
            item_at = partial(self._item, raws, items)
            echoes = read_echoes(self._items.newer, raws, news, found.call_end, item_at)
        transcript = Transcript(
            tail=found.tail,
            recent=found.recent,
            blocks=found.blocks,
            newest_run=found.run,
            body=hash((agent, end, *raws[-_MAX_RAW:], found.tail, stored)),
            agent=agent,
            agent_type=agent_type,
            head=head,
            new=self._new(items, raws, news),
            media_bytes=found.media_bytes,
        )
        return transcript, echoes

    def _news(self, items: Sequence[Raw], raws: Sequence[int]) -> range:
        """Where the items behind the model's newest are.

        An assistant message of the client's own at the end (a prefill, `now give your final answer`) is no
        answer: the items before it are still new.
        """
        end = len(raws)
        least = max(0, end - MAX_ITEMS)
        while end > least and self._is_models(items, raws, end - 1):
            end -= 1
        start = end
        while start > least and not self._is_models(items, raws, start - 1):
            start -= 1
        return range(start, end)

    def _is_models(self, items: Sequence[Raw], raws: Sequence[int], at: int) -> bool:
        return self._item(raws, items, at).kind in (ASSISTANT, ASIDE)

    def _new(self, items: Sequence[Raw], raws: Sequence[int], news: range) -> NewItems:
        places = news[-_MAX_NEW:]
        size, has_failed = 0, False
        looks: tuple[int, ...] = ()
        for at, item in zip(reversed(places), reversed(self._read(raws, items, places)), strict=True):
            if item.kind in _ENDS:
                size += len(memoryview(items[at]))
                has_failed = has_failed or item.has_failed
                looks = looks or item.looks
        if not self.reads_steps or not news:
            return NewItems(size, looks, has_failed)
        start = news.start
        while start > max(0, news.start - MAX_ITEMS) and self._is_models(items, raws, start - 1):
            start -= 1
        answer = (items[at] for at in range(start, news.start))
        called, came = read_step(answer, (items[at] for at in places))
        return NewItems(size, looks, has_failed, called, came)

    def _resume(self, items: Sequence[Raw], raws: Sequence[int]) -> Generator[None, None, _Checkpoint]:
        count = len(raws)
        state, at, key = self._newest_checkpoint(raws)
        if at == count:
            return state
        read: list[Item] = []
        start, slice_bytes = at, 0
        for place in range(at, count):
            slice_bytes += len(memoryview(items[place])) + _BYTES_OF_ITEM
            if slice_bytes > _SLICE_BYTES:
                read += self._read(raws, items, range(start, place + 1))
                start, slice_bytes = place + 1, 0
                yield
        read += self._read(raws, items, range(start, count))
        if len(read) > 2:
            cut = _find_cut(read)
            if cut:
                state, at, read = _follow(state, read[:cut], at), at + cut, read[cut:]
                self._checkpoints.put(_hash_prefixes(raws, (at,))[0], state)
        found = _follow(state, read, at)
        if read[-1].kind in _ENDS:
            self._checkpoints.put(key, found)
        return found

    def _newest_checkpoint(self, raws: Sequence[int]) -> tuple[_Checkpoint, int, int]:
        """And after how many items it stands; and the key of one after all items."""
        count, known = len(raws), self._checkpoints
        # Most requests bring an answer and what came of it; some repeat the one before.
        ends: Sequence[int] = (max(count - 2, 0), count)
        keys = _hash_prefixes(raws, ends)
        of_all, below, least = keys[1], count, max(0, count - _MAX_TRIED)
        while True:
            for end, key in zip(ends, keys, strict=True):
                state = known.newer.get(key) or (known.older and known.get(key))
                if state:
                    return state, end, of_all
            ends = range(below - 1, max(least, below - 1 - _TRIED_AT_ONCE), -1)
            if not ends:
                return _EMPTY, 0, of_all
            keys = _hash_prefixes(raws, ends)
            below -= _TRIED_AT_ONCE

    def _read(self, raws: Sequence[int], items: Sequence[Raw], places: Iterable[int]) -> list[Item]:
        """The items in these places, of which most are known."""
        known, weight = self._items, 0
        new: dict[int, Item] = {}
        found: list[Item] = []
        for at in places:
            key = raws[at]
            item = known.newer.get(key) or new.get(key) or (known.older and known.get(key)) or None
            if item is None:
                item = new[key] = read_item(items[at])
                weight += 1 + len(item.ids)
            found.append(item)
        if new:
            known.put_all(new, weight=weight)
        return found

    def _item(self, raws: Sequence[int], items: Sequence[Raw], at: int) -> Item:
        return self._read(raws, items, (at,))[0]

    def _agent(
        self, fields: RequestBody, items: Sequence[Raw], raws: Sequence[int], stored: int
    ) -> tuple[int, int, PromptHead]:
        stated = (
            digest(fields.system) if fields.system is not ABSENT else 0,
            digest(fields.instructions) if fields.instructions is not ABSENT else 0,
            *(digest_all(fields.tools) if fields.tools else ()),
        )
        key = hash((stated, *raws[:_MAX_SYSTEM]))
        agent = self._agents.newer.get(key) or self._agents.get(key)
        if agent is None:
            systems: list[int] = []
            read: list[int] = []
            sent: list[int] = []
            others: list[int] = []
            for at, item in enumerate(self._read(raws, items, range(min(_MAX_SYSTEM, len(raws))))):
                if item.kind != SYSTEM:
                    others.append(item.hash)
                    continue
                systems.append(at)
                read.append(item.hash)
                sent.append(raws[at])
            exact, as_sent = hash((stated, *read)), hash((stated, *sent))
            known = self._types.newer.get(as_sent) or self._types.get(as_sent)
            if known is None:
                parts = (fields.system, fields.instructions, *map(items.__getitem__, systems))
                prompt = [each for each in parts if each is not ABSENT]
                tools = fields.tools or ()
                known = agent_skeleton(prompt, tools), *head_of(prompt, tools)
                self._types.put(as_sent, known, weight=1 + len(known[1] + known[2]) // 64)
            # Behind state that the engine keeps, the first messages are new ones.
            first = () if stored else others
            agent = exact, known[0], PromptHead(*known[1:], short_hashes(first))
            self._agents.put(key, agent)
        return agent


def _hash_prefixes(raws: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Hashes of the first items up to each end; the ends of long conversations share the work."""
    base, base_start = 0, -1  # none: equal prefixes are hashed alike, whichever stand beside them
    hashes: list[int] = []
    for end in ends:
        start = end // _STRIDE * _STRIDE
        if start != base_start:
            base, base_start = hash(tuple(raws[:start])), start
        hashes.append(hash((base, start, *raws[start:end])))
    return hashes


def _find_cut(read: Sequence[Item]) -> int:
    """After how many of the items just read a second checkpoint stands; 0 for none."""
    before = len(read) - _BACK
    if before > 0:
        while before and read[before - 1].kind not in _ENDS:
            before -= 1
        return before
    # Before the newest answer and its results: a repeated request gets another answer.
    return len(read) - 2 if read[-2].kind == ASSISTANT and read[-3].kind in _ENDS else 0


def _follow(state: _Checkpoint, items: Sequence[Item], count: int) -> _Checkpoint:
    tail, recent, blocks, run = state.tail, state.recent, state.blocks, state.run
    call_end, answer_end, media = state.call_end, state.answer_end, state.media_bytes
    # Of those in a row, each with the hash of what stands before it.
    runs: list[list[tuple[int, Item]]] = []
    is_run = False
    for place, item in enumerate(items, count + 1):
        kind = item.kind
        media += item.media_bytes
        if item.ids:
            call_end = place
        if kind == ASSISTANT:
            answer_end = place
            if not is_run:
                is_run = True
                runs.append([])
            runs[-1].append((tail, item))
        elif kind in _ENDS:
            is_run = False
        else:
            if kind == ASIDE:
                answer_end = place
            continue
        recent = (tail, *recent[: MAX_RECENT - 1])
        # No polynomial: modulo 2**64, some sequences of two items collide whatever their hashes are.
        tail = hash((tail, item.hash)) & _MASK
    for answers in runs[-MAX_BLOCKS:]:
        if len(answers) == 1:  # as mostly
            [(before, item)] = answers
            found = [AssistantBlock(before, item.text, item.has_calls)]
        else:
            found = _blocks(answers)
        blocks, run = (*found, *blocks)[:MAX_BLOCKS], len(found)
    return _Checkpoint(tail, recent, blocks, run, call_end, answer_end, media)


def _blocks(answers: Sequence[tuple[int, Item]]) -> list[AssistantBlock]:
    """Newest first. Several answers may stand in a row, so a block begins at each of them that has a text;
    all of them reach to the end."""
    starts = [0, *(at for at in range(1, len(answers)) if answers[at][1].text)][:_MAX_RUN]
    return [_block(answers[start:]) for start in reversed(starts)]


def _block(answers: Sequence[tuple[int, Item]]) -> AssistantBlock:
    texts = [item.text for _, item in answers if item.text]
    text = texts[0] if len(texts) == 1 else hash(tuple(texts)) if texts else 0
    return AssistantBlock(answers[0][0], text, any(item.has_calls for _, item in answers))
