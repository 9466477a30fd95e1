"""Stored responses on two real replicas: a request goes where the state lives, and to nobody else's."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.server.tenants import hash_key
from tests.engines import MODEL, Fleet
from tests.gateways import running_gateway
from tests.transparency import exchange
from tests.transparency.conftest import SCRIPTS
from tests.transparency.exchange import Message

pytestmark = pytest.mark.engine

OURS, THEIRS = "a-key-of-ours", "a-key-of-theirs"
REQUEST = {"model": MODEL, "input": "Please begin. [[script:talk]]"}


@pytest.fixture(scope="module")
def port(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    fleet.play(SCRIPTS)
    tenants = "".join(
        f'[[tenants]]\nname = "{name}"\nkey_hashes = ["{hash_key(key)}"]\n'
        for name, key in (("ours", OURS), ("theirs", THEIRS))
    )
    directory = tmp_path_factory.mktemp("stored") / "gateway"
    with running_gateway([e.url for e in fleet.scripted], directory, more_settings=tenants) as port:
        yield port


def _ask(port: int, method: str, path: str, body: Any = None, key: str | None = OURS) -> Message:
    headers = [("Content-Type", "application/json")]
    if key is not None:
        headers.append(("Authorization", f"Bearer {key}"))
    payload = b"" if body is None else json.dumps(body).encode()
    return exchange.parse(exchange.send(port, exchange.request(method, path, headers, payload)))


def _status(message: Message) -> int:
    return int(message.start_line.split()[1])


def _replica(message: Message) -> bytes:
    return dict(message.headers)[b"x-turnpike-replica"]


def _store(port: int, more: dict[str, Any] | None = None) -> tuple[str, bytes]:
    """A stored response: its id, and the replica that holds it."""
    answer = _ask(port, "POST", "/v1/responses", REQUEST | (more or {}))
    assert _status(answer) == 200
    return json.loads(answer.body)["id"], _replica(answer)


def test_a_chain_stays_on_the_replica_that_holds_it(port: int) -> None:
    with ThreadPoolExecutor(8) as crowd:
        chains = list(crowd.map(lambda _: _store(port), range(8)))
    assert {replica for _, replica in chains} == {b"default-0", b"default-1"}, "a crowd is spread"
    for first_id, replica in chains:
        response_id = first_id
        for _ in range(3):
            more = {"previous_response_id": response_id, "input": "Go on."}
            answer = _ask(port, "POST", "/v1/responses", REQUEST | more)
            assert _status(answer) == 200, answer.body
            assert _replica(answer) == replica
            assert dict(answer.headers)[b"x-turnpike-source"] == b"state-id"
            response_id = json.loads(answer.body)["id"]


def test_a_streamed_response_can_be_continued(port: int) -> None:
    answer = _ask(port, "POST", "/v1/responses", REQUEST | {"stream": True})
    created = json.loads(answer.body.partition(b"data: ")[2].partition(b"\n")[0])
    more = {"previous_response_id": created["response"]["id"], "input": "Go on."}
    continued = _ask(port, "POST", "/v1/responses", REQUEST | more)
    assert _status(continued) == 200, continued.body
    assert _replica(continued) == _replica(answer)


def test_a_stored_response_is_read_from_its_replica(port: int) -> None:
    for response_id, replica in [_store(port) for _ in range(4)]:
        answer = _ask(port, "GET", f"/v1/responses/{response_id}")
        assert (_status(answer), _replica(answer)) == (200, replica)
        assert json.loads(answer.body)["id"] == response_id


def test_a_background_response_is_polled_and_cancelled_where_it_runs(port: int) -> None:
    for _ in range(2):
        response_id, replica = _store(port, {"background": True})
        deadline = time.monotonic() + 60
        while True:
            polled = _ask(port, "GET", f"/v1/responses/{response_id}")
            assert (_status(polled), _replica(polled)) == (200, replica)
            status = json.loads(polled.body)["status"]
            if status not in ("queued", "in_progress"):
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert status == "completed"
        cancelled = _ask(port, "POST", f"/v1/responses/{response_id}/cancel")
        assert _replica(cancelled) == replica
        assert b"Cannot cancel" in cancelled.body, "the replica knows the response, and that it is over"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/responses/{id}", None),
        ("DELETE", "/v1/responses/{id}", None),
        ("POST", "/v1/responses/{id}/cancel", None),
        ("POST", "/v1/responses", REQUEST | {"previous_response_id": "{id}"}),
    ],
)
def test_another_tenants_response_is_not_found(
    port: int, fleet: Fleet, method: str, path: str, body: Any
) -> None:
    """And it looks like one that does not exist: the answer is vLLM's own, but for the id."""
    response_id, _ = _store(port)
    template = json.dumps([path, body])

    def ask_for(an_id: str, at: int, key: str | None) -> Message:
        its_path, its_body = json.loads(template.replace("{id}", an_id))
        return _ask(at, method, its_path, its_body, key)

    theirs = ask_for(response_id, port, THEIRS)
    assert _status(theirs) == 404
    assert b"x-turnpike-replica" not in dict(theirs.headers), "no replica was asked"
    unknown = ask_for("resp_0123456789abcdef", port, THEIRS)
    assert exchange.without_ids_and_times(unknown.body) == exchange.without_ids_and_times(theirs.body)
    if method != "DELETE":  # which vLLM does not serve
        own = ask_for("resp_0123456789abcdef", fleet.scripted[0].port, None)
        assert _status(own) == 404
        assert own.body == unknown.body
        assert _status(ask_for(response_id, port, OURS)) != 404
