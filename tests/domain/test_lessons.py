"""What gateways tell one another of what they saw: bounded, and read with suspicion."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import TenantId
from gateway.domain.lessons import (
    MAX_BYTES,
    Came,
    Fact,
    Lesson,
    Notes,
    SessionWas,
    Silence,
    StepFollowed,
    StepTaken,
    ToolRan,
    TurnMade,
    read,
)

ACME, BETA = TenantId("acme"), TenantId("beta")
RAN = ToolRan(-5, "bash", 1.5, 200.0, True)
ALL: tuple[Lesson, ...] = (
    StepTaken(2**64 - 1, 2, False, ("bash", "edit"), None),
    StepTaken(1, 2, True, (), ("bash",)),
    StepFollowed(1, 2, True, (), 77, Came.BACK, 3.5),
    RAN,
    TurnMade("pool", 4, 2, 1.5, None),
    TurnMade("pool", 4, 2, 1.5, -300.0),
    SessionWas("pool", 4, Fact.SHARED, 900.0),
    Silence("pool", 4, True, Came.NO_END),
)


def batch(*lessons: object, owner: str = "acme") -> bytes:
    return msgspec.msgpack.encode({owner: lessons})


def test_what_was_noted_is_read_by_owner_and_in_order():
    notes = Notes()
    for each in ALL:
        notes.note(ACME, each)
    notes.note(BETA, RAN)
    assert read(notes.take()) == [*((ACME, each) for each in ALL), (BETA, RAN)]
    assert notes.take() == b""


def test_what_others_saw_is_not_noted():
    notes = Notes()
    notes.is_muted = True
    notes.note(ACME, RAN)
    notes.is_muted = False
    assert notes.take() == b"" and notes.noted == 0


def test_nobody_takes_the_room_of_others():
    notes = Notes()
    for number in range(5_000):
        notes.note(ACME, ToolRan(number, "bash", 1.0, 10.0, False))
    for _ in range(100):
        notes.note(BETA, RAN)
    taken = notes.take()
    assert len(taken) <= MAX_BYTES
    found = read(taken)
    assert found.count((BETA, RAN)) == 100
    assert sum(owner == ACME for owner, _ in found) > 500
    assert len(found) + notes.dropped == notes.noted == 5_100
    notes.note(ACME, RAN)
    assert read(notes.take()) == [(ACME, RAN)]


@pytest.mark.parametrize("chars", [1, 250])
def test_however_many_tenants_note_something_a_batch_is_bounded(chars):
    notes = Notes()
    for number in range(60_000):
        notes.note(TenantId(f"{number % 20_000:0{chars}}"), RAN)
    taken = notes.take()
    assert len(taken) <= 1.2 * MAX_BYTES and len(read(taken)) > 150


@pytest.mark.parametrize(
    "bad",
    [
        [3, 1, "bash", math.nan, 0.0, False],
        [3, 1, "bash", math.inf, 0.0, False],
        [3, 1, "bash", -1.0, 0.0, False],
        [3, 1, "bash", 1e300, 0.0, False],
        [3, 1, "b" * 65, 1.0, 0.0, False],
        [3, 1, "bash", "1.0", 0.0, False],
        [3, 1, "bash"],
        [2, 1, 2, False, ["t"] * 17, 0, 0, 1.0],
        [2, 1, 2, False, ["t"], 0, 9, 1.0],
        [4, "pool", 1, 0, 1.0, None],
        [4, "pool", 1, 10**9, 1.0, None],
        [99, "of another version"],
        [],
        {},
        None,
        "text",
    ],
    ids=repr,
)
def test_a_lesson_that_makes_no_sense_is_passed_over(bad):
    assert read(batch(RAN, bad, RAN)) == [(ACME, RAN), (ACME, RAN)]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"text",
        b"\x91" * 60_000,
        b"\x81\xa1a" * 20_000,
        b"\x81\xa1a\x91" + b"\x91" * 50_000 + b"\xc0",
        b"\x81\xa2\xff\xff\x90",
        msgspec.msgpack.encode([RAN]),
        batch(RAN, owner="a" * 300),
        batch(*[RAN] * 10_000),
    ],
    ids=lambda bad: f"{len(bad)} bytes",
)
def test_a_batch_that_makes_no_sense_is_passed_over(bad):
    assert read(bad) == []


@given(at=st.integers(0, 400), by=st.binary(max_size=4))
def test_a_batch_that_was_changed_on_its_way_never_raises(at, by):
    whole = batch(*ALL)
    found = read(whole[:at] + by + whole[at + len(by) :])
    assert len(found) <= len(ALL)


@given(st.binary(max_size=200))
def test_nothing_that_is_read_raises(noise):
    read(noise)
    read(b"\x81\xa1a\x92" + noise)
