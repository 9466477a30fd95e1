"""An operator stops a session: what runs, what waits and what comes."""

import asyncio
import json

from tests.server.bench import DELTA, STREAM_HEAD, Exchange, answer, bearer, chunk, eventually, post
from tests.server.test_control import KEYS, READ, WRITE

CHAT = b'{"model":"m","messages":[{"role":"user","content":"go"}]}'
STREAMED = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}'


def of(session: bytes, body: bytes = CHAT) -> bytes:
    return post(body, headers=b"x-turnpike-session: %s\r\n" % session)


def control(session: str, act: str = "stop", headers: bytes = b"", **body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"POST /turnpike/sessions/{session}/{act} HTTP/1.1\r\nHost: c\r\nContent-Length: {len(text)}\r\n"
    return head.encode() + headers + b"\r\n" + text


class Slow:
    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.left = 0

    async def __call__(self, exchange: Exchange) -> None:
        waits = asyncio.ensure_future(self.go.wait())
        gone = asyncio.ensure_future(exchange.reader.read(1))
        await asyncio.wait([waits, gone], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        gone.cancel()
        if self.go.is_set():
            await exchange.send(answer())
        else:
            self.left += 1
            exchange.close()


def newest(bench) -> str:
    return next(iter(bench.brain.sessions.sessions.newest_first())).id


async def test_what_comes_is_refused_and_others_are_served(start):
    bench = await start()
    assert (await bench.ask(of(b"wild"))).status == 200
    session = newest(bench)
    told = await bench.control(control(session, for_s=60))
    assert told.status == 200 and told.json() == {"session": session, "stopped_for_s": 60.0}
    refused = await bench.ask(of(b"wild"))
    assert refused.status == 403 and refused.json()["error"]["code"] == "session_stopped"
    assert refused.get(b"x-should-retry") == b"false"
    finished = await bench.control(control(session, "finish"))
    assert finished.status == 409 and "it is stopped for 60 s more" in finished.json()["error"]
    released = await bench.ask(post(b"{}", path=b"/finish_session", headers=b"x-turnpike-session: wild\r\n"))
    assert released.status == 403 and released.json()["error"]["code"] == "session_stopped"
    assert (await bench.ask(of(b"tame"))).status == 200
    metrics = (await bench.control(b"GET /metrics HTTP/1.1\r\nHost: c\r\n\r\n")).body.decode()
    assert "turnpike_sessions_stopped_total 1.0" in metrics


async def test_a_turn_without_an_answer_is_refused_and_its_engine_let_go(start):
    bench = await start()
    bench.backend.script = slow = Slow()
    client = await bench.send(of(b"wild"))
    await eventually(lambda: len(bench.backend.seen) == 1)
    assert (await bench.control(control(newest(bench)))).status == 200
    response = await client.receive()
    assert response.status == 403 and response.json()["error"]["code"] == "session_stopped"
    await eventually(lambda: slow.left == 1)
    await eventually(lambda: not bench.brain.live)
    slow.go.set()
    assert (await client.ask(of(b"tame"))).status == 200, "its connection is good for more"


async def test_an_answer_that_has_begun_is_cut(start):

    async def streams(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(b"data: %s\n\n" % DELTA))
        await exchange.reader.read(1)
        exchange.close()

    bench = await start(script=streams)
    client = await bench.send(of(b"wild", STREAMED))
    await client.reader.readuntil(DELTA)
    await bench.control(control(newest(bench)))
    try:
        rest = await client.reader.read()
        assert b"0\r\n\r\n" not in rest, "a clean end would be taken for success"
    except ConnectionError:
        pass
    await eventually(lambda: not bench.brain.live)


async def test_what_runs_may_be_let_finish(start):
    bench = await start()
    bench.backend.script = slow = Slow()
    asked = asyncio.create_task(bench.ask(of(b"wild")))
    await eventually(lambda: len(bench.backend.seen) == 1)
    session = newest(bench)
    await bench.control(control(session, in_flight="finish"))
    slow.go.set()
    assert (await asked).status == 200
    assert (await bench.ask(of(b"wild"))).status == 403


async def test_what_waits_is_refused(start):
    bench = await start(admission={"max_running_per_replica": 1})
    bench.backend.script = slow = Slow()
    first = asyncio.create_task(bench.ask(of(b"tame")))
    await eventually(lambda: len(bench.backend.seen) == 1)
    second = asyncio.create_task(bench.ask(of(b"wild")))
    await eventually(lambda: len(bench.brain.waiting_room) == 1)
    await bench.control(control(newest(bench), in_flight="finish"))
    assert (await second).status == 403
    slow.go.set()
    assert (await first).status == 200


async def test_who_may_and_what_is_asked_wrongly(start, tmp_path):
    stream = tmp_path / "stream"
    bench = await start(server=KEYS, stream={"path": str(stream)})
    await bench.ask(of(b"wild"))
    session = newest(bench)
    assert (await bench.control(control(session))).status == 401
    assert (await bench.control(control(session, headers=bearer(READ)))).status == 403
    assert (await bench.control(control("s-none", headers=bearer(WRITE)))).status == 404
    for body in ({"for_s": 0}, {"for_s": 1e9}, {"in_flight": "maybe"}, {"forever": True}):
        assert (await bench.control(control(session, headers=bearer(WRITE), **body))).status == 400
    assert (await bench.ask(of(b"wild"))).status == 200, "nothing of that stopped it"
    assert (await bench.control(control(session, headers=bearer(WRITE)))).status == 200
    await eventually(lambda: b"session_stop" in stream.read_bytes())
    told = [json.loads(line) for line in stream.read_text().splitlines()]
    (record,) = [each for each in told if each["type"] == "session_stop"]
    assert record["session"] == session and len(record["by"]) == 8
    assert record["by"] == KEYS["control_key_hashes"][0][7:15]


async def test_the_page_is_told_whether_it_may_act(start):
    ask = b"GET /turnpike/snapshot HTTP/1.1\r\nHost: c\r\n%s\r\n"
    bench = await start(server=KEYS)
    assert (await bench.control(ask % bearer(WRITE))).get(b"x-turnpike-may-act") == b"true"
    assert (await bench.control(ask % bearer(READ))).get(b"x-turnpike-may-act") is None
    assert (await (await start()).control(ask % b"")).get(b"x-turnpike-may-act") == b"true"
