"""Coroutines that are run by hand: they go on at once, end once, and can be called off anywhere."""

import asyncio

import pytest

from gateway.upstream.one_shot import OneShot, Run, in_task


def start(coroutine) -> tuple[Run, list[str]]:
    ends: list[str] = []
    run = Run(coroutine, lambda: ends.append("end"))
    run.advance()
    return run, ends


def test_it_goes_on_within_the_call_that_brings_the_moment():
    moment, seen = OneShot(), []

    async def work():
        seen.append("start")
        await moment
        seen.append("came")

    _, ends = start(work())
    assert seen == ["start"] and not ends
    moment.set()
    assert seen == ["start", "came"] and ends == ["end"]
    moment.set()
    moment.fail(ValueError())
    assert ends == ["end"]


def test_what_came_before_is_not_waited_for():
    early, failed = OneShot(), OneShot()
    early.set()
    failed.fail(ValueError("no"))

    async def work():
        await early
        with pytest.raises(ValueError, match="no"):
            await failed

    assert start(work())[1] == ["end"]


def test_a_failure_is_raised_where_it_is_waited_for():
    moment = OneShot()

    async def work():
        with pytest.raises(ValueError, match="no"):
            await moment

    _, ends = start(work())
    moment.fail(ValueError("no"))
    assert ends == ["end"]


def test_what_the_coroutine_raises_reaches_whoever_runs_it_and_it_has_ended():
    async def work():
        raise ValueError("bug")

    ends: list[str] = []
    with pytest.raises(ValueError, match="bug"):
        Run(work(), lambda: ends.append("end")).advance()
    assert ends == ["end"]


def test_it_can_be_called_off_where_it_waits():
    moment, seen = OneShot(), []

    async def work():
        try:
            await moment
        finally:
            seen.append("cleared up")

    run, ends = start(work())
    run.cancel()
    assert seen == ["cleared up"] and ends == ["end"]
    moment.set()
    assert ends == ["end"]


async def test_it_may_wait_for_asyncio_too():
    future = asyncio.get_running_loop().create_future()

    async def work():
        assert await future == 3

    _, ends = start(work())
    future.set_result(3)
    assert not ends
    await asyncio.sleep(0)
    assert ends == ["end"]


async def test_called_off_it_does_not_hear_of_the_future_any_more():
    future = asyncio.get_running_loop().create_future()

    async def work():
        await future

    run, ends = start(work())
    future.set_result(None)
    run.cancel()
    await asyncio.sleep(0)
    assert ends == ["end"]


async def test_a_task_gets_its_result_or_its_error_and_can_be_cancelled():
    moment, ends = OneShot(), []

    async def work(result):
        try:
            await moment
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        if isinstance(result, Exception):
            raise result
        return result

    cancelled = asyncio.create_task(in_task(work(1)))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert ends == ["cancelled"]
    waits = asyncio.create_task(in_task(work(2)))
    await asyncio.sleep(0)
    moment.set()
    assert await waits == 2
    with pytest.raises(ValueError, match="no"):
        await in_task(work(ValueError("no")))
