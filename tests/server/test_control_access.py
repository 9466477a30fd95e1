"""Keys: how they come, and what is made of what comes."""

import base64

import pytest

from gateway.server.control_access import _key_of


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer tp-1", "tp-1"),
        ("bearer  tp-1 ", "tp-1"),
        ("Basic " + base64.b64encode(b"me:tp:1").decode(), "tp:1"),
        ("Basic " + base64.b64encode(b":tp-1").decode(), "tp-1"),
        ("Basic " + base64.b64encode(b"no colon").decode(), ""),
        ("Basic \xff", ""),
        ("Basic /w==", ""),
        ("Digest tp-1", ""),
        ("tp-1", ""),
        ("", ""),
    ],
)
def test_a_key_is_found_where_it_may_be(header, key):
    assert _key_of(header) == key
