"""What differs between two settings, and what of it a running gateway takes up."""

import msgspec
import pytest

from gateway.config import Config
from gateway.config.changes import LIVE, Change, changes, is_live
from gateway.config.privacy import fields_of

KEY, OTHER_KEY = "sha256:" + "a" * 64, "sha256:" + "b" * 64
POOL = {"name": "coder", "replicas": [{"url": "http://a:1"}, {"url": "http://b:1"}]}
TEAM = {"name": "team-a", "key_hashes": [KEY]}


def config(**sections) -> Config:
    return msgspec.convert({"pools": [POOL], "tenants": [TEAM], **sections}, Config)


def told(before: dict, after: dict) -> dict[str, bool]:
    found = changes(config(**before), config(**after))
    return {each.key: each.needs_restart for each in found}


def paths(kind: type[msgspec.Struct], above: str = "") -> set[str]:
    found = set()
    for field in fields_of(kind):
        path = f"{above}{field.name}"
        found.add(path)
        inner = [each for each in _types(field.type) if isinstance(each, msgspec.inspect.StructType)]
        for each in inner:
            found |= paths(each.cls, f"{path}.")
    return found


def _types(shape):
    yield shape
    for name in ("type", "types", "item_type"):
        for each in below if isinstance(below := getattr(shape, name, ()), tuple) else (below,):
            yield from _types(each)


def test_nothing_has_changed():
    assert changes(config(), config()) == ()


def test_a_value_is_shown_before_and_after_with_its_key():
    more = {**TEAM, "quota": {"weight": 2.0}}
    (change,) = changes(config(), config(tenants=[more]))
    assert change == Change(
        key="tenants[team-a].quota.weight", before="1.0", after="2.0", needs_restart=False
    )


def test_elements_are_known_by_their_names_not_their_places():
    other = {"name": "team-b", "key_hashes": [OTHER_KEY]}
    assert told({"tenants": [TEAM]}, {"tenants": [other, TEAM]}) == {
        "tenants": False,
        "tenants[team-b].name": False,
        "tenants[team-b].key_hashes": False,
    }


def test_secrets_and_addresses_are_not_shown():
    found = changes(
        config(),
        config(
            tenants=[{**TEAM, "key_hashes": [OTHER_KEY]}], pools=[{**POOL, "replicas": [{"url": "http://c"}]}]
        ),
    )
    hashes = next(each for each in found if each.key == "tenants[team-a].key_hashes")
    assert hashes.before == hashes.after == "(not shown)"
    text = str(found)
    assert KEY not in text and OTHER_KEY not in text
    urls = [(each.before, each.after) for each in found if each.key.endswith(".url")]
    assert ("http://a:1", "http://c") in urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://gpu-7:8000", "http://gpu-7:8000"),
        ("http://gpu-7:8000/", "http://gpu-7:8000"),
        ("https://[fd00::7]:443/tenant-secret?token=x", "https://[fd00::7]:443/…"),
        ("http://user:pa/ss@gpu-7:8000", "(not shown)"),
        ("http://tok@gpu-7", "(not shown)"),
    ],
)
def test_of_a_url_host_and_port_are_shown(url, shown):
    found = changes(config(), config(pools=[{**POOL, "replicas": [{"url": url, "name": "x"}]}]))
    assert shown in [each.after for each in found if each.key.endswith("[x].url")]


def test_where_it_listens_is_shown_and_no_path_of_a_file_is():
    server = {"listen": "[::1]:9", "tls_certificate": "/etc/secret.pem", "tls_key": "c:8"}
    hints = {"cache_salt_secret": "looks-like-a-host:8000"}
    found = {each.key: each.after for each in changes(config(), config(server=server, hints=hints))}
    hidden = ("server.tls_certificate", "server.tls_key", "hints.cache_salt_secret")
    assert [found[key] for key in hidden] == ["(not shown)"] * 3
    assert found["server.listen"] == "[::1]:9"


@pytest.mark.parametrize(
    ("section", "changed", "needs_restart"),
    [
        ("server", {"listen": "127.0.0.1:9"}, True),
        ("server", {"control": "127.0.0.1:9"}, True),
        ("server", {"reuse_port": True}, True),
        ("server", {"receipts": False}, False),
        ("server", {"limits": {"max_connections": 3}}, False),
        ("shared", {"url": "redis://a"}, True),
        ("admission", {"shadow": True}, True),
        ("upstream", {"connect_timeout_s": 1.0}, False),
        ("upstream", {"health_timeout_s": 1.0}, True),
        ("tenants", [], True),
        ("pools", [{**POOL, "discovery": {}}], True),
        ("pools", [{**POOL, "transfer": "nixl"}], True),
        ("pools", [{**POOL, "models": ["m"]}], False),
        ("models", [{"name": "x", "fallbacks": ["y"]}], False),
    ],
)
def test_what_one_process_takes_up(section, changed, needs_restart):
    found = told({}, {section: changed})
    assert found and any(found.values()) is needs_restart


def test_what_is_called_live_is_there():
    known = paths(Config)
    assert set(LIVE) <= known
    assert is_live("tenants.quota.weight") and not is_live("pools.discovery.file")
    assert is_live("server.limits") and not is_live("server.limits_of_others")
