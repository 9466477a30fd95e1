"""What passes through unchanged, and the little that is added."""

import ssl

import pytest
import trustme

from tests.server.bench import CHAT, answer, eventually, get, listing, post, sends


async def test_headers_to_the_client_keep_order_case_and_repetitions(start):
    raw = b"sEt-CoOkIe: a=1\r\nX-Odd:  two  words\r\nSet-Cookie: b=2\r\nDate: then\r\n"
    raw += b"Server: uvicorn\r\nX-Empty:\r\n"
    per_hop = (
        b"Connection: keep-alive, X-Named\r\nX-Named: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\n"
    )
    bench = await start(script=sends(answer(headers=raw + per_hop)))
    response = await bench.ask(post())
    assert [h for h in response.headers if not h[0].startswith(b"x-turnpike")] == [
        (b"Content-Type", b"application/json"),
        (b"sEt-CoOkIe", b"a=1"),
        (b"X-Odd", b"two  words"),
        (b"Set-Cookie", b"b=2"),
        (b"Date", b"then"),
        (b"Server", b"uvicorn"),
        (b"X-Empty", b""),
        (b"Content-Length", b"%d" % len(response.body)),
    ]


async def test_headers_to_the_backend_keep_order_case_and_repetitions(start):
    bench = await start(pools=[{"backends": 1}], hints={"session": False})
    raw = b"uSeR-aGeNt: odd\r\nCookie: a\r\nX-Turnpike-Session: s1\r\nCookie: b\r\n"
    raw += b"anthropic-version: 2023-06-01\r\n"
    per_hop = (
        b"Connection: X-Named\r\nX-Named: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nProxy-Authorization: x\r\n"
    )
    await bench.ask(post(headers=raw + per_hop))
    assert bench.backend.seen[0].headers == [
        (b"Host", b"localhost:%d" % bench.backend.port),
        (b"Content-Type", b"application/json"),
        (b"uSeR-aGeNt", b"odd"),
        (b"Cookie", b"a"),
        (b"Cookie", b"b"),
        (b"anthropic-version", b"2023-06-01"),
        (b"Content-Length", b"%d" % len(CHAT)),
    ]


@pytest.mark.parametrize("version", ["0.30.0", "0.20.0"])
async def test_a_backend_is_told_the_session_only_if_it_reads_it(start, version):
    bench = await start()
    bench.backend.version = b'{"version":"%s"}' % version.encode()
    bench.gateway.replica_watch.health._facts.clear()
    bench.gateway.replica_watch.health.check_now("default-0")
    await eventually(lambda: next(iter(bench.brain.fleet)).facts.abilities.version == version)
    response = await bench.ask(post())
    told = bench.backend.seen[0].get(b"x-session-id")
    assert told == (response.get(b"x-turnpike-session") if version == "0.30.0" else None)
    await bench.ask(post(headers=b"X-Session-ID: mine\r\n"))
    assert bench.backend.seen[1].all(b"x-session-id") == [b"mine"]


@pytest.mark.parametrize("is_on", [True, False])
async def test_receipts(start, is_on):
    bench = await start(server={"debug_headers": is_on})
    response = await bench.ask(post())
    names = [name for name, _ in response.headers if name.startswith(b"x-turnpike-")]
    told = b"request session thread confidence source replica queue-ms reason".split()
    assert names == ([b"x-turnpike-" + name for name in told] if is_on else [])
    if is_on:
        assert response.get(b"x-turnpike-replica") == b"default-0"
        assert response.get(b"x-turnpike-reason") == b"least_loaded"
    light = await bench.ask(get(b"/v1/models"))
    assert light.get(b"x-turnpike-session") is None


async def test_one_pools_models_are_passed_on_byte_for_byte(start):
    odd = b'{ "data" : [ {"id":"m"} ],\n "object":"list", "extra": 1e3 }'
    bench = await start(pools=[{"backends": 1, "listing": odd}], script=sends(answer(odd)))
    assert (await bench.ask(get(b"/v1/models"))).body == odd


