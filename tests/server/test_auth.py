"""Who may. Keys that were given stay between the client and the gateway."""

import asyncio

import pytest

from gateway.server.auth.client_keys import hash_key
from gateway.server.proxy.send import UpstreamSender
from tests.server.bench import DELTA, STREAM_HEAD, Exchange, bearer, chunk, get, post, sends

ALICE, BOB, OPS, BACKEND_KEY, CONTROL_KEY = (
    "tp-alice-secret",
    "tp-bob-sécret",
    "tp-ops-secret",
    "sk-backend-secret",
    "tp-control-secret",
)
TENANTS = [
    {"name": "alice", "key_hashes": [hash_key(ALICE), hash_key(ALICE + "-new")]},
    {"name": "bob", "key_hashes": [hash_key(BOB)]},
    {"name": "ops", "key_hashes": [hash_key(OPS)], "permissions": ["engine-control"]},
]
POOL = [{"backends": 1, "replica": {"api_key_env": "BACKEND_KEY"}}]
ENVIRON = {"BACKEND_KEY": BACKEND_KEY}


def api_key(key: str) -> bytes:
    return b"X-Api-Key: %s\r\n" % key.encode()


@pytest.mark.parametrize(
    "headers",
    [
        bearer(ALICE),
        api_key(ALICE),
        bearer(ALICE) + api_key(ALICE),
        bearer(ALICE) + api_key(ALICE + "-new"),
        bearer(BOB),
        b"authorization:   bearer   %s  \r\n" % ALICE.encode(),
        b"api-key: %s\r\n" % ALICE.encode(),
    ],
)
async def test_a_key_opens(start, headers):
    bench = await start(tenants=TENANTS, pools=POOL, environ=ENVIRON)
    assert (await bench.ask(post(headers=headers))).status == 200
    seen = bench.backend.seen[0]
    assert seen.all(b"authorization") == [b"Bearer " + BACKEND_KEY.encode()]
    assert b"tp-" not in seen.head and not seen.all(b"x-api-key") and not seen.all(b"api-key")


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        bearer("wrong"),
        api_key("wrong"),
        bearer(""),
        b"Authorization: Basic dHA6\r\n",
        b"Authorization: %s\r\n" % ALICE.encode(),
        bearer(ALICE) + api_key(BOB),
        bearer(ALICE) + api_key("wrong"),
        bearer(ALICE) + bearer(BOB),
        b"X_Api_Key: %s\r\n" % ALICE.encode(),
        bearer(hash_key(ALICE)),
        b"X-Api-Key: \xff\r\n",
    ],
)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages", b"/metrics"])
async def test_no_key_or_two_tenants_keys_are_a_401(start, path, headers):
    bench = await start(tenants=TENANTS)
    response = await bench.ask(post(path=path, headers=headers))
    assert response.status == 401 and response.get(b"www-authenticate") == b"Bearer"
    body = response.json()
    if path == b"/v1/messages":
        assert body["type"] == "error" and body["error"]["type"] == "authentication_error"
    else:
        assert body["error"]["code"] == "unauthenticated"
    which = "none was" if headers in (b"", bearer("")) or b"Basic" in headers else ""
    which = "several" if headers.count(b"\r\n") > 1 else which
    assert which in body["error"]["message"]
    assert not bench.backend.seen


async def test_without_tenants_the_clients_credentials_are_passed_on(start):
    bench = await start()
    await bench.ask(post(headers=b"AUTHORIZATION: Bearer sk-mine\r\nX-Api-Key: mine\r\n"))
    assert bench.backend.seen[0].all(b"authorization") == [b"Bearer sk-mine"]
    assert bench.backend.seen[0].all(b"x-api-key") == [b"mine"]


async def test_without_upstream_key_the_backend_gets_none(start):
    bench = await start(tenants=TENANTS)
    await bench.ask(post(headers=bearer(ALICE)))
    assert bench.backend.seen[0].all(b"authorization") == []


@pytest.mark.parametrize(
    "path", [b"/sleep", b"/metrics", b"/metrics/x", b"/v1/load_lora_adapter", b"/%73leep/", b"/debug"]
)
async def test_control_paths_are_for_the_trusted(start, path):
    bench = await start(tenants=TENANTS)
    response = await bench.ask(post(path=path, headers=bearer(ALICE)))
    assert response.status == 403 and response.json()["error"]["type"] == "permission_error"
    assert not bench.backend.seen
    assert (await bench.ask(post(path=path, headers=bearer(OPS)))).status == 200
    assert bench.backend.seen[0].target == path


async def test_control_paths_are_for_nobody_without_tenants(start):
    bench = await start()
    assert (await bench.ask(post(path=b"/sleep"))).status == 403


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","input":"x","previous_response_id":"resp_alice1","temperature":NaN}',
        '{"model":"m","input":"x","previous_response_id":"resp_alice1"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"model":"m","input":"x","previous_response_id":"resp_alice1"}',
    ],
    ids=["NaN", "UTF-16", "BOM"],
)
async def test_a_body_that_is_not_strict_names_nobodys_response(start, body):
    bench = await start(tenants=TENANTS)
    response = await bench.ask(post(body, b"/v1/responses", bearer(BOB)))
    assert response.status == 404 and not bench.backend.seen
    assert (await bench.ask(post(body[:-1], b"/v1/responses", bearer(BOB)))).status == 400


