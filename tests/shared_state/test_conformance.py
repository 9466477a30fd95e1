"""What every store does, whatever it is made of."""

import asyncio

import pytest

from gateway.admission.quotas import Quota, Quotas
from gateway.domain.ids import TenantId
from gateway.shared_state import protocol
from gateway.shared_state.protocol import Entry, StoreUnavailable


async def test_what_is_published_is_found_by_the_others(store, open_another):
    other = await open_another()
    store.publish(
        [Entry(b"a", b"1", 60.0), Entry(b"b{x}\0\xff", b"\0\xff", 60.0), Entry(b"empty", b"", 60.0)]
    )
    await store.flush()
    assert await other.find([b"b{x}\0\xff", b"none", b"a", b"empty"]) == [b"\0\xff", None, b"1", b""]
    assert await other.find([b"a"]) == [b"1"]
    assert await other.find([]) == []


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


async def test_a_bucket_gives_what_quotas_give(store):
    """The same questions to both, of a bucket so slow that the time between does not show."""
    tenant = TenantId("t")
    quotas = Quotas({tenant: Quota(tokens_per_minute=60)})
    for amount in (50.0, 20.0, 5.0, 5.0, 1.0):
        expected = quotas.charge(tenant, amount, now=0.0) * 1e6
        assert await store.reserve(b"t", amount, 60.0, 1e-6) == pytest.approx(expected, rel=1e-6)
    for charged, used in ((50.0, 10.0), (5.0, 90.0)):
        quotas.correct(tenant, charged, used, now=0.0)
        store.settle(b"t", charged - used, 60.0, 1e-6)
        await store.flush()
        for amount in (35.0, 200.0):
            expected = quotas.charge(tenant, amount, now=0.0) * 1e6
            assert await store.reserve(b"t", amount, 60.0, 1e-6) == pytest.approx(expected, rel=1e-6)


async def test_a_bucket_refills_and_holds_no_more_than_its_limit(store):
    assert await store.reserve(b"t", 100.0, 100.0, 1000.0) == 0.0
    assert 0.0 < await store.reserve(b"t", 100.0, 100.0, 1000.0) <= 0.1
    await asyncio.sleep(0.11)
    store.settle(b"t", 1e6, 100.0, 1000.0)
    await store.flush()
    assert await store.reserve(b"t", 250.0, 100.0, 1000.0) == 0.0
    assert 0.15 < await store.reserve(b"t", 100.0, 100.0, 1000.0) <= 0.25
    assert store.counters.dropped_writes == 0


async def test_a_bucket_never_gives_more_than_it_holds(store, open_another):
    other = await open_another()
    answers = await asyncio.gather(
        *[[store, other][number % 2].reserve(b"t", 1.0, 10.0, 1e-6) for number in range(50)]
    )
    assert answers.count(0.0) == 10


async def test_gauges_of_all_others_until_they_lapse(store, open_another):
    other = await open_another()
    assert await store.exchange("a", b"1", 60.0) == {}
    assert await other.exchange("b", b"\0\xff", 0.05) == {"a": b"1"}
    assert await store.exchange("a", b"2", 60.0) == {"b": b"\0\xff"}
    await asyncio.sleep(0.06)
    assert await store.exchange("a", b"3", 60.0) == {}
    assert await other.exchange("b", b"2", 60.0) == {"a": b"3"}


async def test_one_holder_has_a_lease_and_numbers_grow(store, open_another):
    other = await open_another()
    first = await store.lease("sweep", "a", 0.3)
    assert first is not None
    assert await other.lease("sweep", "b", 60.0) is None
    assert await store.lease("sweep", "a", 0.3) == first
    assert await other.lease("else", "b", 60.0) is not None
    await asyncio.sleep(0.31)
    second = await other.lease("sweep", "b", 60.0)
    assert second is not None and second > first
    assert await store.lease("sweep", "a", 60.0) is None
    await store.release("sweep", "a")
    assert await store.lease("sweep", "a", 60.0) is None
    await other.release("sweep", "b")
    third = await store.lease("sweep", "a", 60.0)
    assert third is not None and third > second
    await store.release("sweep", "a")
    fourth = await store.lease("sweep", "a", 60.0)
    assert fourth is not None and fourth > third


async def test_a_stream_is_read_in_order_from_anywhere(store, open_another):
    other = await open_another()
    assert await other.read("deltas", "") == []
    for number in range(5):
        store.append("deltas", b"%d\0" % number)
    await store.flush()
    read = await other.read("deltas", "")
    assert [payload for _, payload in read] == [b"%d\0" % number for number in range(5)]
    assert await other.read("deltas", read[2][0]) == read[3:]
    assert await other.read("deltas", read[-1][0]) == []
    store.append("deltas", b"more")
    await store.flush()
    assert [payload for _, payload in await other.read("deltas", read[-1][0])] == [b"more"]


async def test_a_stream_is_bounded(store, monkeypatch):
    monkeypatch.setattr(protocol, "STREAM_LENGTH", 10)
    monkeypatch.setattr(protocol, "READ_LENGTH", 4)
    for number in range(25):
        store.append("deltas", b"%d" % number)
    await store.flush()
    seen: list[bytes] = []
    after = ""
    while read := await store.read("deltas", after):
        assert len(read) <= 4
        seen += [payload for _, payload in read]
        after = read[-1][0]
    assert seen == [b"%d" % number for number in range(15, 25)]


async def test_a_stream_lapses(store, monkeypatch):
    monkeypatch.setattr(protocol, "STREAM_TTL_S", 0.05)
    store.append("deltas", b"1")
    await store.flush()
    await asyncio.sleep(0.06)
    assert await store.read("deltas", "") == []


async def test_what_makes_no_sense_is_refused_before_it_is_sent(store):
    too_large = b"x" * (protocol.MAX_VALUE_BYTES + 1)
    for nonsense in (
        store.claim(b"a", too_large, 1.0),
        store.claim(too_large, b"a", 1.0),
        store.claim(b"a", b"a", 0.0),
        store.reserve(b"a", 1.0, 0.0, 1.0),
        store.reserve(b"a", float("nan"), 1.0, 1.0),
        store.exchange("a", b"", float("inf")),
        store.lease("a", "b", -1.0),
        store.read("a", "no id"),
    ):
        with pytest.raises(ValueError, match=r"."):
            await nonsense
    with pytest.raises(ValueError, match="bytes"):
        store.publish([Entry(b"a", too_large, 1.0)])
    with pytest.raises(ValueError, match="refilled"):
        store.settle(b"a", 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="bytes"):
        store.append("a", too_large)
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
    assert counters.bytes_sent == len(b"keyvalue") + len(b"keynone")
    assert counters.bytes_received == len(b"value")


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
