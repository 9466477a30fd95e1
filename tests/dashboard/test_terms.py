"""Every term on the pages explains itself, to the mouse and to the keyboard, in the glossary's words."""

import json
from pathlib import Path

import msgspec
import pytest

from gateway.history.answers import Answers
from gateway.history.store import Batch, Store
from tests.dashboard.browser import Page
from tests.dashboard.fake_control import FakeControl, learned
from tests.dashboard.life import lived, now, whole_turn
from tests.dashboard.probes import LIVE, OVERHANGING, ROWS, SKIP_TO_ROWS
from tests.dashboard.test_session_page import READY, told
from tools import reasons

pytestmark = pytest.mark.slow

UNEXPLAINED = """
[...document.querySelectorAll(
  'dt, thead th, .legend b, .keys-of span, .meter-name, .panel h2, #view-session h3'
)].filter((e) => e.checkVisibility() && e.textContent.trim() !== '' && !e.dataset.term &&
  !e.closest('.detail .facts')).map((e) => e.textContent)
"""
NAMES = {"The window then", "What it is", "Over time"}
TIP = "[document.getElementById('term')].map((e) => (e.hidden ? '' : e.textContent))[0]"
CLIPPED = """
[...document.querySelectorAll('[data-term]')].filter((e) => e.checkVisibility() &&
  !e.closest('.scrolls-x, .detail') && e.scrollWidth > e.clientWidth + 1 &&
  getComputedStyle(e).display !== 'inline').map((e) => e.textContent)
"""
INSIDE = """
(() => { const { left, top, right, bottom } = document.getElementById('term').getBoundingClientRect();
  return left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight && right > left; })()
"""
CONDUCT = {
    "client": "claude-cli", "agent": "9f86d081", "turns": 40, "unlinked": 0, "changed": 38, "part": "system",
    "at": 1024, "measured": 38, "again_tokens": 412_000, "left_after_s": [],
}  # fmt: skip
RARE = {**CONDUCT, "client": "rare", "changed": 3}


async def opened(page: Page, control: FakeControl, tmp_path: Path, hash_: str = "") -> None:
    gauges, records = lived()
    outcome = {
        "sessions": 30,
        "in_time": 10,
        "judged": 20,
        "turns_in_time": 9,
        "turns_judged": 90,
        "cached_tokens": 5,
    }
    control.publish(records)
    control.gauges = {**gauges, "outcome": outcome, "conduct": [RARE, CONDUCT]}
    control.graphs = learned()
    store = Store(tmp_path / "history", max_bytes=64 << 20, max_age_s=3600.0)
    store.write("http://gateway", Batch([msgspec.json.encode(each) for each in told(now() - 60)], ":1"))
    control.history = Answers(tmp_path / "history")
    await page.open(control.url + hash_)
    await page.until(LIVE)


@pytest.mark.parametrize("width", [1280, 390])
async def test_every_term_is_explained_on_every_page(
    page: Page, control: FakeControl, tmp_path: Path, width: int
):
    await page.resize(width, 800)
    await opened(page, control, tmp_path)
    await page.until(ROWS)
    await page.until(
        "document.querySelectorAll('.tenants tbody tr').length && !document.getElementById('outcome').hidden"
    )
    await page.until(SKIP_TO_ROWS)
    views = {
        "a turn": (["ArrowLeft", "Enter"], "document.querySelector('.outcome') !== null"),
        "graphs": (["Escape", "g"], "document.querySelector('.graph') !== null"),
        "history": (["h"], "document.querySelector('.found') !== null"),
    }
    unexplained = {"sessions": await page.run(UNEXPLAINED)}
    assert await page.run(CLIPPED) == []
    for view, (keys, is_there) in views.items():
        await page.press(*keys)
        await page.until(is_there)
        unexplained[view] = await page.run(UNEXPLAINED)
        assert await page.run(OVERHANGING) == [], view
    await page.run("location.hash = '#session=s-main'")
    await page.until(READY)
    unexplained["a session"] = await page.run(UNEXPLAINED)
    assert {view: set(terms) - NAMES for view, terms in unexplained.items() if set(terms) - NAMES} == {}
    assert page.complaints == []
    assert control.history is not None
    control.history.close()


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_mouse_and_the_keyboard_bring_the_words(
    page: Page, control: FakeControl, tmp_path: Path, width: int
):
    words = json.loads(reasons.terms().partition("= ")[2].rstrip(";\n"))
    await page.resize(width, 800)
    await opened(page, control, tmp_path)
    await page.until("document.querySelector('.meter-name') !== null")
    for term in ("refused", "window", "prefill", "kv held"):
        seen = f"[...document.querySelectorAll('[data-term=\"{term}\"]')].find((e) => e.checkVisibility())"
        where = await page.run(
            f"(() => {{ const e = {seen}; e.scrollIntoView({{block: 'center'}}); "
            "const b = e.getBoundingClientRect(); return [b.left + 3, b.top + 3]; })()"
        )
        await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
        assert await page.until(TIP) == words[term]
        assert await page.run(INSIDE), term
        await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        await page.until(f"!({TIP})")
        await page.run(f"{seen}.focus()")
        assert await page.until(TIP) == words[term]
        assert await page.run("document.activeElement.getAttribute('aria-describedby')") == "term"
        await page.press("Escape")
        assert await page.run(TIP) == ""


async def test_who_changes_its_prompts_stands_above(page: Page, control: FakeControl, tmp_path: Path):
    await opened(page, control, tmp_path)
    text = await page.until(
        "document.getElementById('outcome').innerText", holds=lambda text: "changing" in text
    )
    assert (
        "claude-cli, the system prompt at character 1024, 95 % of turns: 412k tokens computed again" in text
    )
    assert "rare" not in text


async def test_with_prices_a_session_has_a_cost(page: Page, control: FakeControl):
    control.gauges = {"prices": {"*": {"model": "*", "input": 10.0, "cached_input": 1.0, "output": 100.0}}}
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 4))
    await page.open(control.url)
    label = "document.querySelector('#rows .row .kind')?.textContent ?? ''"
    text = await page.until(label, holds=lambda text: "cost" in text)
    assert "cost 0.0011 · 108 tokens" in text  # 25 computed, 75 cached, 8 written
