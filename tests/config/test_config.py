"""The settings, part by part and as a whole: what must not be there twice, who may listen where."""

import re
from pathlib import Path

import msgspec
import pytest

from gateway.config import Config
from gateway.config.addresses import check_url, meant_listen, meant_url
from gateway.config.load import ConfigError, load_config
from gateway.config.profiles import load_profile
from gateway.config.server import ServerConfig, is_loopback, listen_of, split_listen
from gateway.config.upstream import PoolConfig, ReplicaConfig
from gateway.cost.profile import Engine, ProfileError
from gateway.upstream.replica import Address

KEY = "sha256:" + "a" * 64
OTHER_KEY = "sha256:" + "b" * 64
POOL = {"replicas": [{"url": "http://a:8000"}]}


def config(**sections) -> Config:
    return msgspec.convert({"pools": [POOL], **sections}, Config)


def tenant(name: str, key: str) -> dict:
    return {"name": name, "key_hashes": [key]}


def test_one_backend_is_enough():
    assert config().pools[0].names() == ["default-0"]


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"pools": []}, "at least one backend"),
        ({"pools": [POOL, {"replicas": [{"url": "http://b:1"}]}]}, "pools: the name 'default'"),
        ({"pools": [POOL, {**POOL, "name": "two"}]}, "the url 'http://a:8000'"),
        ({"pools": [{"replicas": [{"url": "http://a"}, {"url": "http://a/"}]}]}, "the url 'http://a'"),
        (
            {"pools": [{"replicas": [{"url": "http://a", "name": "x"}, {"url": "http://b", "name": "x"}]}]},
            "pools.replicas: the name 'x'",
        ),
        (
            {"pools": [{"replicas": [{"url": "http://a"}, {"url": "http://b", "name": "default-0"}]}]},
            "pools.replicas: the name 'default-0'",
        ),
        ({"tenants": [tenant("a", KEY), tenant("a", OTHER_KEY)]}, "tenants: the name 'a'"),
        ({"tenants": [tenant("a", KEY), tenant("b", KEY)]}, "tenants: the key"),
        ({"models": [{"name": "a", "fallbacks": ["b"]}] * 2}, "models: the name 'a'"),
    ],
)
def test_nothing_is_there_twice(sections, complaint):
    with pytest.raises(msgspec.ValidationError, match=re.escape(complaint)):
        config(**sections)


def test_the_public_needs_a_key():
    listen, control = {"listen": "0.0.0.0:80"}, {"control": "10.0.0.1:81"}
    with pytest.raises(msgspec.ValidationError, match=r"server\.listen: 0\.0\.0\.0:80 is reachable"):
        config(server=listen)
    with pytest.raises(msgspec.ValidationError, match=r"server\.control: 10\.0\.0\.1:81 is reachable"):
        config(server=control, tenants=[tenant("a", KEY)])
    config(server=listen, tenants=[tenant("a", KEY)])
    config(server={**control, "control_key_hashes": [KEY]})
    config(server={**listen, **control, "allow_public_without_keys": True})


@pytest.mark.parametrize(
    ("sections", "needy"),
    [
        ({"server": {"workers": 2}, "shared": {"url": "redis://r"}}, "server.workers"),
        ({"shared": {"url": "redis://r"}}, "shared.url"),
        ({"bounds": [{"name": "b", "scope": "session", "turns": 3}]}, "bounds"),
        ({"tenants": [{**tenant("a", KEY), "quota": {"tokens_per_minute": 9}}]}, "tenants.quota"),
        ({"mcp": [{"name": "m", "url": "http://m"}]}, "mcp"),
        ({"history": {"url": "http://h"}}, "history.url"),
        ({"otel": {"endpoint": "http://o:4318"}}, "otel.endpoint"),
        ({"prefill_ahead": {"enabled": True}}, "prefill_ahead.enabled"),
        ({"pools": [{**POOL, "transfer": "nixl"}]}, "pools.transfer"),
    ],
)
def test_a_relay_is_asked_for_nothing_that_it_cannot_do(sections, needy):
    config(**sections)
    with pytest.raises(msgspec.ValidationError, match=rf"a relay has no sessions; remove {needy}"):
        config(**sections | {"server": {**sections.get("server", {}), "mode": "relay"}})
    config(server={"mode": "relay"}, tenants=[{**tenant("a", KEY), "quota": {"weight": 2}}])


