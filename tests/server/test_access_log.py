"""The access log; and what an operator sees of certificates, of files read again, of the store."""

import asyncio
import json
import logging
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from gateway.config.load import ConfigError, load_config
from gateway.config.tenants import StoredKey
from gateway.server.admin.certificate_expiry import CertificateExpiry
from gateway.server.auth.client_keys import hash_key
from gateway.server.http import access_log
from gateway.server.runtime import workers
from tests.server.bench import CHAT, Exchange, answer, bearer, eventually, get, listing, pauses, post, sends
from tests.server.test_failures import BEGINS, metrics_of
from tests.server.test_reload import reload, tenant
from tests.server.test_several_gateways import SECRET
from tests.server.test_usage import STREAMED, usage

KEY = "tp-team-a-secret"
AGENT = b"User-Agent: OpenAI/Python 1.0\r\n"


def asks(text: bytes = b"hi") -> bytes:
    return post(CHAT.replace(b"hi", text), headers=AGENT + bearer(KEY))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def wait_for(path: Path, count: int) -> list[dict[str, Any]]:
    await eventually(lambda: len(lines(path)) >= count, "the lines never came")
    assert len(lines(path)) == count
    return lines(path)


async def begin(start: Any, path: Path | str, **settings: Any) -> Any:
    return await start(tenants=[tenant("a", KEY)], server={"access_log": str(path)}, **settings)


async def test_a_good_request_has_one_line_with_all_that_is_known_of_it(start, tmp_path):
    path = tmp_path / "access.log"
    bench = await begin(start, path, script=sends(STREAMED))
    asked = post(CHAT.replace(b"{", b'{"stream":true,', 1), headers=AGENT + bearer(KEY))
    client = await bench.connect()
    head = await client.ask(asked := asked.replace(b" HTTP", b"?key=hidden HTTP", 1))
    (line,) = await wait_for(path, 1)
    times = [line.pop(name) for name in ("waited_ms", "ttft_ms", "duration_ms")]
    assert 0.0 == times[0] < times[1] <= times[2] < 10_000 and line.pop("time").endswith("Z")
    ids = [line.pop(name).encode() for name in ("turn", "session", "replica")]
    assert ids == [head.get(b"x-turnpike-" + name) for name in (b"request", b"session", b"replica")]
    assert line.pop("bytes_out") > len(head.head) + len(head.body)
    assert line == {
        "tenant": "a", "client": "OpenAI/Python", "method": "POST", "endpoint": "/v1/chat/completions",
        "model": "m", "status": 200, "outcome": "finished", "reason": None, "prompt_tokens": 100,
        "cached_tokens": 40, "output_tokens": 20, "bytes_in": len(asked), "is_streamed": True,
    }  # fmt: skip
    bench.backend.script = sends(answer(b'{"error":{"code":500}}'))
    response = await client.ask(asks())  # on the same connection
    _, line = await wait_for(path, 2)
    assert (line["status"], line["outcome"], line["is_streamed"]) == (200, "error", False)
    assert (line["bytes_in"], line["bytes_out"]) == (len(asks()), len(response.head) + len(response.body))
    text = path.read_text()
    assert not [each for each in ("hello", '"hi', "hidden", KEY, hash_key(KEY)[7:]) if each in text]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_request_lasts_as_long_as_its_first_token_took_and_to_the_microsecond(start, tmp_path):
    path = tmp_path / "access.log"
    bench = await begin(start, path)
    client = await bench.connect()
    for _ in range(20):
        await client.ask(asks())
    times = [(line["ttft_ms"], line["duration_ms"]) for line in await wait_for(path, 20)]
    assert all(first_ms <= whole_ms for first_ms, whole_ms in times)
    assert any(whole_ms % 1.0 for _, whole_ms in times), "the event loop's own clock has milliseconds"


