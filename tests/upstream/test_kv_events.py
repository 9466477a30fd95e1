"""The index of an engine's blocks: who holds what, with batches that come twice or never."""

import msgspec
import pytest

from gateway.upstream.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvIndex,
    decode_batch,
    number_of,
)


def stored(*hashes, session="s1", **fields):
    return BlockStored(block_hashes=list(hashes), block_size=32, session_id=session, **fields)


def removed(*hashes, **fields):
    return BlockRemoved(block_hashes=list(hashes), **fields)


def test_a_session_holds_what_was_stored_for_it_and_not_removed():
    index = KvIndex()
    index.apply(0, [stored(1, 2, 3), stored(9, session="s2"), stored(8, session=None)])
    assert index.tokens == {"s1": 96, "s2": 32}
    index.apply(1, [removed(2, 8, 77), stored(1)])
    assert index.tokens == {"s1": 64, "s2": 32}
    index.apply(2, [removed(9)])
    assert index.tokens == {"s1": 64}
    index.apply(3, [AllBlocksCleared()])
    assert not index.tokens and not index._blocks


def test_what_sessions_share_counts_for_each():
    index = KvIndex()
    index.apply(0, [stored(1), stored(1, 2, session="s2")])
    assert index.tokens == {"s1": 32, "s2": 64}
    index.apply(1, [removed(1)])
    assert index.tokens == {"s2": 32}


def test_other_tiers_and_groups_do_not_count():
    index = KvIndex()
    index.apply(0, [stored(1, medium="CPU"), stored(2, group_idx=1), stored(3, medium="GPU", group_idx=0)])
    assert index.tokens == {"s1": 32}
    index.apply(1, [removed(3, medium="CPU"), removed(3, group_idx=1)])
    assert index.tokens == {"s1": 32}


def test_memory_is_bounded():
    index = KvIndex(max_blocks=3)
    index.apply(0, [stored(*range(10))])
    assert len(index._blocks) == 3 and index.tokens == {"s1": 96}
    index.restart()
    index.apply(0, [stored(1, session=f"s{n}") for n in range(20)])
    assert len(index.tokens) == 8


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


def test_what_was_applied_before_changes_nothing():
    index = KvIndex()
    index.apply(0, [stored(1)])
    index.apply(1, [stored(2)])
    index.apply(0, [stored(3)])
    assert index.tokens == {"s1": 64} and index.next == 2
