"""A client behind trusted proxies is told apart; nobody can pass for another one."""

import pytest

from gateway.server.forwarded import TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"])


def client(peer: str, *values: str, name: bytes = b"X-Forwarded-For") -> str:
    return PROXIES.client_of([(name, value.encode("latin-1")) for value in values], peer)


@pytest.mark.parametrize(
    ("peer", "values", "found"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.2.3.4, 203.0.113.9"], "203.0.113.9"),  # the client's own word is left of its address
        ("10.0.0.1", ["1.2.3.4", "203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:DB8::1]:4711"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["10.2.2.2, 10.3.3.3"], "10.2.2.2"),  # all of them trusted: the farthest
        ("10.0.0.1", ["1.2.3.4, nonsense, 10.3.3.3"], "10.3.3.3"),
        ("10.0.0.1", ["x" * 100_000], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("203.0.113.5", ["1.2.3.4"], "203.0.113.5"),  # not trusted: its word does not count
        ("local", ["1.2.3.4"], "local"),
    ],
)
def test_the_first_address_from_the_right_that_is_no_proxys(peer, values, found):
    assert client(peer, *values) == found


def test_forwarded_counts_where_the_other_header_is_not_there():
    value = 'for=1.2.3.4;proto=http, for="[2001:db8::1]:47011";by=10.0.0.2'
    assert client("10.0.0.1", value, name=b"Forwarded") == "2001:db8::1"
    assert client("10.0.0.1", "for=unknown", name=b"forwarded") == "10.0.0.1"


@pytest.mark.parametrize(("second", "found"), [(b"5.6.7.8, 10.0.0.3", "5.6.7.8"), (b"1.2.3.4", "10.0.0.1")])
def test_of_two_headers_that_disagree_the_client_wrote_one(second, found):
    both = [(b"Forwarded", b"for=5.6.7.8"), (b"x-forwarded-for", second)]
    assert PROXIES.client_of(both, "10.0.0.1") == found


def test_a_long_chain_is_not_walked_to_its_end():
    assert client("10.0.0.1", ", ".join(["203.0.113.9", *["10.0.0.2"] * 100])) == "10.0.0.2"


def test_without_trusted_proxies_nothing_counts():
    none = TrustedProxies([])
    assert none.client_of([(b"X-Forwarded-For", b"1.2.3.4")], "10.0.0.1") == "10.0.0.1"


def test_what_is_no_network():
    with pytest.raises(ValueError, match="host bits"):
        TrustedProxies(["10.0.0.1/8"])