async def test_what_is_refused_has_a_line_that_says_why(start, tmp_path):
    path = tmp_path / "access.log"
    pools = [{"name": name, "backends": 1, "listing": listing(name)} for name in "mn"]
    bench = await begin(start, path, limits={"max_body_bytes": 1000}, pools=pools)
    client = await bench.connect()
    assert (await client.ask(get(b"/v1/models", bearer(KEY)))).status == 200
    for asked in (post(headers=AGENT), get(b"/x/../y"), b"NO HTTP\r\n\r\n", asks(b"x" * 2000)):
        assert (await bench.ask(asked)).status >= 400
    client.send(post(b"x" * 2000))  # of nobody, where somebody was
    await client.rest()
    assert (await bench.ask(asks().replace(b'"m"', b'"?"'))).status == 404
    assert (await bench.ask(get(b"/v1/models/" + b"m" * 300, bearer(KEY)))).status == 404
    names = ("status", "reason", "tenant", "client", "method", "endpoint", "model")
    chat = "POST", "/v1/chat/completions"
    assert [tuple(line[name] for name in names) for line in await wait_for(path, 8)] == [
        (200, None, "a", "", "GET", "/v1/models/{any}", None),
        (401, "unauthenticated", None, "OpenAI/Python", *chat, None),
        (400, "malformed_http", None, "", "GET", "other", None),
        (400, "malformed_http", None, "", "", "", None),
        (413, "body_too_large", "a", "OpenAI/Python", *chat, None),
        (413, "body_too_large", None, "", *chat, None),
        (404, "unknown_model", "a", "OpenAI/Python", *chat, "?"),
        (404, "unknown_model", "a", "", "GET", "/v1/models/{any}", "m" * 256),
    ]
    assert [line["outcome"] for line in lines(path)] == ["finished", *["refused"] * 7]
    metrics = await metrics_of(bench)
    for code, count in ((401, 1), (400, 2), (413, 2)):
        assert f'requests_total{{code="{code}",endpoint="",status_class="4xx"}} {count}.0\n' in metrics


async def test_what_is_cut_left_or_has_waited_has_a_line(start, tmp_path):
    path, goes_on = tmp_path / "access.log", asyncio.Event()
    bench = await begin(start, path, admission={"max_running_per_replica": 1})
    bench.backend.script = pauses(b"", goes_on, answer())
    first = await bench.arrive(asks())
    second, gone = await bench.send(asks(b"ho")), await bench.send(asks(b"hu"))
    await eventually(lambda: len(bench.brain.waiting_room) == 2)
    gone.close()
    await asyncio.sleep(0.05)
    goes_on.set()
    assert [(await client.receive()).status for client in (first, second)] == [200, 200]
    bench.backend.script = Exchange.until_left
    (await bench.arrive(asks(b"ha"))).close()
    await wait_for(path, 4)
    bench.backend.script = sends(BEGINS, then="reset")
    assert not (await bench.ask(asks(b"he"))).is_whole
    in_queue, _, waited, left, cut = await wait_for(path, 5)
    assert 40.0 < waited["waited_ms"] <= waited["ttft_ms"] <= waited["duration_ms"]
    told = [(line["status"], line["outcome"], line["replica"] is not None) for line in (in_queue, left, cut)]
    assert told == [(499, "client_left", False), (499, "client_left", True), (200, "cut", True)]
    assert in_queue["session"] and left["ttft_ms"] is None is not cut["ttft_ms"]
    assert [(row["requests"], row["failed"]) for row in await usage(bench)] == [(1, 0), (4, 1)]


async def test_a_pipe_that_nobody_reads_yet_holds_up_neither_start_nor_requests(start, tmp_path, caplog):
    os.mkfifo(path := tmp_path / "pipe")
    bench = await begin(start, path)
    bench.may_log_errors = True
    assert (await bench.ask(asks())).status == 200
    assert "access_log_unwritten" in caplog.text and "nobody reads this pipe" in caplog.text
    with path.open() as pipe:
        line = json.loads(await asyncio.wait_for(asyncio.to_thread(pipe.readline), 5.0))
        assert line["status"] == 200
        await bench.finish()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"server": {"access_log": "/nowhere/a"}}, "server.access_log"),
        ({"server": {"state_path": "/nowhere/a"}}, "server.state_path"),
        ({"stream": {"path": "/nowhere/a"}}, "stream.path"),
        ({"recording": {"path": "/nowhere/a"}}, "recording.path"),
    ],
)
async def test_a_file_that_cannot_be_opened_is_named_by_its_setting(start, settings, key):
    with pytest.raises(ConfigError, match=rf"{key}.*No such file.*/nowhere"):
        await start(**settings)


