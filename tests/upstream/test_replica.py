"""Addresses, and what a version says."""

import pytest

from gateway.domain.fleet import Abilities
from gateway.upstream.health import vllm_abilities
from gateway.upstream.replica import Address


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "prefix", "is_tls"),
    [
        ("http://gpu:8000", "gpu", 8000, b"gpu:8000", b"", False),
        ("http://gpu/", "gpu", 80, b"gpu", b"", False),
        ("https://gpu/a/b/", "gpu", 443, b"gpu", b"/a/b", True),
        ("http://[::1]:9", "::1", 9, b"[::1]:9", b"", False),
    ],
)
def test_a_url_is_an_address(url, host, port, authority, prefix, is_tls):
    address = Address.parse(url)
    assert (address.host, address.port, address.authority) == (host, port, authority)
    assert (address.prefix, address.is_tls) == (prefix, is_tls)


@pytest.mark.parametrize(
    "url", ["ftp://gpu", "http://", "http://u:p@gpu", "http://gpu?x=1", "http://gpu#x", "http://gpu:99999"]
)
def test_what_is_no_address(url):
    with pytest.raises(ValueError, match=r"gpu|http://|[Pp]ort"):
        Address.parse(url)


def test_an_old_vllm_is_told_nothing_that_it_does_not_read():
    assert vllm_abilities("0.28.1rc2") == Abilities(
        engine="vllm", version="0.28.1rc2", session_header=True, cache_salt=True
    )
    assert vllm_abilities("0.9.0") == Abilities(
        engine="vllm", version="0.9.0", session_header=False, cache_salt=True
    )
    assert vllm_abilities("dev").session_header is False
    assert len(vllm_abilities("1" * 1000).version or "") == 64
