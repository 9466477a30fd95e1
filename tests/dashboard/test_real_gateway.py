"""The page and a real gateway: what a turn that went through it looks like."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest

from tests.dashboard.browser import Page
from tests.dashboard.probes import LIVE, ROWS, SKIP_TO_ROWS
from tests.server.bench import DELTA, DONE, STREAM_HEAD, Bench, Exchange, answer, chunk, get, post, sends

pytestmark = pytest.mark.slow

KEY_HASH = "sha256:b03ddf3ca2e714a6548e7495e2a03f5e824eaac9837cd7f159c67b90fb4b7342"
"""Of `P@ssw0rd`."""
PHASES = "[...document.querySelectorAll('#rows .phase')].map(e => e.textContent)"
KIND = "document.querySelector('#rows .kind').textContent"
LASTS = re.compile(r"· ([1-9][0-9.]* ms|[0-9.]+ s)")
DETAIL = "document.getElementById('detail').innerText"
ASK = {"role": "user", "content": "fix the bug"}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]


def request(*messages: dict[str, object]) -> bytes:
    return post(
        json.dumps({"model": "m", "stream": True, "messages": [ASK, *messages], "tools": TOOLS}).encode()
    )


STREAM_BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'


def event(delta: dict[str, object], **more: object) -> bytes:
    return chunk(b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta, **more}]}).encode())


CALL = {"id": "call_8f2c41d09be7a653", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
USAGE = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 80}}


class Steps:
    """A backend that takes a step when it is told to."""

    def __init__(self) -> None:
        self.answers_now = asyncio.Event()
        self.ends_now = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        await self.answers_now.wait()
        await exchange.send(event({"content": "hm"}))
        await self.ends_now.wait()
        await exchange.send(
            event({"tool_calls": [{"index": 0, **CALL}]}) + event({}, finish_reason="tool_calls")
        )
        usage = json.dumps({"choices": [], "usage": USAGE}).encode()
        await exchange.send(chunk(b"data: %s\n\n" % usage) + chunk(DONE) + b"0\r\n\r\n")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.start(replicas=2)
    yield bench
    await bench.finish()


def url_of(bench: Bench) -> str:
    return f"http://127.0.0.1:{bench.gateway.control_port}/turnpike/"


async def test_a_turn_is_shown_while_it_runs_and_explained_afterwards(page: Page, bench: Bench):
    await page.open(url_of(bench))
    await page.until(LIVE)
    steps = Steps()
    for backend in bench.backends:
        backend.script = steps
    client = await bench.connect()
    client.send(request())
    await page.until(PHASES, holds=lambda shown: shown == ["prefill"])
    await page.until(KIND, holds=lambda shown: LASTS.search(shown) is not None, within_s=10)
    (view,) = json.loads((await bench.control(get(b"/turnpike/snapshot"))).body)["sessions"]
    assert view["last_seen_s"] > view["started_s"], "what it waits for lasts, too"
    steps.answers_now.set()
    await page.until(PHASES, holds=lambda shown: shown == ["decode"])
    steps.ends_now.set()
    assert (await client.receive()).is_whole
    await page.until(PHASES, holds=lambda shown: shown == ["tool"])
    answered: dict[str, object] = {"role": "assistant", "content": "hm", "tool_calls": [CALL]}
    await client.ask(
        request(answered, {"role": "tool", "tool_call_id": "call_8f2c41d09be7a653", "content": "done"})
    )
    await page.until("document.querySelector('.row .sr').textContent", holds=lambda told: "2 turns" in told)
    await page.until(SKIP_TO_ROWS)
    await page.press("ArrowLeft", "Enter")
    text = await page.until(DETAIL, holds=lambda shown: "Alternatives" in shown and "Turn 2" in shown)
    assert "its session's earlier turns ran there" in text
    assert "80 (80 %)" in text
    await page.until(
        "document.querySelectorAll('.alternatives tbody tr').length", holds=lambda count: count == 2
    )
    name = await page.run(ROWS)
    await page.open(url_of(bench))  # who comes later is told what was before, by the snapshot
    await page.until(LIVE)
    assert await page.until(ROWS) == name
    assert await page.until(PHASES, holds=lambda shown: shown == ["tool"])
    assert "turn 2" in await page.run("document.querySelector('.row .sr').textContent")


ONLY_TROUBLE = """
(() => {
  const show = document.getElementById('show');
  show.value = 'trouble';
  show.dispatchEvent(new Event('change', { bubbles: true }));
})()
"""


async def test_what_failed_is_in_trouble_whether_it_was_seen_or_told_later(page: Page, bench: Bench):
    await page.open(url_of(bench))
    await page.until(LIVE)
    sessions = []
    for script in (
        sends(STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"),
        sends(answer(b"{}", status=b"500 Internal Server Error")),
        sends(STREAM_HEAD + chunk(DELTA), then="reset"),
    ):
        for backend in bench.backends:
            backend.script = script
        client = await bench.connect()
        client.send(post(STREAM_BODY))
        sessions.append((await client.receive()).get(b"x-turnpike-session") or b"")
    for each, troubles in zip(sessions, (0, 1, 1), strict=True):
        told = json.loads((await bench.control(get(b"/turnpike/sessions/" + each))).body)
        assert told["session"]["troubles"] == troubles
    for _ in range(2):
        await page.until(ROWS, holds=lambda rows: len(rows) == 3)
        await page.run(ONLY_TROUBLE)
        assert set(await page.until(ROWS, holds=lambda rows: len(rows) == 2)) == {
            each.decode() for each in sessions[1:]
        }
        await page.open(url_of(bench))  # who comes later is told by the snapshot
        await page.until(LIVE)


DIALOG = "document.getElementById('stop-dialog')"


async def test_a_session_is_stopped_by_keyboard_once_it_is_confirmed(page: Page, bench: Bench):
    await page.open(url_of(bench))
    await page.until(LIVE)
    await bench.ask(request())
    await page.until(ROWS, holds=lambda rows: len(rows) == 1)
    await page.until(SKIP_TO_ROWS)
    await page.press("x")
    await page.until(f"{DIALOG}.open")
    assert await page.run("document.activeElement.textContent") == "Keep it running"
    await page.press("Enter")
    await page.until(f"!{DIALOG}.open")
    assert not bench.brain.session_limits.is_on, "nothing was done"
    await page.press("x")
    await page.until(f"{DIALOG}.open")
    await page.press("Tab", "Enter")
    announced = "document.getElementById('announcement').textContent"
    await page.until(announced, holds=lambda text: "is stopped" in text)
    await page.until(PHASES, holds=lambda shown: shown == ["stopped"])
    (view,) = json.loads((await bench.control(get(b"/turnpike/snapshot"))).body)["sessions"]
    assert view["state"] == "stopped" and not view["is_active"]
    assert await page.run("document.activeElement.matches('#rows .row')"), "the keyboard is where it was"


async def test_who_may_only_look_is_not_offered_to_stop(page: Page):
    keyed = Bench()
    await keyed.start(server={"control_read_key_hashes": [KEY_HASH], "first_words": True})
    try:
        await keyed.ask(request())
        await page.open(url_of(keyed).replace("://", "://any:P%40ssw0rd@"))
        if await page.run("document.getElementById('key-dialog')?.open ?? false"):
            await page.press(*"P@ssw0rd", "Enter")
        await page.until(LIVE)
        await page.until(ROWS, holds=lambda rows: len(rows) == 1)
        label = await page.until("document.querySelector('#rows .label').textContent")
        assert "“fix the bug”" in label
        await page.until("document.querySelectorAll('.replica').length", holds=lambda count: count == 1)
        await page.until(SKIP_TO_ROWS)
        await page.press("x")
        assert await page.run(f"{DIALOG}.open") is False
        assert await page.run("getComputedStyle(document.querySelector('.row .stop')).visibility") == "hidden"
        page.complaints.clear()  # the browser tells of the 401
    finally:
        await keyed.finish()


async def test_a_gateway_that_begins_anew_is_looked_at_anew(page: Page):
    first, second = Bench(), Bench()
    await first.start()
    port = first.gateway.control_port
    await first.ask(post())
    await page.open(url_of(first))
    before = await page.until(ROWS)
    await first.finish()
    await page.until("document.getElementById('link').dataset.state === 'broken'")
    await second.start(server={"control": f"127.0.0.1:{port}"})
    try:
        await second.ask(post())
        await page.until(LIVE)
        rows = await page.until(ROWS, holds=lambda shown: len(shown) == 2)
        assert before[0] in rows
        phases = await page.until(PHASES, holds=lambda shown: "ended" in shown)
        assert phases[rows.index(before[0])] == "ended"
        page.complaints.clear()
    finally:
        await second.finish()