async def test_what_is_cut_at_the_end_of_a_drain_was_drained_by_us(start, tmp_path):
    bench = await begin(start, path := tmp_path / "access.log", script=sends(BEGINS, then="hang"))
    streaming = await bench.send(asks(b"1"))
    await asyncio.wait_for(streaming.reader.readuntil(b"data"), 5.0)
    bench.backend.script = Exchange.until_left
    await bench.arrive(asks(b"2"))
    await bench.gateway.stop()
    told = {line["status"]: line["outcome"] for line in lines(path)}
    assert set(told.values()) == {"drained"} and len(told) == 2


async def test_a_full_disk_fails_no_request_and_is_told_once(start, caplog):
    bench = await begin(start, "/dev/full")
    bench.may_log_errors = True
    for _ in range(2):
        assert (await bench.ask(asks())).status == 200
        await asyncio.sleep(0.1)  # so that each is written by itself
    assert caplog.text.count("error access_log_unwritten") == 1
    assert "\nturnpike_access_log_dropped_total 2.0\n" in await metrics_of(bench)


async def test_a_file_that_was_moved_is_begun_anew(start, tmp_path, caplog):
    path, moved = tmp_path / "logs" / "access.log", tmp_path / "moved"
    path.parent.mkdir()
    bench = await begin(start, path)
    await bench.ask(asks())
    await wait_for(path, 1)
    path.parent.rename(moved)
    await bench.ask(asks())  # whose line goes where the file is, as none can be begun
    await wait_for(moved / path.name, 2)
    bench.may_log_errors = "access_log_unwritten" in caplog.text
    path.parent.mkdir()
    await reload(bench)
    for _ in range(2):
        await bench.ask(asks())
        await wait_for(path, 1)
        os.truncate(path, 0)  # as `copytruncate` does
    assert len(lines(moved / path.name)) == 2 and stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_to_standard_output_each_line_is_a_write_of_its_own_of_workers_too(monkeypatch):
    out, end = os.pipe2(os.O_DIRECT)  # one write a read
    monkeypatch.setattr(access_log, "_STDOUT", end)
    monkeypatch.setattr(workers, "_CODE", "print('serving\\n1\\n2')")
    settings = {"pools": [{"replicas": [{"url": "http://r"}]}], "server.access_log": "-"}
    parent = workers.Workers(load_config(None, {}, settings), [], count=1, can_reload=False)
    assert await parent._run_one(1) == 0 and parent._access_log is not None
    parent._access_log.close()
    assert [os.read(out, 99) for _ in range(2)] == [b"1\n", b"2\n"]
    os.close(out)
    os.close(end)


DAY_S = 86_400.0


def renew(authority: trustme.CA, files: dict[str, str], *, days: int) -> float:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    own = authority.issue_cert("127.0.0.1", not_before=end - timedelta(days=400), not_after=end)
    own.private_key_pem.write_to_path(files["tls_key"])
    own.cert_chain_pems[0].write_to_path(files["tls_certificate"])
    return end.timestamp()


async def expires(bench: Any) -> float:
    metrics = (await metrics_of(bench)).splitlines()
    (line,) = [each for each in metrics if each.startswith("turnpike_certificate")]
    name, value = line.rsplit(" ", 1)
    assert name == 'turnpike_certificate_expires_seconds{setting="server.tls_certificate"}'
    return float(value)


