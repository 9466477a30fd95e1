"""Which sessions are listed, and in which order, while no session begins or ends."""

import msgspec
import pytest

from tests.dashboard.browser import Page
from tests.dashboard.fake_control import FakeControl
from tests.dashboard.life import arrived, ended, now, sent, session_started, whole_turn
from tests.dashboard.probes import LIVE, ROWS

pytestmark = pytest.mark.slow

SOON_S = 30.0
"""Sooner than the page takes the control for dead, and lists anew when it connects again."""
CHOOSE = """
((id, value) => {
  const box = document.getElementById(id);
  box.value = value;
  box.dispatchEvent(new Event('change', { bubbles: true }));
})
"""


async def with_two_sessions(page: Page, control: FakeControl) -> None:
    for number, each in enumerate(("s-1", "s-2")):
        at_s = now() - 9 + number
        control.publish([session_started(each, at_s=at_s), *whole_turn(each, f"{each}-1", at_s=at_s)])
    await page.open(control.url)
    await page.until(LIVE)
    await page.until(ROWS, holds=lambda rows: len(rows) == 2)


@pytest.mark.parametrize("chosen", ["waiting", "active", "trouble"])
async def test_a_session_is_listed_from_when_it_is_as_was_chosen_until_it_is_not(
    page: Page, control: FakeControl, chosen: str
):
    await with_two_sessions(page, control)
    await page.run(f"{CHOOSE}('show', '{chosen}')")
    await page.until(ROWS, holds=lambda rows: rows == [])
    control.publish([arrived("s-1", "r-2", at_s=now())])
    if chosen == "trouble":
        failed = msgspec.structs.replace(ended("s-1", "r-2", at_s=now()), status=500)
        control.publish([*sent("s-1", "r-2", at_s=now()), failed])
    await page.until(ROWS, within_s=SOON_S, holds=lambda rows: rows == ["s-1"])
    if chosen != "trouble":  # which lasts
        control.publish([*sent("s-1", "r-2", at_s=now()), ended("s-1", "r-2", at_s=now())])
        await page.until(ROWS, within_s=SOON_S, holds=lambda rows: rows == [])


async def test_who_was_active_last_comes_first_where_that_is_the_order(page: Page, control: FakeControl):
    await with_two_sessions(page, control)
    await page.run(f"{CHOOSE}('order', 'recent')")
    await page.until(ROWS, holds=lambda rows: rows == ["s-2", "s-1"])
    control.publish([arrived("s-1", "r-2", at_s=now())])
    await page.until(ROWS, within_s=SOON_S, holds=lambda rows: rows == ["s-1", "s-2"])
