"""Keys: how they come, and what is made of what comes."""

import pytest

from gateway.server.control_access import is_own_host
from gateway.server.tenants import hash_key


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:8081",
        "a.localhost",
        "127.0.0.1:1",
        "[::1]:8081",
        "10.0.0.7",
        "gateway.",
        "gateway:80",
    ],
)
def test_hosts_that_are_our_own(host):
    assert is_own_host(host, {"gateway"})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "gateway.evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8081",
        "[::1",
        "a b",
        ":80",
    ],
)
def test_hosts_that_anybody_may_have_chosen(host):
    assert not is_own_host(host, {"gateway"})


def asked(path: bytes, *, host: bytes, more: bytes = b"", method: bytes = b"GET") -> bytes:
    return b"%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n%s\r\n" % (method, path, host, more)


async def test_a_page_whose_name_was_rebound_reads_and_changes_nothing(start):
    bench = await start(server={"control_hosts": ["gateway.internal"]})
    drain = b"/turnpike/replicas/default-0/drain"
    reads = (
        b"/turnpike/snapshot",
        b"/turnpike/events",
        b"/metrics",
        b"/turnpike/",
        b"/turnpike/static/main.js",
    )
    for method, path in (*((b"GET", path) for path in reads), (b"POST", drain)):
        response = await bench.control(asked(path, host=b"evil.example:8081", method=method))
        assert response.status == 421 and "server.control_hosts" in response.json()["error"], path
    assert [state.is_draining for state in bench.brain.fleet] == [False]
    for host in (b"gateway.internal:8081", b"127.0.0.1", b"localhost:1"):
        assert (await bench.control(asked(b"/turnpike/snapshot", host=host))).status == 200
    assert (await bench.control(asked(b"/turnpike/readyz", host=b"10-0-0-7.pod"))).status == 200


async def test_with_keys_it_is_for_browsers_alone(start):
    bench = await start(server={"control_key_hashes": [hash_key("key")]})
    key = b"Authorization: Bearer key\r\n"
    assert (await bench.control(asked(b"/metrics", host=b"any.name", more=key))).status == 200
    for browser in (b"Sec-Fetch-Site: same-origin\r\n", b"Origin: http://any.name\r\n"):
        assert (await bench.control(asked(b"/metrics", host=b"any.name", more=key + browser))).status == 421
