"""The listeners' settings."""

import msgspec
import pytest

from gateway.config.server import ServerConfig, is_loopback, split_listen


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("localhost:0", "localhost", 0), ("[::1]:65535", "::1", 65535)],
)
def test_addresses(listen, host, port):
    assert msgspec.convert({"listen": listen}, ServerConfig).listen == listen
    assert split_listen(listen) == (host, port)


@pytest.mark.parametrize("listen", ["127.0.0.1", ":80", "::1:80", "a b:80", "a:80\n", "a:http", "a:65536"])
def test_what_is_no_address(listen):
    for key in ("listen", "control"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({key: listen}, ServerConfig)


def test_loopback():
    assert all(is_loopback(listen) for listen in ("127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"))
    assert not any(is_loopback(listen) for listen in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "gpu-7:1"))


def test_certificate_and_key_go_together():
    for given in ({"tls_certificate": "c"}, {"tls_key": "k"}):
        with pytest.raises(msgspec.ValidationError, match="go together"):
            msgspec.convert(given, ServerConfig)
    msgspec.convert({"tls_certificate": "c", "tls_key": "k"}, ServerConfig)
