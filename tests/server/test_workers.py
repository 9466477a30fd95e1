"""Several worker processes as one gateway: real processes, real sockets."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess

import pytest

from gateway.server.tenants import hash_key
from gateway.server.workers.control import _ROUTES
from tests.prerequisites import require_command
from tests.server.bench import DELTA, DONE, STREAM_HEAD, Message, chunk, eventually, get, post, sends
from tests.server.many import Many, children, serve
from tests.telemetry.sse import read_events

pytestmark = pytest.mark.slow
STAYED = "the settings stay as they were"


def said(number: int) -> bytes:
    """A request of a session of its own."""
    body = {"model": "m", "messages": [{"role": "user", "content": f"task {number}"}]}
    return post(json.dumps(body).encode())


def told_in(answer: Message, header: bytes) -> str:
    value = answer.get(header)
    assert value is not None
    return value.decode()


async def test_a_worker_that_is_killed_is_replaced_while_the_others_serve(tmp_path):
    async with Many(tmp_path) as many:
        before = many.pids
        assert len(before) == 2
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        await many.logged("ended with SIGKILL")
        for _ in range(50):  # none waits for the dead one's successor
            async with asyncio.timeout(0.5):
                assert (await many.ask()).status == 200
        await many.until_all_are_ready()
        after = many.pids
        assert len(after) == 2 and after & before == before - {killed}
        metrics = await many.metrics()
        assert metrics["turnpike_worker_restarts_total"] == 1 and metrics["turnpike_workers"] == 2


async def test_readiness_names_what_is_missing(tmp_path):
    async with Many(tmp_path) as many:
        assert await many.control_json(b"/turnpike/readyz") == {"ready": True, "failing": []}
        os.kill(min(many.pids), signal.SIGSTOP)
        told = await many.control_json(b"/turnpike/readyz")
        assert told == {"ready": True, "failing": ["workers (1 of 2 missing)"]}
        os.kill(min(many.pids), signal.SIGCONT)
        await many.until_all_are_ready()


async def test_a_reload_under_load_fails_no_request(tmp_path):
    async with Many(tmp_path) as many:
        before, is_over, statuses = many.pids, asyncio.Event(), []

        async def ask_anew():
            while not is_over.is_set():
                statuses.append((await many.ask()).status)

        async def ask_again_and_again(pause_s):
            client = await many.connect()
            while not is_over.is_set():
                answer = await client.ask(post())
                statuses.append(answer.status)
                if answer.get(b"connection") == b"close":
                    client.close()
                    client = await many.connect()
                await asyncio.sleep(pause_s)
            client.close()

        load = [ask_anew() for _ in range(3)] + [ask_again_and_again(pause) for pause in (0, 0.01, 0.1)]
        asking = asyncio.gather(*load)
        await asyncio.sleep(0.3)
        for times in (1, 2):
            many.write_settings("receipts = false")
            many.process.send_signal(signal.SIGHUP)
            await many.logged("the settings were read again", times)
        await eventually(lambda: len(many.pids) == 2)
        is_over.set()
        await asking
        assert len(statuses) > 100 and set(statuses) == {200}
        assert not many.pids & before
        assert (await many.ask()).get(b"x-turnpike-session") is None  # the new settings hold
        assert (await many.metrics())['turnpike_turns_total{protocol="chat",source="new"}'] == len(
            statuses
        ) + 1


async def test_a_stream_goes_on_through_a_reload(tmp_path):
    async with Many(tmp_path) as many:
        may_end = asyncio.Event()

        async def script(exchange):
            await exchange.send(STREAM_HEAD + chunk(DELTA))
            await may_end.wait()
            await exchange.send(chunk(DONE) + b"0\r\n\r\n")

        many.backend.script = script
        client = await many.connect()
        client.send(post())
        head = await client.reader.readuntil(DELTA)
        assert b" 200 " in head
        many.process.send_signal(signal.SIGHUP)
        await many.logged("the settings were read again")
        await asyncio.sleep(2 * many.lame_duck_s)
        may_end.set()
        data, end = await client.rest()
        assert data.endswith(b"0\r\n\r\n") and end == "eof"


@pytest.mark.parametrize("wrong", ["receipts = 5", 'state_path = "/nowhere/at/all"', "workers = 3"])
async def test_settings_that_are_wrong_change_nothing(tmp_path, wrong):
    async with Many(tmp_path) as many:
        before = many.pids
        if wrong.startswith("workers"):
            many.workers, wrong = 3, ""
        many.write_settings(wrong)
        many.process.send_signal(signal.SIGHUP)
        await many.logged(STAYED)
        await eventually(lambda: many.pids == before)
        await many.until_all_are_ready()
        assert (await many.ask()).get(b"x-turnpike-session") is not None


async def test_the_control_plane_shows_and_makes_changes(tmp_path):
    key = "tp-write"
    keys = f'control_key_hashes = ["{hash_key(key)}"]'
    async with Many(tmp_path, settings=f'[stream]\npath = "{tmp_path}/stream"\n') as many:
        reload, diff = b"/turnpike/settings/reload", b"/turnpike/settings/diff"
        many.write_settings(keys)
        told = await many.control(post(b"", reload))
        assert told.status == 200, told.body
        assert [each["key"] for each in told.json()["changes"]] == ["server.control_key_hashes"]
        assert (await many.control(post(b"", reload))).status == 401, "workers check who asks"
        bearer = b"Authorization: Bearer %s\r\n" % key.encode()
        many.write_settings(f"{keys}\nreceipts = false")
        (shown,) = (await many.control(post(b"", diff, bearer))).json()["changes"]
        assert shown["key"] == "server.receipts" and not shown["needs_restart"]
        assert (await many.ask()).get(b"x-turnpike-session") is not None
        many.write_settings(f"{keys}\nreceipts = 5")
        refused = await many.control(post(b"", reload, bearer))
        assert refused.status == 409 and "server.receipts" in refused.json()["error"]
        many.workers = 3
        many.write_settings(keys)
        refused = await many.control(post(b"", reload, bearer))
        assert refused.status == 409 and refused.json()["error"] == "server.workers: needs a restart"
        many.workers = 2
        many.write_settings(f"{keys}\nreceipts = false")
        assert (await many.control(post(b"", reload, bearer))).status == 200
        await eventually(lambda: len(many.pids) == 2)  # the old ones may take what was on its way
        assert (await many.ask()).get(b"x-turnpike-session") is None
        who = f"key {hash_key(key)[:19]}"
        wanted = {("no key", 200), ("no key", 401), (who, 409), (who, 200)}
        await eventually(lambda: {(e["who"], e["outcome"]) for e in acted(tmp_path)} == wanted)


def acted(directory) -> list:
    """What workers recorded of the control plane."""
    lines = [line for file in directory.glob("stream.worker-*") for line in file.read_text().splitlines()]
    return [record for line in lines if (record := json.loads(line))["type"] == "control"]


async def test_settings_whose_replicas_are_down_change_nothing(tmp_path):
    async with Many(tmp_path) as many:
        before = many.pids
        many.settings = '[[pools]]\nname = "other"\n'
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        many.path.write_text(many.path.read_text().replace(str(many.backend.port), str(port)))
        many.process.send_signal(signal.SIGHUP)
        await many.logged(STAYED)
        await eventually(lambda: many.pids == before)
        assert (await many.ask()).status == 200


async def test_metrics_are_the_sum_and_never_fall(tmp_path):
    async with Many(tmp_path) as many:
        for number in range(40):
            assert (await many.ask(said(number))).status == 200
        name = 'turnpike_turns_total{protocol="chat",source="new"}'
        metrics = await many.metrics()
        assert metrics[name] == 40 and metrics["turnpike_sessions"] == 40
        assert metrics["turnpike_queue_seconds_count"] == 40
        up = {key for key in metrics if key.startswith("turnpike_replica_up{")}
        assert len(up) == 2 and all('worker="' in key for key in up)
        os.kill(min(many.pids), signal.SIGKILL)
        await many.logged("ended with SIGKILL")
        await many.until_all_are_ready()
        many.process.send_signal(signal.SIGHUP)
        await many.logged("the settings were read again")
        await eventually(lambda: len(many.pids) == 2)
        metrics = await many.metrics()
        assert metrics[name] == 40 and metrics["turnpike_sessions"] == 0


async def test_promtool_likes_them(tmp_path):
    promtool = require_command("promtool")
    async with Many(tmp_path) as many:
        await many.ask()
        text = (await many.control(get(b"/metrics"))).body
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


async def test_the_dashboard_shows_all_as_one(tmp_path):
    async with Many(tmp_path) as many:
        answers = [await many.ask(said(number)) for number in range(20)]
        sessions = {told_in(answer, b"x-turnpike-session") for answer in answers}
        page = await many.control(get(b"/turnpike/"))
        assert page.status == 200 and page.get(b"content-security-policy") and b"main.js" in page.body
        assert (await many.control(get(b"/turnpike/static/main.js"))).status == 200
        snapshot = await many.control_json(b"/turnpike/snapshot")
        assert {each["id"] for each in snapshot["sessions"]} == sessions
        assert snapshot["session_count"] == 20
        assert [(each["id"], each["sessions"]) for each in snapshot["replicas"]] == [("default-0", 20)]
        gauges = await many.control_json(b"/turnpike/snapshot?sessions=0")
        assert gauges["session_count"] == 20 and gauges["began_s"] == snapshot["began_s"]
        for answer in answers:
            turn = told_in(answer, b"x-turnpike-request")
            told = await many.control_json(f"/turnpike/turns/{turn}".encode())
            assert told["turn"] == turn and told["decided"]["outcome"] == "dispatched"
        assert (await many.control(get(b"/turnpike/turns/r-none"))).status == 404
        assert isinstance(await many.control_json(b"/turnpike/graphs"), list)


async def read_until(many, count, *, after=None, types="turn_arrive"):
    """Events of the merged stream, and the id behind the last."""
    reader, writer = await asyncio.open_connection("127.0.0.1", many.control_port)
    headers = b"" if after is None else b"Last-Event-ID: %s\r\n" % after.encode()
    writer.write(get(f"/turnpike/events?types={types}".encode(), headers).replace(b"gw", b"localhost"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head and b"text/event-stream" in head
    data = b""
    async with asyncio.timeout(10):
        while len(read_events(data)) < count or not data.endswith(b"\n\n") or b"id: " not in data[-64:]:
            size = int(await reader.readuntil(b"\r\n"), 16)
            assert size
            data += (await reader.readexactly(size + 2))[:-2]
    writer.close()
    last = data.decode().rstrip().rpartition("id: ")[2].partition("\n")[0]
    return [json.loads(event.data)["turn"] for event in read_events(data)], last


async def test_the_stream_goes_on_behind_a_snapshot_and_behind_an_id(tmp_path):
    async with Many(tmp_path) as many:

        async def ask(count):
            answers = [await many.ask(said(number)) for number in range(count)]
            return {told_in(answer, b"x-turnpike-request") for answer in answers}

        first = await ask(12)
        seq = (await many.control_json(b"/turnpike/snapshot"))["seq"]
        second = await ask(12)
        told, last = await read_until(many, 12, after=seq)
        assert len(told) == 12 and set(told) == second
        third = await ask(12)
        told, _ = await read_until(many, 12, after=last)
        assert len(told) == 12 and set(told) == third
        told, _ = await read_until(many, 36, after="0")
        assert len(told) == 36 and set(told) == first | second | third
        wrong = await many.control(get(b"/turnpike/events?after=abc"))
        assert wrong.status == 400


async def test_a_reader_is_told_of_what_is_lost_with_a_worker_and_hears_its_successor(tmp_path):
    async with Many(tmp_path) as many:
        for number in range(20):
            await many.ask(said(number))
        reader, writer = await asyncio.open_connection("127.0.0.1", many.control_port)
        writer.write(get(b"/turnpike/events?after=0").replace(b"gw", b"localhost"))
        data = bytearray()

        async def read():
            while piece := await reader.read(65536):
                data.extend(piece)

        reading = asyncio.get_running_loop().create_task(read())
        await eventually(lambda: data.count(b"event: turn_arrive") == 20)
        assert b"event: gap" not in data
        os.kill(min(many.pids), signal.SIGKILL)
        await eventually(lambda: data.count(b"event: gap") == 1)
        await many.until_all_are_ready()
        for number in range(20):
            await many.ask(said(number))
        await eventually(lambda: data.count(b"event: turn_arrive") == 40)
        writer.close()
        await reading


async def test_who_knows_a_session_ends_it(tmp_path):
    async with Many(tmp_path) as many:
        for number in range(8):
            session = told_in(await many.ask(said(number)), b"x-turnpike-session")
            answer = await many.control(post(b"", f"/turnpike/sessions/{session}/finish".encode()))
            assert answer.status == 200 and answer.json()["finished"]
        assert (await many.control(post(b"", b"/turnpike/sessions/s-none/finish"))).status == 404
        assert (await many.metrics())["turnpike_sessions"] == 0


async def test_a_drain_is_for_all_and_for_those_that_come_later(tmp_path):
    async with Many(tmp_path, settings="[core]\nmax_wait_s = 0.1\n") as many:
        drain = post(b'{"draining": true}', b"/turnpike/replicas/default-0/drain")
        assert (await many.control(drain)).json() == {"name": "default-0", "draining": True}
        many.process.send_signal(signal.SIGHUP)
        await many.logged("the settings were read again")
        await eventually(lambda: len(many.pids) == 2)
        for _ in range(10):
            assert (await many.ask()).status == 503
        assert not many.backend.seen
        assert (await many.control(post(b"", b"/turnpike/replicas/none/drain"))).status == 404


async def test_a_replica_that_registers_is_known_to_all_and_to_those_that_come_later(tmp_path):
    settings = '[[pools]]\nname = "open"\nmodels = ["n"]\ndiscovery = { registration = true, ttl_s = 60 }\n'
    async with Many(tmp_path, settings=settings) as many:
        asked = json.dumps({"url": "http://127.0.0.1:9", "name": "late"}).encode()
        assert (await many.control(post(asked, b"/turnpike/replicas"))).status == 201
        assert (await many.control(post(asked, b"/turnpike/replicas"))).status == 200
        os.kill(min(many.pids), signal.SIGKILL)
        await many.logged("ended with SIGKILL")
        await many.until_all_are_ready()
        leave = b"DELETE /turnpike/replicas/late HTTP/1.1\r\nHost: gw\r\n\r\n"
        assert (await many.control(leave)).json() == {"name": "late", "left": True}
        assert (await many.control(leave)).status == 404


async def test_keys_are_asked_for(tmp_path):
    many = Many(tmp_path)
    from gateway.server.tenants import hash_key

    many.settings = f'[server.holding]\n[[tenants]]\nname = "t"\nkey_hashes = ["{hash_key("k")}"]\n'
    real = many.write_settings
    many.write_settings = lambda server="": real(  # type: ignore[method-assign]
        f'control_key_hashes = ["{hash_key("w")}"]\ncontrol_read_key_hashes = ["{hash_key("r")}"]\n{server}'
    )
    async with many:
        for path in (
            b"/metrics",
            b"/turnpike/snapshot",
            b"/turnpike/events",
            b"/turnpike/",
            b"/turnpike/graphs",
        ):
            refused = await many.control(get(path))
            assert refused.status == 401, path
            assert refused.get(b"www-authenticate") or path == b"/turnpike/events"
        assert (await many.control(get(b"/metrics", b"Authorization: Bearer r\r\n"))).status == 200
        drain = b"/turnpike/replicas/default-0/drain"
        assert (await many.control(post(b"{}", drain, b"Authorization: Bearer r\r\n"))).status == 403
        assert (await many.control(post(b"{}", drain, b"Authorization: Bearer w\r\n"))).status == 200


async def test_files_are_each_worker_s_own(tmp_path):
    settings = f'[stream]\npath = "{tmp_path}/stream"\n[recording]\npath = "{tmp_path}/events"\n'
    async with Many(tmp_path, settings=settings) as many:
        many.write_settings(f'state_path = "{tmp_path}/state"')
        many.process.send_signal(signal.SIGHUP)
        await many.logged("the settings were read again")
        for _ in range(20):
            await many.ask()
    names = {path.name for path in tmp_path.iterdir()}
    for name in ("stream", "events"):
        assert {f"{name}.worker-{number}" for number in (1, 2, 3, 4)} <= names and name not in names
    assert {"state.worker-3", "state.worker-4"} <= names
    arrived = sum(
        b'"turn_arrive"' in line
        for number in (3, 4)
        for line in (tmp_path / f"stream.worker-{number}").read_bytes().splitlines()
    )
    assert arrived == 20


async def test_sigterm_lets_streams_end_at_every_worker(tmp_path):
    async with Many(tmp_path) as many:
        may_end = asyncio.Event()

        async def script(exchange):
            await exchange.send(STREAM_HEAD + chunk(DELTA))
            await may_end.wait()
            await exchange.send(chunk(DONE) + b"0\r\n\r\n")

        many.backend.script = script
        clients = [await many.connect() for _ in range(8)]
        for client in clients:
            client.send(post())
        for client in clients:
            await client.reader.readuntil(DELTA)
        many.process.send_signal(signal.SIGTERM)
        await many.logged("draining", 2)
        assert (await many.control(get(b"/turnpike/readyz"))).status == 503
        with pytest.raises(ConnectionRefusedError):
            await many.connect()
        may_end.set()
        for client in clients:
            data, end = await client.rest()
            assert data.endswith(b"0\r\n\r\n") and end == "eof"
        assert await many.process.wait() == 0


async def test_a_second_signal_ends_all_at_once(tmp_path):
    async with Many(tmp_path) as many:
        many.backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
        client = await many.connect()
        client.send(post())
        await client.reader.readuntil(DELTA)
        many.process.send_signal(signal.SIGINT)
        await many.logged("draining", 2)
        many.process.send_signal(signal.SIGTERM)
        assert (await client.rest())[1] == "reset"


async def test_workers_end_when_their_parent_is_killed(tmp_path):
    many = Many(tmp_path)
    many.status = -signal.SIGKILL
    async with many:
        workers = many.pids
        many.process.kill()
        await eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))


async def test_what_is_wrong_at_the_start_is_told_once(tmp_path):
    process = await serve(
        "--backend", "http://127.0.0.1:9", "--workers", "3", "--listen", "127.0.0.1:0", "--control",
        "127.0.0.1:0", "--stream", str(tmp_path / "none" / "stream"),
    )  # fmt: skip
    _, log = await process.communicate()
    assert process.returncode == 1
    assert len(log.decode().splitlines()) == 1 and b"No such file" in log


async def test_workers_that_no_longer_start_end_all(tmp_path):
    folder = tmp_path / "streams"
    folder.mkdir()
    many = Many(tmp_path, settings=f'[stream]\npath = "{folder}/stream"\n')
    many.status = 1
    async with many:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        for pid in many.pids:
            os.kill(pid, signal.SIGKILL)
        await many.process.wait()
        assert "giving up" in many.log


async def test_a_port_that_another_gateway_has_is_not_shared(tmp_path):
    async with Many(tmp_path) as many:
        for listen, control in ((many.port, 0), (0, many.control_port)):
            process = await serve(
                "--backend", "http://127.0.0.1:9", "--workers", "2",
                "--listen", f"127.0.0.1:{listen}", "--control", f"127.0.0.1:{control}",
            )  # fmt: skip
            _, log = await process.communicate()
            assert process.returncode == 1
            assert len(log.decode().splitlines()) == 1 and b"ddress already in use" in log


async def test_connections_are_dealt_out(tmp_path):
    async with Many(tmp_path) as many:
        clients = [await many.connect() for _ in range(200)]
        for client in clients:
            assert (await client.ask(post())).status == 200
        counts = [
            sum(link.startswith("socket:") for link in _links(pid))
            for pid in sorted(children(many.process.pid))
        ]
        assert min(counts) > 60, counts


def _links(pid):
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            yield os.readlink(f"{folder}/{name}")
        except FileNotFoundError:
            continue


async def test_every_path_of_a_worker_is_answered_for_all(start):
    bench = await start()
    app = bench.gateway._control.app
    own = set()
    for route in app.router.routes():
        path = route.resource.canonical
        if path == "/turnpike/static":
            path = "/turnpike/static/{file}"
        if route.method != "HEAD":
            own.add((route.method, path))
    told = {(method, path.replace(":.*", "")) for method, path, _ in _ROUTES}
    assert own == told


def test_no_path_is_there_twice():
    assert not [a for a, b in itertools.combinations(_ROUTES, 2) if a[:2] == b[:2]]
