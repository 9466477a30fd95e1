"""Waiting for a place, as clients see it."""

import asyncio

import pytest

from tests.server.bench import PATIENCE_S, Exchange, answer, eventually, get, post, sends


class Gate:
    """A backend's script that answers when it is told to."""

    def __init__(self) -> None:
        self.passes = asyncio.Semaphore(0)

    async def __call__(self, exchange: Exchange) -> None:
        await asyncio.wait_for(self.passes.acquire(), PATIENCE_S)
        await exchange.send(answer())


async def test_a_second_turn_waits_for_the_first(start):
    bench = await start(admission={"max_running_per_replica": 1})
    bench.backend.script = gate = Gate()
    first, second = await bench.arrive(post()), await bench.send(post())
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    # What costs an engine nothing does not wait.
    light = asyncio.create_task(bench.ask(get(b"/v1/models")))
    await eventually(lambda: len(bench.backend.seen) == 2)
    for _ in range(3):
        gate.passes.release()
    assert float((await first.receive()).get(b"x-turnpike-queue-ms")) == 0
    assert float((await second.receive()).get(b"x-turnpike-queue-ms")) > 0
    assert (await light).status == 200


async def test_a_full_waiting_room_is_a_503(start):
    bench = await start(admission={"max_running_per_replica": 1, "max_waiting": 1})
    bench.backend.script = gate = Gate()
    first, second = await bench.arrive(post()), await bench.send(post())
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    response = await bench.ask(post(path=b"/v1/messages"))
    assert response.status == 503 and 0 < int(response.get(b"retry-after")) <= 30
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.get(b"x-turnpike-reason") == b"queue_full"
    gate.passes.release()
    gate.passes.release()
    assert (await first.receive()).status == (await second.receive()).status == 200


async def test_waiting_too_long_is_a_503_each_with_its_own_retry_after(start):
    bench = await start(admission={"max_running_per_replica": 1}, core={"max_wait_s": 0.3})
    bench.backend.script = gate = Gate()
    first = await bench.arrive(post())
    responses = await asyncio.gather(*(bench.ask(post()) for _ in range(5)))
    assert {r.status for r in responses} == {503}
    assert {r.json()["error"]["code"] for r in responses} == {"queue_timeout"}
    waits = [int(r.get(b"retry-after")) for r in responses]
    assert len(set(waits)) == 5 and max(waits) <= 30
    assert all(float(r.get(b"x-turnpike-queue-ms")) >= 290 for r in responses)
    gate.passes.release()
    assert (await first.receive()).status == 200


async def test_a_decision_that_fails_costs_no_answer(start, monkeypatch, caplog):
    """Neither whose it is, nor who waits behind it."""

    def fails(*_: object) -> None:
        raise TypeError("a fault of ours")

    bench = await start(admission={"max_running_per_replica": 1}, recording={})
    bench.may_log_errors = True
    monkeypatch.setattr(bench.brain.placement, "place", fails)
    bench.backend.script = gate = Gate()
    for _ in range(3):
        gate.passes.release()
    responses = await asyncio.gather(*(bench.ask(post()) for _ in range(3)))
    assert {response.status for response in responses} == {200}
    assert caplog.text.count("scheduler error; fallback routing") == 1
    assert bench.brain.faults == 3


async def test_a_client_that_a_backend_told_when_to_come_is_expected_then(start):
    """Of several failed twins, the one that is due is retried."""
    bench = await start(script=sends(b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"))
    assert (await bench.ask(post())).status == 429
    _assert_due(bench, 7)


async def test_a_client_that_we_told_when_to_come_is_expected_then(start):
    bench = await start(admission={"max_waiting": 0, "max_running_per_replica": 1})
    bench.backend.script = Exchange.until_left
    busy = await bench.arrive(post())
    response = await bench.ask(post(b'{"messages": [{"role": "user", "content": "Another."}]}'))
    _assert_due(bench, int(response.get(b"retry-after")))
    busy.reset()


def _assert_due(bench, after_s: float) -> None:
    turn = next(bench.brain.sessions.sessions.newest_first()).log[-1]
    assert turn.due_s - turn.ended_s == pytest.approx(after_s, abs=0.01)