@pytest.mark.parametrize(("days", "word"), [(13, "expires"), (-1, "expired")])
async def test_the_end_of_its_own_certificate_is_told_and_a_renewed_one_is(
    start, tls, certificates, caplog, days, word
):
    authority, (server, trust) = certificates[0], tls
    end = renew(authority, server, days=days)
    bench = await start(server=server)
    await eventually(lambda: f"server.tls_certificate {word} at" in caplog.text)
    assert await expires(bench) == end
    (failing,) = (await bench.control(get(b"/turnpike/readyz"))).json()["failing"]
    assert failing.startswith(f"server.tls_certificate {word} at")
    caplog.clear()
    end = renew(authority, server, days=90)
    assert await expires(bench) != end, "what is shown is the old one until it is read again"
    told = {each["key"]: each["after"] for each in (await reload(bench))["changes"]}
    assert told == dict.fromkeys(("server.tls_certificate", "server.tls_key"), "read anew")
    assert await expires(bench) == end and (await reload(bench))["changes"] == []
    client = await bench.connect(ssl=trust)
    assert (await client.ask(post())).status == 200
    assert "certificate_expires" not in caplog.text


def test_it_is_logged_once_a_day_from_two_weeks_before_the_end(caplog):
    caplog.set_level(logging.WARNING)
    ends = CertificateExpiry({"picker.tls_certificate": 20 * DAY_S})
    for quarter in range(4 * 22):
        ends.warn(now=quarter * DAY_S / 4)
    assert caplog.text.count("certificate_expires") == 15
    assert "expired" in caplog.records[-1].getMessage()


async def test_a_key_file_that_was_read_anew_is_named(start, tmp_path):
    (file := Path(tmp_path / "key")).write_text("old")
    bench = await start()
    replica = bench.settings["pools"][0]["replicas"][0]
    replica["api_key_file"] = str(file)
    key = "pools[default].replicas[default-0].api_key_file"
    assert {each["key"] for each in (await reload(bench))["changes"]} == {key}
    file.write_text("new")
    (told,) = (await reload(bench))["changes"]
    assert told["key"] == key and told["after"] == "read anew"


async def test_a_store_that_is_down_is_seen(start, redis):
    bench = await start(fleet_secret=SECRET, shared={"url": f"{redis.url}/0", "deadline_ms": 1000})
    await eventually(lambda: bench.gateway._peers.store.is_up)
    assert "\nturnpike_store_up 1.0\n" in await metrics_of(bench)
    redis.kill()
    try:
        await the_store_is_seen_to_be_down(bench)
    finally:
        redis.start()


async def the_store_is_seen_to_be_down(bench: Any) -> None:
    await eventually(lambda: not bench.gateway._peers.store.is_up, "the store is still up")
    assert "\nturnpike_store_up 0.0\n" in await metrics_of(bench)
    ready = await bench.control(get(b"/turnpike/readyz"))
    assert ready.status == 200 and ready.json()["failing"] == ["the shared store"]
    assert (await bench.control(get(b"/turnpike/snapshot"))).json()["store_down"] is True
    assert (await bench.ask(post())).status == 200


async def test_where_no_key_counts_the_operator_sees_it(start, tmp_path):
    (file := Path(tmp_path / "keys")).touch(0o600)
    bench = await start(server={"keys_path": str(file)}, tenants=[{"name": "default"}])
    assert (await bench.ask(post(headers=bearer("any")))).status == 401
    (failing,) = (await bench.control(get(b"/turnpike/snapshot"))).json()["failing"]
    assert "no client key is valid" in failing
    key = StoredKey(name="a", tenant="default", hash=hash_key("any"), created=datetime.now(UTC))
    file.write_bytes(msgspec.json.encode(key) + b"\n")
    await eventually(lambda: not bench.gateway._client_keys.has_no_key)
    assert (await bench.control(get(b"/turnpike/readyz"))).json()["failing"] == []


async def test_without_a_store_none_is_told_of(start):
    bench = await start()
    assert "turnpike_store_up" not in await metrics_of(bench)
    assert (await bench.control(get(b"/turnpike/snapshot?sessions=0"))).json()["store_down"] is False
