"""Sessions that clients say are over, as rollouts of peers do it: on real sockets."""

import asyncio
import json
from typing import Any

import pytest

from gateway.server.auth.client_keys import hash_key
from tests.server.bench import answer, bearer, completion, eventually, get, pauses, post, sends
from tests.server.test_several_gateways import several, sides  # noqa: F401 - a fixture
from tests.workflow.world import user

TENANTS = [{"name": name, "key_hashes": [hash_key(name)]} for name in "ab"]


def turn(key: str = "a", headers: bytes = b"", task: str = "go", **fields: Any) -> bytes:
    body = {"model": "m", "messages": [user(task)], **fields}
    return post(json.dumps(body).encode(), headers=bearer(key) + headers)


def release(name: str = "x", key: str = "a", path: bytes = b"/programs/release") -> bytes:
    field = "program_id" if b"programs" in path else "session_id"
    return post(json.dumps({field: name}).encode(), path, bearer(key))


def sessions(bench) -> int:
    return len(bench.brain.sessions.sessions)


@pytest.mark.parametrize("path", [b"/finish_session", b"/v1/programs/release"])
@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        (b"x-session-id: x\r\n", {}),
        (b"x-turnpike-session: x\r\n", {}),
        (b"", {"program_id": "x"}),
        (b"", {"session_id": "x"}),
    ],
    ids=["header", "turnpike", "program_id", "session_id"],
)
async def test_a_session_ends_at_once_by_the_id_that_its_turns_stated(start, path, headers, fields):
    bench = await start(tenants=TENANTS, script=sends(completion()))
    first = await bench.ask(turn(headers=headers, **fields))
    told = await bench.ask(release(path=path))
    assert told.status == 200
    assert told.json() == {"session_id": "x", "program_id": "x", "released": True}
    assert sessions(bench) == 0 and len(bench.backend.seen) == 1, "it goes to no engine"
    again = await bench.ask(turn(headers=headers, **fields))
    assert again.get(b"x-turnpike-session") != first.get(b"x-turnpike-session")


async def test_a_session_that_states_no_id_ends_by_that_of_its_receipt(start):
    bench = await start(tenants=TENANTS, script=sends(completion()))
    own = (await bench.ask(turn())).get(b"x-turnpike-session").decode()
    assert (await bench.ask(release(own, "b"))).json()["released"] is False
    assert (await bench.ask(release(own))).json()["released"] is True and sessions(bench) == 0


async def test_another_tenant_s_session_goes_on_and_so_does_the_rollout(start):
    bench = await start(tenants=TENANTS, script=sends(completion()))
    await bench.ask(turn("a", program_id="x"))
    for asked in (release("x", "b"), release("unknown"), release("x" * 256)):
        told = await bench.ask(asked)
        assert (
            told.status == 200 and told.json()["released"] is False and "No session" in told.json()["detail"]
        )
    assert sessions(bench) == 1
    nobody = release("x", "nobody")
    assert (await bench.ask(nobody)).status == 401
    for body in (b"{}", b"", b"[1]", b'{"program_id": 7}', b'{"program_id": "%s"}' % (b"x" * 300)):
        refused = await bench.ask(post(body, b"/programs/release", bearer("a")))
        assert refused.status == 400 and "program_id" in refused.json()["error"]["message"]
    assert sessions(bench) == 1 and len(bench.backend.seen) == 1
    bench.backend.script = sends(answer(b"{}", b"404 Not Found"))
    assert (await bench.ask(get(b"/programs/release", bearer("a")))).status == 404, "GET is an engine's"


async def test_a_sub_agent_s_release_does_not_end_the_session_that_began_it(start):
    bench = await start(script=sends(completion()))
    await bench.ask(turn(headers=b"x-dynamo-session-id: x\r\n"))
    child = b"x-dynamo-session-id: child\r\nx-dynamo-parent-session-id: x\r\n"
    await bench.ask(turn(headers=child, task="help"))
    assert (await bench.ask(release("child"))).json()["released"] is False and sessions(bench) == 1
    assert (await bench.ask(release("x"))).json()["released"] is True and sessions(bench) == 0


async def test_an_id_that_several_runs_share_ends_them_all(start):
    bench = await start(script=sends(completion()))
    shared: dict[str, Any] = {"program_id": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}
    for number in range(3):
        await bench.ask(turn(task=f"task {number}", **shared))
    await bench.ask(turn(program_id="y"))
    assert sessions(bench) == 4
    assert (await bench.ask(release())).json()["released"] is True and sessions(bench) == 1


async def test_what_runs_of_a_session_ends_first(start):
    bench, may_end = await start(), asyncio.Event()
    bench.backend.script = pauses(b"", may_end, completion())
    running = asyncio.ensure_future(bench.ask(turn(program_id="x")))
    await eventually(lambda: bench.backend.seen)
    assert (await bench.ask(release())).json()["released"] is True and sessions(bench) == 1
    may_end.set()
    assert (await running).status == 200
    await eventually(lambda: sessions(bench) == 0)


async def test_it_is_passed_on_to_the_gateway_that_has_the_session(several):  # noqa: F811
    gateways = await several(tenants=TENANTS)
    for bench in gateways:
        bench.backend.script = sends(completion())
    await gateways[0].ask(turn(headers=b"x-session-id: x\r\n"))
    home, other = sides(gateways)

    async def is_released() -> bool:
        return bool((await other.ask(release())).json()["released"])

    await eventually(lambda: sessions(home) == 1)
    assert (await other.ask(release("x", "b"))).json()["released"] is False and sessions(home) == 1
    for _ in range(50):
        if await is_released():
            break
    assert sessions(home) == 0 and not await is_released()