def test_what_is_said_needs_traces_to_be_said_in():
    with pytest.raises(msgspec.ValidationError, match=r"otel\.content: there is no otel\.endpoint"):
        config(otel={"content": True})
    assert config(otel={"content": True, "endpoint": "http://o:4318"}).otel.content_bytes == 65_536


def test_the_settings_of_the_containers_can_be_read():
    from gateway.config.load import load_config

    path = Path(__file__).resolve().parents[2] / "docker" / "turnpike.toml"
    flags = {"server.allow_public_without_keys": True}
    assert len(load_config(str(path), {}, flags).pools[0].replicas) == 2


def test_a_shared_store_is_named_by_its_url():
    shared = config(shared={"url": "rediss+cluster://user@redis:6379", "password_env": "SECRET"}).shared
    assert shared.deadline_ms == 20
    tls = dict.fromkeys(("peer_tls_certificate", "peer_tls_key", "peer_tls_ca"), "a.pem")
    public = {"peer_listen": "0.0.0.0:1"}
    for wrong in (
        {"url": "http://redis"}, {"deadline_ms": 0}, {"deadline_ms": 5000},
        {"secret_file": "a", "secret_env": "B"}, {"peer_tls_ca": "a.pem"}, public,
        {"peer_url": "https://a:1"}, {**tls, "peer_url": "http://a:1"},
    ):  # fmt: skip
        with pytest.raises(msgspec.ValidationError):
            config(shared=wrong)
    for right in (tls | public, public | {"peer_plaintext_networks": ["10.0.0.0/8"]}):
        config(shared=right)


def test_a_price_needs_to_be_worth_something():
    pool = {"replicas": [{"url": "http://a"}, {"url": "http://b", "price_per_h": 4.0}]}
    with pytest.raises(msgspec.ValidationError, match=r"pools: default has .* set routing\.price_per_s"):
        config(pools=[pool])
    assert config(pools=[pool], routing={"price_per_s": 0.01}).routing.price_per_s == 0.01
    with pytest.raises(msgspec.ValidationError, match="price_per_s"):
        config(routing={"price_per_s": 0})


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


def test_replicas_without_a_name_are_numbered():
    replicas = [{"url": "http://a"}, {"url": "http://b", "name": "B"}, {"url": "http://c"}]
    assert msgspec.convert({"name": "gpu", "replicas": replicas}, PoolConfig).names() == [
        "gpu-0",
        "B",
        "gpu-2",
    ]


def test_a_key_has_one_source():
    msgspec.convert({"url": "http://a", "api_key_env": "KEY"}, ReplicaConfig)
    with pytest.raises(msgspec.ValidationError, match="only one can be meant"):
        msgspec.convert({"url": "http://a", "api_key_env": "KEY", "api_key_file": "key"}, ReplicaConfig)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "x" * 65])
def test_names_go_into_headers_so_they_are_plain(name):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"url": "http://a", "name": name}, ReplicaConfig)


def test_a_shipped_profile_by_name() -> None:
    profile = load_profile("qwen3-coder-30b-a3b@h200", Engine(compute_efficiency=0.7))
    assert profile.name == "qwen3-coder-30b-a3b@h200" and profile.compute_efficiency == 0.7


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('hardware = "h100"\nmodel = "llama-3-70b"\ntensor_parallel = 4\nkv_capacity_tokens = 5\n')
    profile = load_profile(str(file))
    assert profile.name == "llama-3-70b@4xh100" and profile.kv_tokens == 5


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ProfileError, match=r"nowhere.toml: No such file"):
        load_profile("nowhere.toml")


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('hardware = "h300"')
    with pytest.raises(ProfileError, match=r"mine.toml: there is no hardware named h300"):
        load_profile(str(file))


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
