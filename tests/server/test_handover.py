"""Records reach whoever reads them: all of them, in order, and soon."""

import asyncio

from gateway.domain import records as rec
from gateway.server.handover import PERIOD_S, Handover
from tests.telemetry.lines import as_lines


def some(*numbers: int) -> list[rec.Record]:
    return [rec.ToolNum(at_s=1.0, active=number) for number in numbers]


def readers(count: int) -> tuple[Handover, list[list[rec.Record]], list[int]]:
    heard: list[list[rec.Record]] = [[] for _ in range(count)]
    calls: list[int] = []

    def taker(number: int):
        def take(records: list[rec.Record]) -> None:
            heard[number] += records
            calls.append(number)

        return take

    return Handover([taker(number) for number in range(count)]), heard, calls


async def test_many_events_are_one_call_for_each_reader():
    handover, heard, calls = readers(3)
    for number in range(50):
        handover.take(some(number, -number))
    assert not calls
    await asyncio.sleep(3 * PERIOD_S)
    assert calls == [0, 1, 2]
    assert (
        heard[0] == heard[1] == heard[2] == [each for number in range(50) for each in some(number, -number)]
    )
    handover.take(some(7))
    await asyncio.sleep(3 * PERIOD_S)
    assert calls == [0, 1, 2] * 2 and heard[2][-1:] == some(7)


async def test_who_asks_has_everything_at_once_and_nothing_twice():
    handover, heard, calls = readers(1)
    handover.take(some(1))
    handover.flush()
    assert heard == [some(1)]
    handover.take(some(2))
    handover.flush()
    handover.flush()
    await asyncio.sleep(3 * PERIOD_S)
    assert heard == [some(1, 2)] and len(calls) == 2


async def test_a_flood_does_not_wait_for_its_time():
    handover, heard, _ = readers(1)
    for number in range(2500):
        handover.take(some(number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    assert len(heard[0]) >= 2000


async def test_what_is_said_of_a_record_in_the_same_breath_is_known_to_its_readers():
    handover, heard, _ = readers(1)
    for number in range(600):
        handover.take(some(number))
    assert not heard[0]
    await asyncio.sleep(0)
    assert len(heard[0]) == 600


async def test_lines_are_made_once_and_of_the_same_records():
    records: list[rec.Record] = []
    heard: list[tuple[bytes, int]] = []
    handover = Handover([records.extend], [lambda *told: heard.append(told)] * 2)
    handover.take(some(1, 2))
    handover.flush()
    handover.flush()
    assert heard == [as_lines(records)] * 2 and heard[0][0] is heard[1][0]


async def test_what_one_reader_raises_the_others_do_not_feel(caplog):
    def fails(records: list[rec.Record]) -> None:
        raise RuntimeError("a reader")

    heard: list[rec.Record] = []
    handover = Handover([fails, heard.extend])
    for _ in range(2):
        handover.take(some(1))
        handover.flush()
    assert len(heard) == 2 and len(caplog.records) == 1
