"""The ring: numbers without holes, the newest kept."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import records as rec
from gateway.telemetry.ring import Ring
from tests.telemetry.lines import as_lines


def told_of(numbers: Iterable[int]) -> tuple[bytes, int]:
    return as_lines([rec.ToolNum(at_s=float(number), active=number) for number in numbers])


@given(st.integers(1, 20), st.lists(st.integers(0, 7), max_size=12), st.integers(0, 80), st.integers(0, 30))
def test_what_is_behind_a_number_is_the_newest_that_is_kept(size, batches, number, limit):
    ring, told = Ring(size, 1 << 30), 0
    for batch in batches:
        ring.extend(*told_of(range(told + 1, told + batch + 1)))
        told += batch
    kept = list(range(max(1, told - size + 1), told + 1))
    assert (ring.first, ring.last) == (kept[0] if kept else told + 1, told)
    behind = [each.at_s for each in ring.behind(number, limit)]
    assert behind == [each for each in kept if each > number][:limit]
    assert [each.at_s for each in ring.newest_first()] == kept[::-1]


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(0, 45))
def test_what_is_kept_is_bounded_in_bytes(sizes, number):
    ring = Ring(1000, 500)
    lines = [b"x" * size + b"\n" for size in sizes]
    for line in lines:
        ring.extend(line, 1)
    kept: list[bytes] = []
    for line in reversed(lines):
        if sum(map(len, kept)) + len(line) > 500:
            break
        kept.insert(0, line)
    assert ring._bytes == sum(map(len, kept)) and ring.last == len(lines)
    assert ring.first == len(lines) - len(kept) + 1
    behind = lines[max(number, ring.first - 1) :]
    assert ring.lines_behind(number, 100) == [line.rstrip(b"\n") for line in behind]