async def test_nobody_gives_a_response_its_id(start):
    body = b'{"model":"m","input":"x","store":false,"request_id":"resp_alice1"}'
    bench = await start(tenants=TENANTS)
    response = await bench.ask(post(body, b"/v1/responses", bearer(BOB)))
    assert response.status == 403 and "request_id" in response.json()["error"]["message"]
    assert not bench.backend.seen and (await bench.ask(post(body, headers=bearer(BOB)))).status == 200
    assert (await (await start()).ask(post(body, b"/v1/responses"))).status == 200, "there are no others"


async def test_the_control_plane_is_not_on_the_data_listener(start):
    bench = await start(tenants=TENANTS)
    own = (b"/turnpike/snapshot", b"/turnpike/healthz", b"/turnpike/sessions/s-1/finish", b"/metrics")
    for path in own:  # engines have such paths, too: our plugin's, and vLLM's metrics
        assert (await bench.ask(get(path, bearer(ALICE)))).status == 403
    assert not bench.backend.seen


async def test_the_control_plane_answers(start):
    bench = await start()
    client = await bench.connect()
    response = await client.ask(post())
    session = response.get(b"x-turnpike-session")
    assert session
    snapshot = (await bench.control(get(b"/turnpike/snapshot"))).json()
    assert [s["id"] for s in snapshot["sessions"]] == [session.decode()]
    finish = b"POST /turnpike/sessions/%s/finish HTTP/1.1\r\nHost: c\r\nContent-Length: 0\r\n\r\n"
    assert (await bench.control(finish % session)).json()["finished"] is True
    assert (await bench.control(finish % session)).status == 404
    await bench.backend.close()
    while (await bench.control(get(b"/turnpike/readyz"))).status != 503:
        bench.gateway.replica_watch.health.check_now("default-0")
        await asyncio.sleep(0.02)


async def test_keys_appear_nowhere(start, tmp_path, caplog, capfd, monkeypatch):
    caplog.set_level("DEBUG")
    stream = tmp_path / "stream.jsonl"
    bench = await start(
        tenants=TENANTS,
        pools=POOL,
        environ=ENVIRON,
        stream={"path": str(stream)},
        server={"control_key_hashes": [hash_key(CONTROL_KEY)]},
        upstream={"stall_timeout_s": 0.2, "head_timeout_s": 1.0},
    )
    bench.may_log_errors = True
    paths = (b"/v1/chat/completions", b"/v1/messages", b"/sleep", b"//", b"/v1/responses/resp_x")
    keys = (bearer(ALICE), api_key(BOB), bearer(ALICE) + api_key(BOB))
    answers = [await bench.ask(post(path=path, headers=key)) for path in paths for key in keys]
    for script in (sends(b"garbage"), sends(STREAM_HEAD + chunk(DELTA), then="reset"), Exchange.until_left):
        bench.backend.script = script
        client = await bench.send(post(headers=bearer(ALICE)))
        answers.append(await client.receive())

    async def explodes(*_args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(UpstreamSender, "send", explodes)
    response = await bench.ask(post(headers=bearer(ALICE)))
    assert response.status == 500 and response.json()["error"]["code"] == "internal"
    for path in (b"/turnpike/snapshot", b"/metrics"):
        answers.append(await bench.control(get(path, bearer(CONTROL_KEY))))
        answers.append(await bench.control(get(path, bearer(ALICE))))
    await bench.gateway.stop()
    output = "".join(capfd.readouterr()) + caplog.text + repr(caplog.records) + stream.read_text()
    output += "".join(repr(a.head + a.body) for a in answers)
    assert "alice" in output  # the tenant's name may
    for key in (ALICE, BOB, OPS, BACKEND_KEY, CONTROL_KEY):
        assert key not in output and key.encode("utf-8").decode("latin-1") not in output


async def test_nothing_is_held_for_a_client_without_a_key(start):
    """It is turned away on its head: the body of which it has sent a part is thrown away."""
    bench = await start(tenants=TENANTS, limits={"drain_rejected_body_s": 0.2})
    client = await bench.send(post(b"x" * 50_000)[:-10_000])
    assert (await client.receive()).status == 401
    assert bench.gateway.listener.budget.used == 0
    assert not bench.backend.seen
    assert (await bench.ask(post(headers=bearer(ALICE)))).status == 200


async def test_a_refused_head_request_gets_no_body(start):
    bench = await start(tenants=TENANTS, limits={"drain_rejected_body_s": 0.1})
    client = await bench.send(b"HEAD / HTTP/1.1\r\nHost: gw\r\n\r\n")
    received, _ = await client.rest()
    assert received.startswith(b"HTTP/1.1 401 ") and received.endswith(b"\r\n\r\n")
