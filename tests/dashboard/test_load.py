"""A thousand sessions at two hundred events a second: the page's main thread is at rest most of the time."""

import asyncio
import time

import pytest

from tests.dashboard.browser import Page
from tests.dashboard.fake_control import FakeControl
from tests.dashboard.life import lived, now, session_started, whole_turn
from tests.dashboard.probes import SKIP_TO_ROWS

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

SESSIONS = 1000
EVENTS_PER_S = 200
SECONDS = 8.0
ROW_COUNTS = "[+document.getElementById('rows').ariaRowCount, document.querySelectorAll('.row').length]"
FIRST_NAME = "document.querySelector('#rows .name').textContent"


async def publish_live(control: FakeControl, *, seconds: float) -> None:
    """Turns of sessions that are known, spread over all of them, at a steady rate."""
    began, told, turns = time.monotonic(), 0, 0
    while (passed := time.monotonic() - began) < seconds:
        while told < passed * EVENTS_PER_S:
            session = f"s-{turns * 37 % SESSIONS}"
            records = whole_turn(session, f"r-live-{turns}-{began}", at_s=now() - 3)
            control.publish(records)
            told += len(records)
            turns += 1
        await asyncio.sleep(0.05)


async def look_around(page: Page, *, seconds: float) -> None:
    await page.until(SKIP_TO_ROWS)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        await page.press("PageDown", "ArrowDown", "ArrowLeft", "-")
        await asyncio.sleep(0.4)
        await page.press("+", "Shift+ArrowLeft", "l")
        await asyncio.sleep(0.4)


async def busy_during(page: Page, *happens: object) -> float:
    """The processor time of the page's main thread, as a share of the time that passed."""
    before, began = await page.metrics(), time.monotonic()
    await asyncio.gather(*happens)  # type: ignore[call-overload]
    after, passed = await page.metrics(), time.monotonic() - began
    return (after["TaskDuration"] - before["TaskDuration"]) / passed


async def test_a_thousand_sessions_at_two_hundred_events_a_second(page: Page, control: FakeControl):
    control.gauges, records = lived()
    control.publish(records)
    for n in range(SESSIONS):
        at_s = now() - 100 + n / 12
        control.publish([session_started(f"s-{n}", at_s=at_s), *whole_turn(f"s-{n}", f"r-{n}", at_s=at_s)])
    await page.open(control.url)
    await page.until(ROW_COUNTS, holds=lambda counts: counts[0] >= SESSIONS)
    await asyncio.sleep(1)
    alone = await busy_during(page, publish_live(control, seconds=SECONDS))
    watched = await busy_during(
        page, publish_live(control, seconds=SECONDS), look_around(page, seconds=SECONDS)
    )
    print(f"main thread busy {alone:.1%}, and {watched:.1%} while somebody scrolls and zooms")
    _, elements = await page.run(ROW_COUNTS)
    assert elements < 60
    assert control.after == [0], "the stream did not break"
    control.publish([session_started("s-last", at_s=now())])
    await page.press("Home")
    await page.until(FIRST_NAME, holds=lambda name: name == "s-last")
    assert alone < 0.5
    assert watched < 0.5
