"""Admission of sessions, on real sockets."""

import asyncio
import hashlib
import re
from collections.abc import Sized
from functools import partial

import pytest

from gateway.domain.ids import PoolId
from tests.server.bench import CHAT, Client, Message, answer, eventually, get, post, sends
from tests.server.test_queue import Gate


def _has(room: Sized, count: int) -> bool:
    return len(room) == count


def of(session: bytes):
    return post(headers=b"x-turnpike-session: %s\r\n" % session)


async def test_a_session_waits_for_a_place_and_the_turns_of_others_pass_it(start):
    bench = await start(admission={"policy": "session-cap", "session_cap": 1})
    assert (await bench.ask(of(b"one"))).status == 200
    bench.backend.script = gate = Gate()
    first, second = await bench.arrive(of(b"one")), await bench.send(of(b"two"))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    again = asyncio.create_task(bench.ask(of(b"one")))
    await eventually(lambda: len(bench.backend.seen) == 3)
    for _ in range(3):
        gate.passes.release()
    assert (await first.receive()).status == 200
    assert (await again).status == 200
    # Nobody who is in has a turn: whoever is next enters at once.
    answered = await second.receive()
    assert answered.status == 200 and float(answered.get(b"x-turnpike-queue-ms")) > 0


async def test_a_tenant_beyond_its_quota_is_told_429(start):
    key = b"sesame"
    digest = "sha256:" + hashlib.sha256(key).hexdigest()
    tenant = {"name": "t", "key_hashes": [digest], "quota": {"tokens_per_minute": 10}}
    bench = await start(tenants=[tenant])
    asked = post(headers=b"Authorization: Bearer sesame\r\n")
    assert (await bench.ask(asked)).status == 200
    responses = [await bench.ask(asked) for _ in range(5)]
    response = responses[-1]
    assert response.status == 429 and 1 <= int(response.get(b"retry-after")) <= 30
    assert response.get(b"x-turnpike-reason") == b"tenant_quota"
    assert response.json()["error"]["code"] == "tenant_quota"


EMBEDDED = b'{"data":[{"embedding":[%s]}],"usage":{"prompt_tokens":50,"total_tokens":50}}' % (
    b"0.5," * 99999 + b"1"
)


async def test_tokens_of_embeddings_are_counted_and_those_who_owe_are_told_429(start):
    digest = "sha256:" + hashlib.sha256(b"sesame").hexdigest()
    tenant = {"name": "t", "key_hashes": [digest], "quota": {"tokens_per_minute": 60}}
    bench = await start(tenants=[tenant], script=sends(answer(EMBEDDED)))
    asked = post(b'{"model":"m","input":"hi"}', b"/v1/embeddings", b"Authorization: Bearer sesame\r\n")
    assert [(await bench.ask(asked)).status for _ in range(3)] == [200, 200, 429]
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    of = r'key="sha256:\w+",kind="prompt",model="m",tenant="t"'
    assert re.search(rf"turnpike_tenant_tokens_total\{{{of}\}} 100", metrics)


@pytest.mark.parametrize(("trust", "order"), [(["scheduling"], ["person", "task"]), ([], ["task", "person"])])
async def test_who_is_trusted_says_that_nobody_waits(start, trust, order):
    digest = "sha256:" + hashlib.sha256(b"sesame").hexdigest()
    bench = await start(
        tenants=[{"name": "t", "key_hashes": [digest], "permissions": trust}],
        admission={"policy": "session-cap", "session_cap": 1, "packing": {"order": "arrival"}},
    )
    bench.backend.script = gate = Gate()
    said = {
        "first": (b"", b""),
        "task": (b"X-Turnpike-Class: proactive\r\n", b'"service_tier":"flex",'),
        "person": (b"", b""),
    }
    clients: dict[str, Client] = {}
    waiting = bench.brain.waiting_room
    for at, (session, (headers, fields)) in enumerate(said.items()):
        who = b"Authorization: Bearer sesame\r\nX-Turnpike-Session: %s\r\n" % session.encode()
        clients[session] = await bench.connect()
        clients[session].send(post(CHAT.replace(b"{", b"{" + fields, 1), headers=who + headers))
        await eventually(partial(_has, waiting, at))
    for _ in said:
        gate.passes.release()
    bodies: dict[str, Message] = {}
    for session in ["first", *order]:
        await clients[session].receive()
        bodies[session] = bench.backend.seen[len(bodies)]
    task = bodies["task"]
    assert b'"service_tier":"flex"' in task.body and b"turnpike-class" not in task.head.lower()
    assert all(b"service_tier" not in bodies[other].body for other in ("first", "person"))


async def test_what_an_engine_says_of_its_cache_becomes_the_budget(start):
    bench = await start(upstream={"engine_period_s": 0.05})
    bench.backend.metrics = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n'
    pools = bench.brain.admission.pools
    await eventually(lambda: pools and pools[PoolId("default")].window.budget == 16_000)