async def test_several_pools_are_told_apart_by_model(start):
    pools = [
        {"name": "small", "backends": 1, "listing": listing("tiny", "both")},
        {"name": "large", "backends": 2, "listing": listing("huge", "both")},
    ]
    bench = await start(pools=pools)
    models = await bench.ask(get(b"/v1/models"))
    assert [m["id"] for m in models.json()["data"]] == ["tiny", "both", "huge"]
    head = await bench.ask(b"HEAD /v1/models HTTP/1.1\r\nHost: gw\r\n\r\n")
    assert head.status == 200 and head.body == b""
    for model, pool in (("tiny", b"small"), ("huge", b"large"), ("huge", b"large")):
        response = await bench.ask(post(b'{"model":"%s","messages":[]}' % model.encode()))
        assert response.status == 200 and response.get(b"x-turnpike-replica").startswith(pool)
    assert [len(b.seen) for b in bench.backends] == [1, 1, 1]
    unknown = await bench.ask(post(b'{"model":"none","messages":[]}'))
    assert unknown.status == 404 and unknown.json()["error"]["code"] == "unknown_model"
    unknown = await bench.ask(post(b'{"model":"none","messages":[]}', b"/v1/messages"))
    assert unknown.status == 404 and unknown.json()["error"]["type"] == "not_found_error"


async def test_pools_by_configuration_hide_what_else_their_replicas_serve(start):
    pools = [
        {"name": "a", "backends": 1, "models": ["public"], "listing": listing("public", "hidden")},
        {"name": "b", "backends": 1, "listing": listing("other")},
    ]
    bench = await start(pools=pools)
    assert (await bench.ask(post(b'{"model":"public","messages":[]}'))).status == 200
    assert (await bench.ask(post(b'{"model":"hidden","messages":[]}'))).status == 404


async def test_a_prefix_in_the_backends_url(start):
    bench = await start()
    replica = bench.gateway.replica_watch.replicas["default-0"]
    replica.address = type(replica.address).parse(f"{bench.backend.url}/behind/it/")
    await bench.ask(post())
    assert bench.backend.seen[0].target == b"/behind/it/v1/chat/completions"


async def test_tls_on_both_sides(start, tls, tls_upstream):
    server, trust = tls
    bench = await start(server=server, **tls_upstream)
    client = await bench.connect(ssl=trust)
    for _ in range(2):
        assert (await client.ask(post())).status == 200
    assert bench.backend.connections == 1
    bench.backend.script = sends(answer()[:-4], then="close")
    client.send(post())
    cut = await client.receive()
    assert cut.status == 200 and not cut.is_whole
    plain = await bench.send(post())
    data, _ = await plain.rest()
    assert not data.startswith(b"HTTP/1.1 200")


async def test_a_replica_that_has_another_name_and_asks_for_a_certificate(start, certificates):
    authority, files = certificates
    asks = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files["tls_client_ca"])
    asks.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("engines.internal").configure_cert(asks)
    own = {name: files[name] for name in ("tls_certificate", "tls_key")}
    named = {"ca_file": files["tls_client_ca"], "tls_server_name": "engines.internal"}
    bench = await start(backend_tls=asks, upstream={**own, **named})
    assert (await bench.ask(post())).status == 200


async def test_a_certificate_of_an_unknown_authority_keeps_a_replica_out(start, tls_upstream):
    bench = await start(**tls_upstream)
    trustme.CA().issue_cert("localhost").configure_cert(tls_upstream["backend_tls"])
    for connection in list(bench.gateway.replica_watch.replicas["default-0"]._idle):
        connection.abort()
    assert (await bench.ask(post())).status == 502
    assert not bench.backend.seen


async def test_a_full_disk_under_the_stream_does_not_hurt(start):
    bench = await start(stream={"path": "/dev/full"})
    bench.may_log_errors = True
    for _ in range(3):
        assert (await bench.ask(post())).status == 200
    await eventually(lambda: bench.gateway.telemetry._file.dropped >= 3)
    metrics = (await bench.control(get(b"/metrics"))).body.decode()
    dropped = next(line for line in metrics.splitlines() if line.startswith("turnpike_stream_dropped_total "))
    assert float(dropped.split()[1]) >= 3
