"""A gateway with a history: what it answers that memory has lost, to whom; a bad disk harms nobody."""

import asyncio
import json

import pytest

from gateway.history import writer
from gateway.server.tenants import hash_key
from tests.server.bench import CHAT, eventually, get, post

READ = "tp-read"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writer, "_PERIOD_S", 0.02)
    monkeypatch.setattr(writer, "_BACKOFF", (1,))


async def served(bench, session: str) -> str:
    """The request's id."""
    answer = await bench.ask(post(CHAT, headers=b"X-Turnpike-Session: %s\r\n" % session.encode()))
    assert answer.status == 200
    return answer.get(b"x-turnpike-request").decode()


async def written(bench, count: int) -> None:
    await eventually(lambda: bench.gateway.observation._history.written >= count, "it was never written")


async def asked(bench, path: str):
    return await bench.control(get(path.encode()))


async def test_what_memory_has_lost_is_explained_and_shown(start, tmp_path):
    bench = await start(history={"path": str(tmp_path / "h")}, stream={"ring_records": 0})
    turns = [await served(bench, "mine") for _ in range(3)]
    await written(bench, 3)
    told = (await asked(bench, f"/turnpike/turns/{turns[0]}")).json()
    assert told["decided"]["outcome"] == "dispatched" and told["became"]["outcome"] == "finished"
    assert told["known"]["turn"] == turns[0] and len(told["why"]) == 2
    session = told["known"]["session"]
    page = (await asked(bench, f"/turnpike/sessions/{session}")).json()
    assert [turn["turn"] for turn in page["turns"]] == turns and page["session"]["turns"] >= 0
    earlier = page["turns"][2]["records"][0]["at_s"]
    part = (await asked(bench, f"/turnpike/sessions/{session}?before_s={earlier!r}")).json()
    assert [turn["turn"] for turn in part["turns"]] == turns[:2]
    past = (await asked(bench, "/turnpike/history")).json()
    assert past["turns"] == 3 and past["outcomes"] == {"finished": 3}
    assert past["percentiles"]["run_ms"]["p50"] > 0
    await eventually_listed(bench, session)
    assert (await asked(bench, "/turnpike/sessions/s-none")).status == 404
    for wrong in ("history?limit=0", "history?from_s=x", f"sessions/{session}?before_s=x"):
        assert (await asked(bench, f"/turnpike/{wrong}")).status == 400


async def eventually_listed(bench, session: str) -> None:
    async with asyncio.timeout(10):
        while [row["session"] for row in (await asked(bench, "/turnpike/history")).json()["sessions"]] != [
            session
        ]:
            await asyncio.sleep(0.02)


async def test_the_next_process_knows_it(start, tmp_path):
    bench = await start(history={"path": str(tmp_path / "h")})
    turn = await served(bench, "mine")
    await bench.gateway.stop()
    bench = await start(history={"path": str(tmp_path / "h")})
    assert (await asked(bench, f"/turnpike/turns/{turn}")).json()["became"]["outcome"] == "finished"


async def test_without_a_history_memory_answers_for_a_session(start):
    bench = await start()
    turn = await served(bench, "mine")
    session = (await asked(bench, f"/turnpike/turns/{turn}")).json()["known"]["session"]
    page = (await asked(bench, f"/turnpike/sessions/{session}")).json()
    assert [each["turn"] for each in page["turns"]] == [turn] and page["session"]["turns"] == 1
    assert (await asked(bench, "/turnpike/history")).status == 404
    assert b"turnpike_history_bytes 0.0" in (await asked(bench, "/metrics")).body


async def test_only_who_may_look_may_look_back(start, tmp_path):
    keys = {"control_key_hashes": [hash_key("tp-write")], "control_read_key_hashes": [hash_key(READ)]}
    tenants = [{"name": "t", "key_hashes": [hash_key("tp-tenant")]}]
    bench = await start(history={"path": str(tmp_path / "h")}, server=keys, tenants=tenants)
    for path in (b"/turnpike/history", b"/turnpike/sessions/s-1"):
        for key in (b"", b"Authorization: Bearer tp-tenant\r\n", b"Authorization: Bearer wrong\r\n"):
            assert (await bench.control(get(path, key))).status == 401
        answer = await bench.control(get(path, b"Authorization: Bearer %s\r\n" % READ.encode()))
        assert answer.status in (200, 404) and b"key" not in answer.body


async def test_a_bad_disk_harms_nobody_and_is_told_of(start, tmp_path):
    in_the_way = tmp_path / "h"
    in_the_way.write_text("a file")
    bench = await start(history={"path": str(in_the_way)})
    bench.may_log_errors = True
    turn = await served(bench, "mine")
    await eventually(lambda: bench.gateway.observation._history.failures >= 2)
    assert (await asked(bench, f"/turnpike/turns/{turn}")).json()["became"]["outcome"] == "finished", (
        "the ring has it"
    )
    ready = await asked(bench, "/turnpike/readyz")
    assert ready.status == 200 and any("history" in each for each in ready.json()["failing"])
    metrics = (await asked(bench, "/metrics")).body.decode()
    [failures] = [
        line for line in metrics.splitlines() if line.startswith("turnpike_history_failures_total ")
    ]
    assert float(failures.split()[1]) >= 2
    in_the_way.unlink()
    await written(bench, 1)
    await eventually(lambda: bench.gateway.observation._history.trouble is None)  # a moment after the turn
    assert (await asked(bench, "/turnpike/readyz")).json()["failing"] == []


async def test_prompts_arguments_and_keys_are_not_on_the_disk(start, tmp_path):
    tenants = [{"name": "t", "key_hashes": [hash_key("tp-tenant")]}]
    bench = await start(history={"path": str(tmp_path / "h")}, tenants=tenants)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "plan-the-coup"}]}).encode()
    answer = await bench.ask(post(body, headers=b"Authorization: Bearer tp-tenant\r\n"))
    assert answer.status == 200
    await written(bench, 1)
    await bench.gateway.stop()
    kept = b"".join(each.read_bytes() for each in (tmp_path / "h").iterdir())
    assert len(kept) > 10_000 and answer.get(b"x-turnpike-request") in kept
    for secret in (b"plan-the-coup", b"tp-tenant", hash_key("tp-tenant").encode()):
        assert secret not in kept
