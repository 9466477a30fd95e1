"""The page in a real browser: what it shows, by keyboard, in both themes, and when the stream breaks."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.domain import records as rec
from gateway.domain.decision import Edge, SessionSource, WaitReason
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Usage
from tests.dashboard.browser import Page
from tests.dashboard.fake_control import FakeControl, learned
from tests.dashboard.life import (
    arrived,
    ended,
    first_token,
    lived,
    now,
    sent,
    session_started,
    tools_ended,
    tools_started,
    whole_turn,
)
from tests.dashboard.probes import LIVE, ROWS, SKIP_TO_ROWS

pytestmark = pytest.mark.slow

PHASE = "document.querySelector('#rows .phase')?.textContent"
DETAIL = "document.getElementById('detail').innerText"
FOCUSED = "document.activeElement.closest('.row')?.dataset.key ?? document.activeElement.id"


async def opened(page: Page, control: FakeControl) -> None:
    await page.open(control.url)
    await page.until(LIVE)


async def test_a_live_session_goes_through_its_phases_in_order(page: Page, control: FakeControl):
    await opened(page, control)
    s, seen = "s-abc", []

    async def see(phase: str, *records: rec.Record) -> None:
        control.publish(records)
        seen.append(await page.until(PHASE, holds=lambda shown: shown == phase))

    waits = rec.TurnWaited(
        at_s=now(), turn=RequestId("r-1"), session=SessionId(s), reason=WaitReason.KV_FULL, waiting=1
    )
    await see("queue", session_started(s, at_s=now()), arrived(s, "r-1", at_s=now()), waits)
    await see("prefill", *sent(s, "r-1", at_s=now()))
    await see("decode", first_token(s, "r-1", at_s=now()))
    await see("tool", tools_started(s, "r-1", "bash", at_s=now()), ended(s, "r-1", at_s=now()))
    await see("idle", tools_ended(s, "r-2", "bash", at_s=now()))
    await see("ended", rec.SessionEnded(at_s=now(), session=SessionId(s), turns=1, reason="finished"))
    assert seen == ["queue", "prefill", "decode", "tool", "idle", "ended"]
    assert await page.run("document.querySelector('#rows .hit').textContent") == "75 %"


OUTCOME = {
    "sessions": 30, "in_time": 10, "judged": 20, "turns_in_time": 90, "turns_judged": 100,
    "cached_tokens": 12345,
}  # fmt: skip


LITTLE = {"sessions": 1, "in_time": 0, "judged": 1, "turns_in_time": 0, "turns_judged": 1, "cached_tokens": 0}
FIGURES = [
    (OUTCOME, "30|50 %|90 %|12.3k"),
    (LITTLE, "1|not enough data (1 judged)|not enough data (1 judged)|not reported"),
]


@pytest.mark.parametrize(("outcome", "figures"), FIGURES)
async def test_what_came_of_it_stands_above(page: Page, control: FakeControl, outcome, figures):
    control.gauges = {"outcome": outcome}
    await opened(page, control)
    await page.until("!document.getElementById('outcome').hidden")
    told = await page.run(
        "[...document.querySelectorAll('#outcome dd')].map((each) => each.textContent).join('|')"
    )
    assert told == figures


PHASES = "[...document.querySelectorAll('#rows .phase')].map(e => e.textContent)"
LABELS = (
    "[...document.querySelectorAll('#rows .row')].map(r => r.querySelector('.kind').textContent).join('|')"
)
COUNTERS = (
    "[...document.querySelectorAll('#counters > div')].map(e => e.innerText.replace(/\\s+/g, ' ')).join('|')"
)


async def test_who_is_there_and_what_cannot_be_known(page: Page, control: FakeControl):
    """Not streamed, no cached tokens reported, no id stated; an agent that has gone while a tool ran."""
    at_s, tenant = now() - 4, TenantId("anonymous-70c9d5bc2ebd")
    gone_s = now() - 700
    whole = [
        session_started("s-1", at_s=at_s, schema=None),
        *whole_turn("s-1", "r-1", at_s=at_s),
        *whole_turn("s-1", "r-2", at_s=at_s),
    ]
    facts: dict[str, Any] = {"is_streamed": False, "client": "OpenAI/Python", "tenant": tenant}
    usage = Usage(prompt_tokens=100, output_tokens=8)
    for number, record in enumerate(whole):
        if isinstance(record, rec.TurnArrived):
            whole[number] = msgspec.structs.replace(record, **facts)
        elif isinstance(record, rec.GpuEnd):
            whole[number] = msgspec.structs.replace(record, usage=usage)
        elif isinstance(record, rec.SessionStarted):
            new = SessionSource.NEW
            whole[number] = msgspec.structs.replace(record, tenant=tenant, source=new, confidence=0.5)
    running = [*sent("s-2", "r-3", at_s=at_s)]
    came = msgspec.structs.replace(arrived("s-2", "r-3", at_s=at_s), **facts)
    left = [*whole_turn("s-3", "r-4", at_s=gone_s), tools_started("s-3", "r-4", "bash", at_s=gone_s + 3)]
    control.publish([*left, *whole, came, *running])
    await opened(page, control)
    labels = await page.until(LABELS, holds=lambda text: text.count("|") == 2)
    assert "OpenAI/Python · 2 turns · 3.0 s · 216 tokens · anonymous|" in labels and "70c9" not in labels
    assert await page.until(PHASES, holds=lambda seen: len(seen) == 3) == ["idle", "decode", "tool"]
    await page.until(COUNTERS, holds=lambda told: told.startswith("active 1|idle 2|finished 0|run 1|"))
    await page.run(SKIP_TO_ROWS)
    await page.press("Enter")
    text = await page.until(DETAIL, holds=lambda text: "not reported" in text)
    assert "generating (not streamed)" in text and "tool call id that came back (99 % sure)" in text


async def test_sub_agents_stand_indented_below_their_session(page: Page, control: FakeControl):
    await opened(page, control)
    spawned = arrived("s-1", "r-2", at_s=now(), thread="2", edge=Edge.SPAWNED)
    child = session_started("s-child", at_s=now(), parent="s-1")
    control.publish(
        [*whole_turn("s-1", "r-1", at_s=now() - 4), spawned, child, arrived("s-child", "r-3", at_s=now())]
    )
    assert await page.until(ROWS, holds=lambda rows: len(rows) == 3) == ["s-1", ".2", "s-child"]
    indent_of = "getComputedStyle(r.querySelector('.label')).paddingLeft"
    depths = f"[...document.querySelectorAll('#rows .row')].map(r => [r.ariaLevel, {indent_of}])"
    (first, _), (second, indent), (third, _) = await page.run(depths)
    assert [first, second, third] == ["1", "2", "2"]
    assert float(indent.removesuffix("px")) > 10
    assert "sub-agent" in await page.run("document.querySelectorAll('#rows .row')[1].textContent")


async def test_a_turns_decision_opens_by_keyboard(page: Page, control: FakeControl):
    control.publish([*whole_turn("s-1", "r-1", at_s=now() - 9), *whole_turn("s-1", "r-2", at_s=now() - 4)])
    control.publish(whole_turn("s-2", "r-3", at_s=now() - 3))
    control.loads = {"default-0": 1, "default-1": 4}  # type: ignore[dict-item]
    await opened(page, control)
    await page.until(ROWS, holds=lambda rows: rows == ["s-2", "s-1"])
    for _ in range(60):  # terms explain themselves to the keyboard, too
        await page.press("Tab")
        if await page.run(FOCUSED) in ("s-1", "s-2"):
            break
    assert await page.run(FOCUSED) == "s-2"
    await page.press("ArrowDown", "ArrowLeft", "ArrowLeft", "Enter")
    text = await page.until(DETAIL, holds=lambda shown: "Alternatives" in shown)
    assert "r-1" in text
    assert "Sent to default-0" in text
    assert "its session has no home yet, and this replica had the least load" in text
    assert "default-1" in text
    assert "first token\t60 ms (40 ms – 60 ms)\t0.50 s" in text
    assert "40 (40 %)\t75 (75 %)" in text
    assert await page.run("document.activeElement.id") == "detail-title"
    assert await page.run("document.activeElement.matches(':focus-visible')")
    await page.press("Escape")
    assert await page.run(FOCUSED) == "s-1"
    assert await page.run("document.getElementById('detail').hidden")


async def test_what_the_gateway_forgot_is_told_from_what_the_page_saw(page: Page, control: FakeControl):
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 4))
    control.records.clear()
    await opened(page, control)
    await page.until(ROWS, holds=lambda rows: rows == ["s-1"])
    await page.until(SKIP_TO_ROWS)
    await page.press("ArrowLeft", "Enter")
    text = await page.until(DETAIL, holds=lambda shown: "forgotten" in shown)
    assert "Sent to default-0" in text


async def test_keys_are_listed_and_do_what_they_say(page: Page, control: FakeControl):
    control.graphs = learned()
    _, records = lived()
    control.publish(records)
    await opened(page, control)
    await page.until(ROWS)
    await page.press("?")
    assert "zoom in, out" in await page.run("document.querySelector('dialog[open]').innerText")
    await page.press("Escape", "g")
    text = await page.until(
        "document.getElementById('view-graphs').innerText", holds=lambda it: "9f86d081" in it
    )
    assert "run_tests\tedit\t40 %\t40\t" in text and "12 s\t41 s" in text
    await page.press("g", "l")
    await page.until("document.getElementById('follow').ariaPressed === 'false'")
    await page.press("t")
    assert await page.run("document.documentElement.dataset.theme") == "light"
    await page.press("/", "c", "o", "d", "e", "x")
    assert await page.run("document.activeElement.id + document.activeElement.value") == "filtercodex"
    kind = "k.textContent.split(' ')[0]"
    all_kinds = "[...document.querySelectorAll('#rows .row[aria-level=\"1\"] .kind')]"
    kinds = f"[...new Set({all_kinds}.map(k => {kind}))]"
    await page.until(kinds, holds=lambda shown: shown == ["codex"])


async def test_it_goes_on_where_the_stream_was_cut(page: Page, control: FakeControl):
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 4))
    await opened(page, control)
    await page.until(ROWS, holds=lambda rows: rows == ["s-1"])
    control.is_down = True
    control.cut()
    await page.until("document.getElementById('link').dataset.state === 'broken'")
    assert "Trying again in" in await page.until("document.getElementById('alert').innerText")
    control.publish(whole_turn("s-2", "r-2", at_s=now() - 3))
    control.is_down = False
    await page.run("document.querySelector('#alert button').click()")
    await page.until(LIVE)
    await page.until(ROWS, holds=lambda rows: rows == ["s-2", "s-1"])
    assert control.after == [0, 5]
    assert await page.run("document.getElementById('alert').hidden")


@pytest.mark.parametrize("is_of_several", [False, True])
async def test_behind_a_gap_it_asks_how_things_are(page: Page, control: FakeControl, is_of_several: bool):
    control.is_of_several = is_of_several
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 9))
    await opened(page, control)
    await page.until(ROWS, holds=lambda rows: rows == ["s-1"])
    at_s = now() - 5
    turn: dict[str, Any] = {
        "turn": "r-9", "thread": "s-9.1", "edge": "opens", "parent": None, "model": "m", "arrived_s": at_s,
        "submitted_s": at_s + 1, "first_token_s": at_s + 2, "ended_s": at_s + 3, "wait_reason": "window_full",
        "queue_ms": 1000.0, "replica": "default-0", "reason": "least_loaded",
        "expected_first_token_ms": 900.0, "expected_completion_ms": 2000.0, "prompt_tokens": 100,
        "cached_tokens": 40, "output_tokens": 5, "outcome": "finished", "status": 200, "refusal": None,
        "tools": ["bash"], "tools_ended_s": None,
    }  # fmt: skip
    session = {
        "id": "s-9", "tenant": "team-b", "source": "new", "confidence": 1.0, "schema": None, "parent": None,
        "agent": "", "state": "tool", "since_s": at_s + 3, "turns": 1, "threads": 1, "started_s": at_s,
        "last_seen_s": at_s + 3, "prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 5,
        "last_turns": [turn],
    }  # fmt: skip
    control.publish_gap()
    control.publish(whole_turn("s-9", "r-9", at_s=at_s))  # which the snapshot has already
    seq = control.id(len(control.lines))
    control.snapshot = {"at_s": now(), "seq": seq, "session_count": 1, "sessions": [session]}
    texts = "['.name', '.phase'].map(part => r.querySelector(part).textContent)"
    shown = f"[...document.querySelectorAll('#rows .row')].map(r => {texts})"
    await page.until(shown, holds=lambda rows: rows == [["s-9", "tool"], ["s-1", "ended"]])
    control.publish([tools_ended("s-9", "r-10", "bash", at_s=now())])
    await page.until(shown, holds=lambda rows: rows[0] == ["s-9", "idle"])
    control.publish(whole_turn("s-10", "r-11", at_s=now() - 100))
    await page.until(shown, holds=lambda rows: ["s-10", "finished"] in rows)


async def test_a_replica_shows_what_its_engine_holds_and_retains(page: Page, control: FakeControl):
    told = {"id": "r0", "pool": "p", "is_up": True, "running": 1, "sessions": 2, "engine": "vllm"}
    held = [{"session": "s-1", "resident_tokens": 300, "retained_tokens": 200}]
    says = {"kv_used": 0.4, "kv_retained": 0.25, "kv_tokens": 1000, "kv_of_sessions": held}
    did = [
        {"name": "retention", "state": "on", "acted": 3, "saved_s": 1.52},
        {"name": "classes", "state": "LoRA: not tried with it", "acted": None, "saved_s": None},
    ]
    control.gauges = {"replicas": [{**told, **says, "plugin": did}]}
    await opened(page, control)
    is_up = rec.ReplicaChanged(at_s=now(), replica=ReplicaId("r0"), state="up", why="is healthy")
    control.publish([is_up])
    labels = "[...document.querySelectorAll('#fleet-body [role=img]')].map(bar => bar.ariaLabel).join('; ')"
    said = await page.until(labels, holds=lambda text: "40 %" in text)
    assert "requests that run hold 40 % of the KV cache, 25 % is retained for sessions that pause" in said
    parts = "[...document.querySelectorAll('#fleet-body .rests')].map(one => [one.title, one.style.width])"
    assert await page.run(parts) == [["s-1: 200 tokens are retained", "20%"], ["", "5%"]]
    plugin = await page.run("document.querySelector('#fleet-body p.dim').textContent")
    assert plugin == (
        "plugin: retention on, acted 3 times, saved about 1.5 s of prefill · classes LoRA: not tried with it"
    )


async def test_a_replica_that_is_ejected_says_why_and_until_when_and_is_up_again(
    page: Page, control: FakeControl
):
    told = {"id": "r0", "pool": "p", "is_up": True, "running": 0, "ejected": None, "ejected_until_s": None}
    out = {**told, "ejected": "fails", "ejected_until_s": now() + 60.0}
    control.gauges = {"replicas": [out], "store_down": True}
    await opened(page, control)
    shown = "document.querySelector('#fleet-body .replica-head')?.textContent"
    text = await page.until(shown, holds=lambda text: "ejected" in (text or ""))
    assert "fails · tried again at" in text
    assert "the shared store is down" in await page.run("document.getElementById('fleet-now').textContent")
    control.gauges["failing"] = ["stream.path cannot be written"]
    await page.until("document.getElementById('alert').textContent", holds=lambda text: "stream.path" in text)
    for gauges, state in (
        ({**out, "ejected_until_s": None}, "tried"),
        ({**told, "is_up": False, "cause": "refused"}, "down"),
        (told, "up"),
        ({**told, "is_draining": True}, "draining"),
        ({**told, "failing": "fails: 500"}, "failing"),
        (told, "up"),
    ):
        control.gauges = {"replicas": [gauges]}
        await page.until(shown, holds=partial(begins_with, state))


def begins_with(state: str, text: str | None) -> bool:
    return (text or "").startswith(state)


async def test_no_request_leaves_the_origin(page: Page, control: FakeControl):
    gauges, records = lived()
    control.publish(records)
    control.gauges = gauges
    await opened(page, control)
    await page.until(ROWS)
    await page.until(SKIP_TO_ROWS)
    await page.press("ArrowLeft", "Enter", "Escape", "g", "?")
    await asyncio.sleep(0.5)
    origin = control.url.removesuffix("turnpike/")
    assert len(page.requests) > 10
    assert [url for url in page.requests if not url.startswith((origin, "data:"))] == []


async def test_hostile_names_are_shown_as_text(page: Page, control: FakeControl):
    evil = "<img src=x onerror=window.broken=1>"
    await opened(page, control)
    control.publish(
        [session_started(evil, at_s=now() - 5, schema=evil), *whole_turn(evil, evil, at_s=now() - 4)]
    )
    control.publish(
        [tools_started(evil, evil, evil, at_s=now() - 1), {"type": "no_such_record", "at_s": "soon"}]
    )
    assert await page.until(ROWS, holds=lambda rows: rows == [evil])
    assert evil in await page.run("document.querySelector('.kind').textContent")
    await page.until(SKIP_TO_ROWS)
    await page.press("ArrowLeft", "Enter")
    await page.until(DETAIL, holds=lambda shown: evil in shown)
    await page.until("document.querySelector('.outcome') !== null")
    assert await page.run("[document.querySelectorAll('img').length, window.broken ?? null]") == [0, None]


async def test_an_empty_page_says_what_to_do(page: Page, control: FakeControl):
    await opened(page, control)
    text = await page.until(
        "document.getElementById('empty').innerText", holds=lambda shown: "No session yet" in shown
    )
    assert "/v1" in text
    assert "No replica is known" in await page.until("document.getElementById('fleet-body').innerText")


async def test_it_asks_for_the_key_once_and_keeps_it_for_the_tab(page: Page, control: FakeControl):
    control.key = "let-me-in"
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 4))
    await page.open(control.url)
    await page.until("document.getElementById('key-dialog').open")
    page.complaints.clear()  # the browser tells of the 401
    await page.press(*"wrong", "Enter")
    await page.until(
        "document.querySelector('dialog[open]')?.innerText", holds=lambda shown: "not accept" in (shown or "")
    )
    await page.press(*control.key, "Enter")
    await page.until(LIVE)
    await page.until(ROWS, holds=lambda rows: rows == ["s-1"])
    await page.open(control.url)
    await page.until(LIVE)
    kept = "[Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
    session, local, cookie = await page.run(kept)
    assert session == [control.key]
    assert control.key not in [*local, cookie]


async def test_a_key_that_the_browser_asked_for_is_not_asked_for_again(page: Page, control: FakeControl):
    control.key, control.is_page_closed = "let-me-in", True
    control.publish(whole_turn("s-1", "r-1", at_s=now() - 4))
    await page.open(control.url.replace("://", f"://any:{control.key}@"))
    await page.until(LIVE)
    await page.until(ROWS, holds=lambda rows: rows == ["s-1"])
    page.complaints.clear()  # the browser tells of the 401
