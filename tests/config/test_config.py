"""The settings as a whole: what must not be there twice, who may listen where."""

import re
from pathlib import Path

import msgspec
import pytest

from gateway.config import Config

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
        ({"bounds": [{"name": "b", "of": "session", "turns": 3}]}, "bounds"),
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
    with pytest.raises(msgspec.ValidationError, match=rf"relay knows no sessions, and {needy} needs them"):
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
