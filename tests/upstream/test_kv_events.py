"""The books of an engine's blocks: who holds what, with events that come twice, late or never."""

import random

import msgspec
import pytest

from gateway.upstream.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvBooks,
    decode_batch,
    number_of,
)


def stored(*hashes, session="s1", **fields):
    return BlockStored(block_hashes=list(hashes), block_size=32, session_id=session, **fields)


def removed(*hashes, **fields):
    return BlockRemoved(block_hashes=list(hashes), **fields)


def test_a_session_holds_what_was_stored_for_it_and_not_removed():
    books = KvBooks()
    books.came(0, [stored(1, 2, 3), stored(9, session="s2"), stored(8, session=None)])
    assert books.tokens == {"s1": 96, "s2": 32}
    books.came(1, [removed(2, 8, 77), stored(1)])
    assert books.tokens == {"s1": 64, "s2": 32}
    books.came(2, [removed(9)])
    assert books.tokens == {"s1": 64}
    books.came(3, [AllBlocksCleared()])
    assert not books.tokens and not books._blocks


def test_what_sessions_share_counts_for_each():
    books = KvBooks()
    books.came(0, [stored(1), stored(1, 2, session="s2")])
    assert books.tokens == {"s1": 32, "s2": 64}
    books.came(1, [removed(1)])
    assert books.tokens == {"s2": 32}


def test_other_tiers_and_groups_do_not_count():
    books = KvBooks()
    books.came(0, [stored(1, medium="CPU"), stored(2, group_idx=1), stored(3, medium="GPU", group_idx=0)])
    assert books.tokens == {"s1": 32}
    books.came(1, [removed(3, medium="CPU"), removed(3, group_idx=1)])
    assert books.tokens == {"s1": 32}


def test_a_gap_is_seen_and_closed():
    books = KvBooks()
    books.came(5, [stored(1)])
    books.came(7, [removed(1)])
    assert books.missing_from() == 6 and books.tokens == {"s1": 32}
    books.came(6, [stored(2)])
    assert books.missing_from() is None and books.tokens == {"s1": 32}
    books.came(5, [stored(3)])
    assert books.tokens == {"s1": 32}, "it was there before"


def test_what_cannot_be_had_again_ends_what_was_believed():
    books = KvBooks()
    books.came(0, [stored(1)])
    books.came(3, [stored(2)])
    books.gave_up()
    assert books.tokens == {"s1": 32} and books.lost == 2 and books.missing_from() is None
    books.restarted()
    assert not books.tokens
    books.came(0, [stored(5)])
    assert books.tokens == {"s1": 32}


@pytest.mark.parametrize("seed", range(20))
def test_lost_and_repeated_batches_change_nothing_in_the_end(seed):
    dice = random.Random(seed)
    batches = [
        [
            (stored if dice.random() < 0.6 else removed)(
                *(dice.randrange(40) for _ in range(3)),
            )
        ]
        for _ in range(200)
    ]
    truth, books = KvBooks(), KvBooks()
    for number, batch in enumerate(batches):
        truth.came(number, batch)
        if number and dice.random() < 0.2:
            continue
        books.came(number, batch)
        if (missing := books.missing_from()) is not None and dice.random() < 0.5:
            for again in range(missing, number + 1):
                books.came(again, batches[again])
    for number, batch in enumerate(batches):
        books.came(number, batch)
    assert books.tokens == truth.tokens


def test_memory_is_bounded():
    books = KvBooks(max_blocks=3)
    books.came(0, [stored(*range(10))])
    assert len(books._blocks) == 3 and books.tokens == {"s1": 96}
    for number in range(2, 3000):
        books.came(number, [])
    assert len(books._early) == 1024
    for session in range(20):
        books.came(1, []) if not session else None
        books.restarted()
        books.came(0, [stored(1, session=f"s{n}") for n in range(20)])
    assert len(books.tokens) == 8


def test_batches_are_read_as_they_are_published():
    event = {
        "type": "BlockStored",
        "block_hashes": [b"x"],
        "block_size": 16,
        "token_ids": [1],
        "lora_id": None,
    }
    payload = msgspec.msgpack.encode([1.5, [event, {"type": "AllBlocksCleared"}]])
    batch = decode_batch(payload)
    assert batch.events == [BlockStored(block_hashes=[b"x"], block_size=16), AllBlocksCleared()]
    with pytest.raises(msgspec.MsgspecError):
        decode_batch(b"nonsense")
    assert number_of((7).to_bytes(8, "big")) == 7 and number_of((-1).to_bytes(8, "big", signed=True)) == -1
