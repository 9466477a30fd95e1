"""What every store does, whatever it is made of."""

import asyncio

import pytest

from gateway.shared_state import protocol
from gateway.shared_state.protocol import Entry, StoreUnavailable
from gateway.shared_state.remote import GATHER_S

pytestmark = pytest.mark.slow
"""Starts Redis servers, of which one speaks TLS and three are a cluster; a late answer counts as none."""


async def test_what_is_published_is_found_by_the_others(store, open_another):
    other = await open_another()
    store.publish(
        [Entry(b"a", b"1", 60.0), Entry(b"b{x}\0\xff", b"\0\xff", 60.0), Entry(b"empty", b"", 60.0)]
    )
    await store.flush()
    assert await other.find([b"b{x}\0\xff", b"none", b"a", b"empty"]) == [b"\0\xff", None, b"1", b""]
    assert await other.find([b"a"]) == [b"1"]
    assert await other.find([]) == []


async def test_what_is_published_is_soon_found_though_nobody_waits_for_it(store, open_another):
    other = await open_another()
    store.publish([Entry(b"a", b"1", 60.0)])
    async with asyncio.timeout(20):
        while await other.find([b"a"]) != [b"1"]:
            await asyncio.sleep(GATHER_S)


async def test_calls_at_once_get_their_own_answers(store):
    store.publish([Entry(b"%d" % number, b"of %d" % number, 60.0) for number in range(100)])
    await store.flush()
    found = await asyncio.gather(*[store.find([b"%d" % number]) for number in range(100)])
    assert found == [[b"of %d" % number] for number in range(100)]


async def test_the_last_write_stands_and_none_deletes(store):
    store.publish([Entry(b"a", b"1", 60.0), Entry(b"b", b"1", 60.0)])
    store.publish([Entry(b"a", b"2", 60.0), Entry(b"b", None, 60.0)])
    await store.flush()
    assert await store.find([b"a", b"b"]) == [b"2", None]


async def test_who_watches_hears_of_another_value_that_stood_there(store, open_another):
    other, heard = await open_another(), []
    store.on_replaced.append(lambda entry, there: heard.append((entry.key, entry.value, there)))
    other.publish([Entry(key, b"theirs", 60.0) for key in (b"a", b"b", b"d")])
    other.publish([Entry(b"c", b"mine", 60.0), Entry(b"short", b"theirs", 0.01), Entry(b"d", None, 60.0)])
    await other.flush()
    await asyncio.sleep(0.02)
    mine = [Entry(key, b"mine", 60.0, True) for key in (b"new", b"a", b"c", b"short", b"d")]
    store.publish([*mine, Entry(b"b", b"mine", 60.0), Entry(b"a", None, 60.0, True)])
    await store.flush()
    assert heard == [(b"a", b"mine", b"theirs")]
    assert await other.find([b"new", b"a", b"b", b"short"]) == [b"mine", None, b"mine", b"mine"]


async def test_of_two_who_watch_one_key_the_later_one_hears_of_the_earlier(store, open_another):
    other, heard = await open_another(), []
    for each in {id(each): each for each in (store, other)}.values():
        each.on_replaced.append(lambda entry, there: heard.append((entry.value, there)))
    for number in range(50):
        store.publish([Entry(b"%d" % number, b"one", 60.0, True)])
        other.publish([Entry(b"%d" % number, b"other", 60.0, True)])
    await asyncio.gather(store.flush(), other.flush())
    assert len(heard) == 50 and {*heard} <= {(b"one", b"other"), (b"other", b"one")}


async def test_entries_lapse(store):
    store.publish([Entry(b"a", b"1", 0.05), Entry(b"b", b"1", 60.0)])
    await store.flush()
    await asyncio.sleep(0.06)
    assert await store.find([b"a", b"b"]) == [None, b"1"]


async def test_of_many_that_claim_one_gets_it(store, open_another):
    other = await open_another()
    values = [b"%d" % number for number in range(40)]
    claims = [[store, other][number % 2].claim(b"run", value, 60.0) for number, value in enumerate(values)]
    stands = set(await asyncio.gather(*claims))
    assert len(stands) == 1
    assert await store.find([b"run"]) == list(stands)


