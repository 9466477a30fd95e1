"""How the page looks: at what widths, in which theme, to whom."""

import pytest

from tests.dashboard.browser import Page
from tests.dashboard.fake_control import FakeControl, learned
from tests.dashboard.life import lived, now, whole_turn
from tests.dashboard.probes import CONTRAST, FRAMES_IN_2500_MS, LIVE, OVERHANGING, ROWS, SKIP_TO_ROWS

pytestmark = pytest.mark.slow


async def opened(page: Page, control: FakeControl) -> None:
    await page.open(control.url)
    await page.until(LIVE)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_nothing_overflows_and_text_has_contrast(
    page: Page, control: FakeControl, width: int, theme: str
):
    gauges, records = lived()
    control.publish(records)
    control.gauges = gauges
    control.graphs = learned()
    await page.resize(width, 800)
    await page.prefer(color_scheme=theme)
    await opened(page, control)
    await page.until(ROWS)
    await page.until("document.querySelectorAll('.tenants tbody tr').length")
    await page.until(SKIP_TO_ROWS)
    for view in ("nothing open", "a turn", "graphs"):
        if view == "a turn":
            await page.press("ArrowLeft", "Enter")
            await page.until("document.querySelector('.outcome') !== null")
        elif view == "graphs":
            await page.press("Escape", "g")
            await page.until("document.querySelector('.graph') !== null")
        assert await page.run("document.documentElement.scrollWidth") <= width, view
        assert await page.run(OVERHANGING) == [], view
        assert await page.run(CONTRAST) == [], view


PAINTED = """
for (const pair of ['on-decode decode', 'on-tool panel', 'dim panel', 'bad panel', 'ink panel']) {
  const [text, ground] = pair.split(' ').map((name) => `var(--${name})`);
  const e = document.body.appendChild(document.createElement('p'));
  e.textContent = pair;
  Object.assign(e.style, { color: text, background: ground });
}
"""
"""What `paint.js` and `window.js` write with on a canvas, where it cannot be looked up."""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_text_on_the_canvas_has_contrast(page: Page, control: FakeControl, theme: str):
    await page.prefer(color_scheme=theme)
    await opened(page, control)
    await page.run(PAINTED)
    assert await page.run(CONTRAST) == []


async def test_everything_has_a_name_and_a_role(page: Page, control: FakeControl):
    gauges, records = lived()
    control.publish(records)
    control.gauges = gauges
    await opened(page, control)
    await page.until(ROWS)
    await page.send("Accessibility.enable")
    nodes = (await page.send("Accessibility.getFullAXTree"))["nodes"]
    roles = {node["role"]["value"] for node in nodes if not node["ignored"]}
    assert {*"main banner treegrid row rowheader tablist tab tabpanel toolbar".split()} <= roles
    operable = {"button", "combobox", "searchbox", "tab", "treegrid", "image", "region"}
    nameless = [
        n
        for n in nodes
        if not n["ignored"] and n["role"]["value"] in operable and not n["name"]["value"].strip()
    ]
    assert nameless == []


async def test_who_wants_less_motion_gets_less(page: Page, control: FakeControl):
    """The waterfall then moves once a second, not as often as a pixel passes."""
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 4))
    await page.prefer(reduced_motion="reduce")
    await opened(page, control)
    await page.until(ROWS)
    await page.run("for (let i = 0; i < 8; i += 1) document.getElementById('zoom-in').click()")
    assert await page.run(FRAMES_IN_2500_MS) <= 6
