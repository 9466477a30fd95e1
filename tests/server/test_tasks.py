"""Loops that fail are started again; one item's fault is nobody else's."""

import asyncio
import logging

import pytest

from gateway.server import tasks as module
from gateway.server.tasks import FIRST_PAUSE_S, LONGEST_PAUSE_S, TaskGroup, check_each, pause_s


def test_pauses_double_up_to_a_bound():
    assert [pause_s(n) for n in (1, 2, 3)] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pause_s(10_000) == LONGEST_PAUSE_S


class Loop:
    """Fails so many times, then runs on."""

    def __init__(self, failures: int) -> None:
        self.failures, self.runs = failures, 0
        self.is_running = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise RecursionError("deep")
        self.is_running.set()
        await asyncio.Event().wait()


async def test_a_loop_that_fails_is_started_again_and_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    group, loop = TaskGroup(), Loop(failures=3)
    with caplog.at_level(logging.ERROR):
        group.supervise("health checks", loop.run, of="a")
        await asyncio.wait_for(loop.is_running.wait(), 10)
    assert loop.runs == 4 and group.restarts == {"health checks": 3}
    assert [record.message for record in caplog.records] == ["health checks of a failed and is started again"]
    assert caplog.records[0].exc_info is not None
    assert group.failing() == ["health checks of a"]
    await group.cancel()
    assert group.failing() == [] and not len(group)


async def test_a_loop_that_ran_for_long_enough_is_well_and_is_told_of_anew(monkeypatch, caplog):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "CALM_S", 0.0)
    group, loop = TaskGroup(), Loop(failures=2)
    group.supervise("sweep", loop.run)
    await asyncio.wait_for(loop.is_running.wait(), 10)
    assert group.failing() == [] and len(caplog.records) == 2
    await group.cancel()


async def test_a_loop_that_returns_or_is_cancelled_is_over():
    group = TaskGroup()

    async def ends() -> None:
        pass

    await asyncio.wait_for(group.supervise("watch", ends), 10)
    assert group.restarts == {"watch": 0}
    endless = Loop(failures=0)
    task = group.supervise("watch", endless.run)
    await asyncio.wait_for(endless.is_running.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.runs == 1


def test_an_item_whose_check_raises_is_cut_and_the_others_are_checked(caplog):
    checked, cut = [], []

    def check(item: int) -> None:
        checked.append(item)
        if item == 2:
            raise ValueError("bad")

    def cut_off(item: int) -> None:
        cut.append(item)
        raise OSError("gone already")

    check_each("connection", [1, 2, 3], check, cut_off)
    assert checked == [1, 2, 3] and cut == [2]
    assert [record.message for record in caplog.records] == ["the check of a connection failed"]
