"""What is asked for in the wrong place: which one was meant; and who may know what is down."""

import pytest

from gateway.server.auth.client_keys import hash_key
from gateway.wire.endpoints import meant
from tests.server.bench import answer, bearer, eventually, get, post, sends

VLLM = b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}'
NO_PATHS = [
    b'{"detail":"Not Found"}',
    b"404: Not Found",
    b"404 page not found",
    VLLM,
    b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
    b"",
    b"<html><body>nginx</body></html>",
]


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/v1/v1/messages", "/v1/messages"),
        ("POST", "/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("POST", "/messages/", "/v1/messages"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/v1/v1/models/m", "/v1/models/m"),
        ("GET", "/responses/resp_1", "/v1/responses/resp_1"),
        ("POST", "/score", None),  # a path of its own
        ("POST", "/v1/chat/completions", None),
        ("GET", "/v1/responses/v1", None),
        ("GET", "/health", None),
        ("GET", "/", None),
        ("GET", "/v1", None),
        ("POST", "/v1/nothing", None),
        ("GET", "/v1/v1", None),
        ("POST", "/v1/v1/sleep", None),
        ("POST", "/v12/messages", None),
        ("POST", "/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("POST", "/v1/responses/resp_1/x", None),
    ],
)
def test_which_path_was_meant(method, path, instead):
    assert meant(method, path) == instead


@pytest.mark.parametrize("body", NO_PATHS)
async def test_a_base_url_with_too_much_or_too_little_is_told_so(start, body):
    bench = await start(script=sends(answer(body, status=b"404 Not Found")))
    response = await bench.ask(post(path=b"/chat/completions"))
    error = response.json()["error"]
    assert response.status == 404 and error["code"] == "unknown_path"
    assert "Did you mean /v1/chat/completions? The base URL lacks /v1." in error["message"]
    response = await bench.ask(post(path=b"/v1/v1/messages"))
    said = response.json()
    assert response.status == 404 and said["type"] == "error", "in Anthropic's form"
    assert said["error"]["type"] == "not_found_error" and "a /v1 too many" in said["error"]["message"]
    response = await bench.ask(post(path=b"/v1/chat/completions/chat/completions"))
    assert "The base URL goes on behind /v1." in response.json()["error"]["message"]
    assert response.get(b"x-turnpike-replica") is not None
    response = await bench.ask(post())
    assert response.body == body, "what is asked for in the right place is the backend's to answer"


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}',
        b'{"error":"model \'x\' not found, try pulling it first"}',
        b'{"detail":"Response with id \'not found\' not found."}',
        b'{"detail":"Model not found"}',
        b'{"error":"model not found"}',
        b'{"error":{"message":"Model not found."}}',
        b"Conversation not found",
    ],
)
async def test_a_backend_that_knows_the_path_is_believed(start, body):
    bench = await start(script=sends(answer(body, status=b"404 Not Found")))
    response = await bench.ask(post(path=b"/chat/completions"))
    assert (response.status, response.body) == (404, body)
    bench.backend.script = sends(answer(b"{}"))
    assert (await bench.ask(post(path=b"/chat/completions"))).body == b"{}", "llama.cpp has it"


async def test_an_error_that_breaks_off_costs_nobody_else(start):
    broken = b"HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\nfirst"
    bench = await start(script=sends(broken, then="close"))
    response = await bench.ask(post(path=b"/v1/v1/completions"))
    assert response.status == 502
    bench.backend.script = sends(answer(b"{}"))
    assert (await bench.ask(post())).status == 200


async def test_the_control_port_says_what_is_where(start):
    bench = await start()
    response = await bench.control(get(b"/"))
    assert (response.status, response.get(b"location")) == (302, b"/turnpike/")
    for path, said in (
        (b"/dashboard", "the dashboard is at /turnpike/"),
        (b"/turnpike/history/s-1", "did you mean /turnpike/history?"),
        (b"/turnpike/session/8f3a1c9e-4d21-4b6e-9c55-0a1b2c3d4e5f", "did you mean /turnpike/sessions/{id}?"),
        (b"/turnpike/snapshots", "did you mean /turnpike/snapshot?"),
        (b"/turnpike/metrics", "did you mean /metrics?"),
        (b"/snapshot", "did you mean /turnpike/snapshot?"),
        (b"/turnpike/readyz/", "did you mean /turnpike/readyz?"),
        (b"/" + b"x/" * 2000, "/turnpike/"),
        (b"/v1/chat/completions", "`server.listen`"),
    ):
        response = await bench.control(get(path))
        assert response.status == 404 and said in response.json()["error"]
    response = await bench.control(post(path=b"/turnpike/snapshot"))
    assert (response.status, response.get(b"allow")) == (405, b"GET,HEAD")
    assert response.json() == {"error": "POST is not for this path, but GET,HEAD"}
    for path in (b"/turnpike/turns/s-1", b"/turnpike/sessions/r-1"):
        assert "unknown or expired id" in (await bench.control(get(path))).json()["error"]
    snapshot = await bench.control(get(b"/turnpike/snapshot?sessions=0"))
    assert "listen" in snapshot.json()


async def test_the_agents_port_says_where_the_dashboard_is(start):
    bench = await start()
    for path in (b"/turnpike/", b"/metrics"):
        response = await bench.ask(get(path))
        assert response.status == 403 and "`server.control`" in response.json()["error"]["message"]
    sleep = (await bench.ask(post(path=b"/sleep"))).json()["error"]["message"]
    assert "controls the engine" in sleep and "server.control" not in sleep


@pytest.mark.parametrize(
    ("settings", "tells"),
    [
        ({}, True),
        ({"tenants": [{"name": "a", "key_hashes": [hash_key("k")]}]}, False),
        ({"server": {"trusted_proxies": ["127.0.0.0/8"]}}, False),
        ({"server": {"listen": "0.0.0.0:0", "allow_public_without_keys": True}}, False),
    ],
)
async def test_why_nobody_answers_is_told_to_who_may_know(start, settings, tells):
    bench = await start(upstream={"health_period_s": 0.05}, **settings)
    await bench.backend.close()
    await eventually(lambda: not any(state.is_up for state in bench.brain.fleet))
    response = await bench.ask(post(headers=bearer("k")))
    assert response.status == 503 and response.json()["error"]["code"] == "no_replica"
    message = response.json()["error"]["message"]
    assert ("default-0: " in message and "refused" in message) is tells, message
    assert ("/turnpike/readyz" in message) is not tells
