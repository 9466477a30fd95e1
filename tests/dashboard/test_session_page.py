"""A session's own page, and what is over, in a real browser and from a real store."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.domain import records as rec
from gateway.domain.decision import WaitReason
from gateway.domain.ids import RequestId, SessionId, ThreadId
from gateway.history.answers import Answers
from gateway.history.store import Batch, Store
from tests.dashboard.browser import Page
from tests.dashboard.fake_control import FakeControl
from tests.dashboard.probes import LIVE, OVERHANGING
from tests.history.lives import B, arrival, begun, ended, refused, sent, whole

pytestmark = pytest.mark.slow
TEXT = "document.getElementById('view-session').innerText"
PARTS = "[...document.querySelectorAll('#view-session .part h3')].map(e => e.textContent)"
READY = "document.querySelectorAll('#view-session .decisions tbody tr').length"


def told(now: float) -> list[rec.Record]:
    waits = rec.TurnWaited(
        at_s=now + 20,
        turn=RequestId("r-2"),
        session=SessionId("s-main"),
        reason=WaitReason.KV_FULL,
        waiting=2,
    )
    predicted = rec.StepPredicted(
        at_s=now + 1, session=SessionId("s-main"), thread=ThreadId("s-main.1"), turn=RequestId("r-1"),
        tools=("bash",), next=("edit",), confidence=0.8, ends=0.1, reuse=0.9, retain_s=5.0, returns_in_s=3.0,
    )  # fmt: skip
    return [
        *begun("s-root", now - 5), *whole("r-0", "s-root", now - 5),
        *begun("s-main", now, parent="s-root"), *whole("r-1", "s-main", now), predicted,
        arrival("r-2", "s-main", now + 20, parent="r-1"), waits, *sent("r-2", "s-main", now + 22, replica=B),
        *ended("r-2", "s-main", now + 25, replica=B, ms=3000.0),
        *begun("s-child", now + 26, parent="s-main"), *whole("r-4", "s-child", now + 26, tenant="team-b"),
        *refused("r-3", "s-main", now + 30),
        rec.SessionEnded(at_s=now + 60, session=SessionId("s-main"), turns=3, reason="idle"),
    ]  # fmt: skip


@pytest.fixture
async def kept(control: FakeControl, tmp_path: Path) -> AsyncIterator[FakeControl]:
    store = Store(tmp_path / "history", max_bytes=64 << 20, max_age_s=3600.0)
    records = told(time.time() - 600)
    store.write("http://gateway", Batch([msgspec.json.encode(each) for each in records], ":1"))
    control.history = Answers(tmp_path / "history")
    control.records = records  # so that its turns can be explained
    yield control
    control.history.close()
    store.close()


async def opened(page: Page, control: FakeControl, hash_: str) -> None:
    await page.open(control.url + hash_)
    await page.until(LIVE)


async def test_a_link_leads_to_all_that_is_known_of_a_session(page: Page, kept: FakeControl):
    await page.resize(1280, 900)
    await opened(page, kept, "#session=s-main")
    assert await page.until(READY) == 3
    assert await page.run(PARTS) == ["What it is", "Lineage", "Over time", "Decisions", "Steps"]
    text = await page.run(TEXT)
    assert "codex" in text and "3" in text and "idle" in text
    assert "are expected to need all of the KV cache" in text and "refused: the waiting room was full" in text
    assert await page.run("[...document.querySelectorAll('.lineage a')].map(e => e.textContent)") == [
        "s-root",
        "s-child",
    ]
    steps = (
        "[...document.querySelectorAll('.path li')].map(e => [...e.children].map(c => c.innerText).join())"
    )
    assert await page.run(steps) == ["bash", "bash,edit was expected (80 % sure)"]
    rows = await page.until(
        "[...document.querySelectorAll('#view-session .row .name')].map(e => e.textContent)",
        holds=lambda rows: len(rows) == 2,
    )
    assert rows == ["s-main", "s-child"]
    await page.run("document.querySelector('.lineage a').click()")
    await page.until("document.querySelector('#view-session h2 code')?.textContent === 's-root'")
    await page.run("history.back()")
    await page.until("document.querySelector('#view-session h2 code')?.textContent === 's-main'")


async def test_each_decision_is_explained_and_the_keyboard_comes_back(page: Page, kept: FakeControl):
    await opened(page, kept, "#session=s-main")
    await page.until(READY)
    await page.run("document.querySelectorAll('.decisions tbody button')[1].focus()")
    await page.press("Enter")
    why = await page.until("document.querySelector('#detail .why-list')?.innerText")
    assert "It waited 20 ms: the admitted sessions are expected to need all of the KV cache" in why
    await page.press("Escape")
    await page.until("document.getElementById('detail').hidden")
    assert await page.run("document.activeElement.matches('#view-session .row')")


async def test_what_is_over_is_found_by_time_and_by_what_it_is(page: Page, kept: FakeControl):
    await page.resize(1280, 900)
    await opened(page, kept, "")
    await page.press("h")
    found = "[...document.querySelectorAll('.found tbody a')].map(e => e.textContent)"
    await page.until(found, holds=lambda rows: sorted(rows or []) == ["s-child", "s-main", "s-root"])
    cells = "[...document.querySelectorAll('.percentiles tbody tr')].map(r => r.innerText.split('\\t'))"
    assert await page.run(cells) == [
        ["in the queue", "20 ms", "0.10 s", "0.10 s"],
        ["first token", "0.50 s", "1.5 s", "1.5 s"],
        ["on the replica", "1.0 s", "3.0 s", "3.0 s"],
    ]
    await page.run(
        "(document.querySelector('[name=trouble]').click(), "
        "document.querySelector('.history-form button').click())"
    )
    await page.until(found, holds=lambda rows: rows == ["s-main"])
    assert await page.run("location.hash") == "#history?range=86400&trouble=1"
    await opened(page, kept, "#history?range=86400&tenant=team-b")
    await page.until(found, holds=lambda rows: rows == ["s-child"])
    await opened(page, kept, "?again#history?from=2001-01-01T00:00:00&to=2001-01-02T00:00:00")
    await page.until("document.querySelector('.history-result')?.innerText.includes('No sessions match.')")


async def test_it_says_so_where_no_history_is_configured(page: Page, control: FakeControl):
    await opened(page, control, "#history")
    await page.until("document.getElementById('view-history').innerText.includes('History is off')")
    await opened(page, control, "?again#session=s-none")
    await page.until(
        "document.querySelector('#view-session [role=alert]')?.innerText.includes('Unknown or expired')"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_shows_all_of_it_and_can_be_read(page: Page, kept: FakeControl, scheme: str):
    await page.resize(390, 844)
    await page.prefer(color_scheme=scheme)
    for hash_, ready in (
        ("#session=s-main", READY),
        ("?again#history", "document.querySelectorAll('.found a').length"),
    ):
        await opened(page, kept, hash_)
        await page.until(ready)
        assert await page.run(OVERHANGING) == []


async def test_a_page_that_needs_a_key_is_there_once_it_has_one(page: Page, kept: FakeControl):
    kept.key = "tp-read"
    await page.open(kept.url + "#session=s-main")
    await page.until("document.getElementById('key-dialog').open")
    await page.run("document.getElementById('control-key').value = 'tp-read'")
    await page.run("document.querySelector('#key-dialog button').click()")
    assert await page.until(READY) == 3
    page.complaints = [each for each in page.complaints if "401" not in each]
