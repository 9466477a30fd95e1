"""Addresses in another form than they have to have: what is written instead."""

import pytest

from gateway.config.addresses import check_url, meant_listen, meant_url
from gateway.config.load import ConfigError, load_config
from gateway.config.server import listen_of
from gateway.upstream.replica import Address


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("8095", "127.0.0.1:8095"),
        (":8095", "127.0.0.1:8095"),
        ("http://127.0.0.1:8095", "127.0.0.1:8095"),
        ("https://gpu-7:443/", "gpu-7:443"),
        ("http://[::1]:9", "[::1]:9"),
        ("localhost", None),
        ("a b:1", None),
        ("http://u:pw@h:1", None),
        ("123456", None),
        ("", None),
    ],
)
def test_where_to_listen(given, instead):
    assert meant_listen(given) == (f"; write {instead}" if instead else "")
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        listen_of("--listen", given)
    if instead is not None:
        assert listen_of("--listen", instead)


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("gpu-7", "http://gpu-7"),
        ("8000", "http://127.0.0.1:8000"),
        ("[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("user:secret@gpu-7:8000", None),
        ("ftp://gpu-7", None),
        ("", None),
    ],
)
def test_where_a_server_is(given, instead):
    assert meant_url(given) == (f"; write {instead}" if instead else "")
    with pytest.raises(ValueError, match="is a URL, not"):
        check_url("--control", given)
    with pytest.raises(ValueError, match="is not a URL such as") as raised:
        Address.parse(given)
    assert "secret" not in str(raised.value)
    if instead is not None:
        assert instead in str(raised.value)
        check_url("--control", instead)
        Address.parse(instead)


URL = "http://b"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"server.listen": "8095", "url": URL}, "server.listen: .*HOST:PORT; write 127.0.0.1:8095$"),
        ({"server.control": "8096", "url": URL}, "server.control: .*HOST:PORT; write 127.0.0.1:8096$"),
        ({"server.listen": 8095, "url": URL}, "server.listen: .*HOST:PORT; write 127.0.0.1:8095$"),
        ({"url": "localhost:8000"}, r"pools\[0\].replicas\[0\].url: .*; write http://localhost:8000$"),
        ({"shared.url": "localhost:6379", "url": URL}, "shared.url: .*redis://((?!write).)*$"),
        ({"url": "me:secret@host"}, "url: ((?!secret).)*$"),
    ],
)
def test_the_settings_say_it(flags, said):
    given = {**flags, "pools": [{"replicas": [{"url": flags.pop("url")}]}]}
    del given["url"]
    with pytest.raises(ConfigError, match=f"(?s)^command line: .*{said}"):
        load_config(None, {}, given)
