"""What engines tell of the hints that they followed, added up."""

import asyncio
from typing import Any

from aiohttp import web

from demo import telemetry
from demo.telemetry import EngineTelemetry


def snapshot(*, followed: int, held: int, returned: int, retained: int) -> dict[str, Any]:
    counters = {
        "hints": {"followed": followed, "stale": 7},
        "holds": {"held": held},
        "releases": {"returned": returned},
    }
    return {"blocks": {"total": 100, "free": 1, "used": 2, "retained": retained}, "counters": counters}


def test_engines_are_added_up_and_the_most_is_kept() -> None:
    told = EngineTelemetry()
    told.take({"a": snapshot(followed=1, held=1, returned=0, retained=30)})
    told.take({"b": snapshot(followed=2, held=1, returned=0, retained=20)})
    told.take({"a": snapshot(followed=3, held=2, returned=1, retained=0)})
    assert (told.hints_followed, told.turns_held, told.turns_returned) == (5, 3, 1)
    assert (told.most_retained, told.blocks) == (50, 200)


async def test_engines_without_the_plugin_or_its_scheduler_tell_nothing() -> None:
    async def tell(_: web.Request) -> web.Response:
        return web.json_response(snapshot(followed=4, held=2, returned=1, retained=9))

    async def tell_nothing(_: web.Request) -> web.Response:
        return web.json_response({"state": "absent"})

    whole, no_scheduler, stock = web.Application(), web.Application(), web.Application()
    whole.router.add_get("/turnpike/kv", tell)
    no_scheduler.router.add_get("/turnpike/kv", tell_nothing)
    runners, urls = [], []
    for app in (whole, no_scheduler, stock):
        runners.append(runner := web.AppRunner(app))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with telemetry.watched(urls) as told:
        async with asyncio.timeout(10):
            while not told.latest:
                await asyncio.sleep(0.01)
    for runner in runners:
        await runner.cleanup()
    assert (told.hints_followed, told.most_retained, told.blocks) == (4, 9, 100)