async def test_a_claim_renews_its_own_and_no_other(store):
    assert await store.claim(b"a", b"mine", 0.3) == b"mine"
    assert await store.claim(b"a", b"mine", 60.0) == b"mine"
    assert await store.claim(b"b", b"mine", 0.3) == b"mine"
    assert await store.claim(b"b", b"theirs", 60.0) == b"mine"
    await asyncio.sleep(0.31)
    assert await store.find([b"a", b"b"]) == [b"mine", None]
    assert await store.claim(b"b", b"theirs", 60.0) == b"theirs"


async def test_claims_and_entries_are_of_one_keyspace(store):
    store.publish([Entry(b"a", b"published", 60.0)])
    await store.flush()
    assert await store.claim(b"a", b"claimed", 60.0) == b"published"


async def test_gauges_of_all_others_until_they_lapse(store, open_another):
    other = await open_another()
    assert await store.exchange("a", b"1", 60.0) == {}
    assert await other.exchange("b", b"\0\xff", 60.0) == {"a": b"1"}
    assert await store.exchange("a", b"2", 60.0) == {"b": b"\0\xff"}
    assert await other.exchange("b", b"\0\xff", 0.05) == {"a": b"2"}
    await asyncio.sleep(0.06)
    assert await store.exchange("a", b"3", 60.0) == {}
    assert await other.exchange("b", b"2", 60.0) == {"a": b"3"}


async def test_what_makes_no_sense_is_refused_before_it_is_sent(store):
    too_large = b"x" * (protocol.MAX_VALUE_BYTES + 1)
    for nonsense in (
        store.claim(b"a", too_large, 1.0),
        store.claim(too_large, b"a", 1.0),
        store.claim(b"a", b"a", 0.0),
        store.exchange("a", b"", float("inf")),
    ):
        with pytest.raises(ValueError, match=r"."):
            await nonsense
    with pytest.raises(ValueError, match="bytes"):
        store.publish([Entry(b"a", too_large, 1.0)])
    assert await store.find([b"a"]) == [None]


async def test_large_values_go_through(store):
    value = b"\0" * protocol.MAX_VALUE_BYTES
    store.publish([Entry(b"%d" % number, value, 60.0) for number in range(20)])
    await store.flush()
    assert await store.find([b"%d" % number for number in range(20)]) == [value] * 20


async def test_what_was_done_is_counted(store):
    store.publish([Entry(b"key", b"value", 60.0)])
    await store.flush()
    await store.find([b"key", b"none"])
    counters = store.counters
    assert counters.writes == 1 and counters.dropped_writes == counters.failures == counters.timeouts == 0
    assert counters.calls >= 1


async def test_a_closed_store_has_written_everything_and_does_no_more(store, open_another):
    other = await open_another()
    store.publish([Entry(b"%d" % number, b"1", 60.0) for number in range(1000)])
    if other is not store:
        await store.aclose()
        assert await other.find([b"0", b"999"]) == [b"1", b"1"]
    await store.aclose()
    assert not store.is_up
    with pytest.raises(StoreUnavailable):
        await store.find([b"0"])
    store.publish([Entry(b"a", b"1", 60.0)])
    assert store.counters.dropped_writes == 1


async def test_rows_are_added_to_in_one_step(store, open_another):
    other = await open_another()
    sums = await asyncio.gather(
        *[[store, other][number % 2].add(b"row", [1.0, 0.25], [0.0, 0.0], 60.0) for number in range(40)]
    )
    assert sorted(each[0] for each in sums) == [float(number) for number in range(1, 41)]
    assert await store.add(b"row", [-0.5, 0.0], [9.0, 9.0], 60.0) == [39.5, 10.0]


async def test_a_row_that_is_not_there_begins_with_what_is_known(store):
    assert await store.add(b"new", [1.0, -1.0], [41.0, 0.5], 60.0) == [42.0, -0.5]
    assert await store.add(b"new", [1e-9, 1e15], [7.0, 7.0], 60.0) == pytest.approx([42.0, 1e15])


async def test_rows_lapse_and_are_no_entries(store):
    await store.add(b"a", [1.0], [0.0], 0.05)
    assert await store.find([b"a"]) == [None]
    await asyncio.sleep(0.06)
    assert await store.add(b"a", [1.0], [0.0], 60.0) == [1.0]
