"""Small parts: allowances, ids, records, printable text, and the map that is bounded for all tenants."""

import json
from heapq import heapreplace
from itertools import islice
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import records as rec
from gateway.domain import tenant_lru as module
from gateway.domain.allowance import Allowance
from gateway.domain.ids import MAX_ID_CHARS, ReplicaId, clean_name, is_well_formed_id
from gateway.domain.printable import printable
from gateway.domain.session_ids import keyed_ids, numbered_ids
from gateway.domain.tenant_lru import TenantLru


def test_what_is_granted():
    allowed = Allowance(per_s=10.0, burst=3.0)
    assert [allowed.take(now=0.0) for _ in range(5)] == [True, True, True, False, False]
    assert not allowed.take(now=0.05)
    assert allowed.take(now=0.1) and not allowed.take(now=0.1)
    assert sum(allowed.take(now=100.0) for _ in range(10)) == 3


def test_time_that_stands_still_or_goes_back_grants_nothing():
    allowed = Allowance(per_s=1000.0, burst=1.0)
    assert allowed.take(now=5.0)
    assert not allowed.take(now=5.0) and not allowed.take(now=4.0) and not allowed.take(now=5.0)


@pytest.mark.parametrize("text", ["x", "call_0", "a b", "日本", "x" * MAX_ID_CHARS])
def test_well_formed(text):
    assert is_well_formed_id(text)


@pytest.mark.parametrize("text", ["", "x" * (MAX_ID_CHARS + 1), "a\nb", "a\x00", "\x7f", "a\u2028b"])
def test_not_well_formed(text):
    assert not is_well_formed_id(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("coder", "coder"), ("", ""), ("a\r\nb\x1b[2J", "a??b?[2J"), ("x" * 1_000_000, "x" * MAX_ID_CHARS)],
)
def test_a_name_is_short_and_printable(text, name):
    assert clean_name(text) == name


@pytest.mark.parametrize("text", ["", "bash", "größer 名前 🚀", "a b\\u001b"])
def test_what_prints_stays_as_it_is(text):
    assert printable(text) is text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jx", "\\u001b[2Jx"),
        ("a\nb\r", "a\\u000ab\\u000d"),
        ("\x9b31m", "\\u009b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\U000e0001", "\\udb40\\udc01"),
    ],
)
def test_what_does_not_print_is_an_escape(text, shown):
    assert printable(text) == shown


def test_what_is_to_be_kept():
    assert printable("a\n\x1b", keep="\n") == "a\n\\u001b"


@given(st.text())
def test_it_prints_whatever_comes_and_json_stays_the_same(text):
    assert printable(text).isprintable()
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_every_record_has_its_own_name():
    tags = [kind.__struct_config__.tag for kind in get_args(rec.Record)]
    assert len(set(tags)) == len(tags)
    assert {"gpu_submit", "gpu_1st_token", "gpu_end", "tool_num", "tool_start", "tool_end"} <= set(tags)


def test_a_record_survives_the_wire():
    record = rec.ReplicaChanged(at_s=1.5, replica=ReplicaId("a"), state="up", why="is healthy")
    line = msgspec.json.encode(record)
    assert msgspec.json.decode(line)["type"] == "replica"
    assert msgspec.json.decode(line, type=rec.Record) == record


def test_who_knows_some_names_does_not_know_the_next():
    names = list(islice(keyed_ids(b"k" * 32), 1000))
    assert len(set(names)) == 1000 and all(len(name) == 18 and name.startswith("s-") for name in names)
    assert names == list(islice(keyed_ids(b"k" * 32), 1000)), "the key decides, not chance"
    assert not set(names) & set(islice(keyed_ids(b"l" * 32), 1000)), "another process has other names"
    letters = {place: len({name[place] for name in names}) for place in range(2, 18)}
    assert min(letters.values()) == 32, "no letter of a name is a counter's"


def test_names_may_be_numbered_where_no_client_sees_them():
    assert list(islice(numbered_ids("p"), 3)) == ["s-p1", "s-p2", "s-p3"]


TENANTS, KEYS = st.sampled_from("abc"), st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("put"), TENANTS, KEYS, st.integers(0, 4)),
    st.tuples(st.sampled_from(["get", "pop"]), TENANTS, KEYS, st.just(0)),
)


class Naive:
    """One list, the longest unseen first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: list[tuple[str, int, int, int]] = []

    def find(self, tenant: str, key: int) -> tuple[str, int, int, int] | None:
        return next((each for each in self.entries if each[:2] == (tenant, key)), None)

    def put(self, tenant: str, key: int, value: int, weight: int) -> list[tuple[str, int, int]]:
        if (found := self.find(tenant, key)) is not None:
            self.entries.remove(found)
        self.entries.append((tenant, key, value, weight))
        dropped = []
        while sum(each[3] for each in self.entries) > self.most:
            held = {tenant: sum(e[3] for e in self.entries if e[0] == tenant) for tenant, *_ in self.entries}
            oldest = next(each for each in self.entries if held[each[0]] == max(held.values()))
            self.entries.remove(oldest)
            dropped.append(oldest[:3])
        return dropped


@given(st.integers(0, 12), st.lists(STEPS, max_size=150))
def test_it_does_what_the_naive_one_does(most, steps):
    lru: TenantLru[str, int, int] = TenantLru(most)
    naive = Naive(most)
    for value, (what, tenant, key, weight) in enumerate(steps):
        found = naive.find(tenant, key)
        expected = found[2] if found is not None else None
        match what:
            case "put":
                assert lru.put(tenant, key, value, weight) == naive.put(tenant, key, value, weight)
            case "get":
                assert lru.get(tenant, key) == expected
                if found is not None:
                    naive.entries.remove(found)
                    naive.entries.append(found)
            case _:
                assert lru.pop(tenant, key) == expected
                if found is not None:
                    naive.entries.remove(found)
        assert len(lru) == len(naive.entries)
        assert lru.weight == sum(each[3] for each in naive.entries) <= most
        assert sorted(lru.items()) == sorted(each[:3] for each in naive.entries)


def test_whoever_holds_most_loses_its_own():
    lru: TenantLru[str, int, str] = TenantLru(10)
    lru.put("quiet", 0, "kept")
    for number in range(1000):
        assert all(tenant == "loud" for tenant, _, _ in lru.put("loud", number, "x"))
    assert lru.get("quiet", 0) == "kept" and len(lru) == 10


def test_nothing_is_kept_of_those_who_hold_nothing():
    lru: TenantLru[int, int, int] = TenantLru(4)
    for number in range(10_000):
        lru.put(number, 0, number)
        lru.put(number, 0, number)
    assert [tenant for tenant, _, _ in lru.items()] == [9996, 9997, 9998, 9999]
    assert len(lru._held) == 4 and len(lru._marks) <= 2 * 4 + 65


def test_a_full_one_of_one_tenant_takes_few_steps(monkeypatch):
    steps = 0

    def replace(heap, item):
        nonlocal steps
        steps += 1
        return heapreplace(heap, item)

    monkeypatch.setattr(module, "heapreplace", replace)
    lru: TenantLru[str, int, int] = TenantLru(100)
    for number in range(1100):
        lru.put("t", number, number)
    assert steps <= 2000
