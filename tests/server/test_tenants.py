"""Anonymous tenants: one for each client, as far as addresses tell clients apart."""

import pytest

from gateway.server.tenants import Tenants


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1:2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("not:an:address", "not:an:address", True),
    ],
)
def test_who_has_a_network_is_one_tenant(one, other, is_same):
    tenants = Tenants(())
    assert (tenants.authenticate([], one) == tenants.authenticate([], other)) is is_same
