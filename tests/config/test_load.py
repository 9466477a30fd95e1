"""Reading the settings: what wins, what is said when they are wrong, and what differs between two."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from gateway.config import Config, load
from gateway.config.changes import LIVE, Change, changes, is_live
from gateway.config.load import ConfigError, load_config, read_api_key
from gateway.config.privacy import fields_of

POOLS = '[[pools]]\nreplicas = [{ url = "http://a:8000" }]\n'


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "turnpike.toml"
        path.write_bytes(text if isinstance(text, bytes) else (POOLS + text).encode())
        return str(path)

    return write


def complaint(path=None, environ=None, flags=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ or {}, flags or {})
    return str(caught.value)


# --- what wins -----------------------------------------------------------------------------------


def test_defaults_then_file_then_environment_then_flags(write):
    path = write('[server]\nlisten = "127.0.0.1:1"\n')
    environ = {"TURNPIKE_SERVER__LISTEN": "127.0.0.1:2"}
    flags = {"server.listen": "127.0.0.1:3"}
    assert load_config(write(""), {}, {}).server.listen == "127.0.0.1:8080"
    path = write('[server]\nlisten = "127.0.0.1:1"\n')
    assert load_config(path, {}, {}).server.listen == "127.0.0.1:1"
    assert load_config(path, environ, {}).server.listen == "127.0.0.1:2"
    assert load_config(path, environ, flags).server.listen == "127.0.0.1:3"


def test_no_file_is_needed():
    flags = {"pools": [{"replicas": [{"url": "http://a:8000"}]}]}
    assert load_config(None, {}, flags).pools[0].replicas[0].url == "http://a:8000"


def test_the_environment_speaks_toml_where_it_can():
    environ = {
        "TURNPIKE_POOLS": '[{ replicas = [{ url = "http://a:8000" }] }]',
        "TURNPIKE_SERVER__DEBUG_HEADERS": "false",
        "TURNPIKE_SERVER__LIMITS__MAX_BODY_BYTES": "1_000",
        "TURNPIKE_STREAM__PATH": "a = 1\nb = 2",
        "TURNPIKE_CONFIG": "of somebody else",
        "PATH": "/bin",
    }
    config = load_config(None, environ, {})
    assert config.server.debug_headers is False
    assert config.server.limits.max_body_bytes == 1000
    assert config.stream.path == "a = 1\nb = 2"
    assert load_config(None, environ | {"TURNPIKE_STREAM__PATH": "1\nb = 2"}, {}).stream.path == "1\nb = 2"


def test_a_file_is_utf8_whatever_the_locale(write):
    assert load_config(write('[stream]\npath = "ström"\n'), {}, {}).stream.path == "ström"


# --- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[server]\nlisen = "127.0.0.1:1"\n', "server.lisen: there is no such key; did you mean listen?"),
        ("[servr]\n", "servr: there is no such key; did you mean server?"),
        ("[core]\nmax_attempts = 0\n", "core.max_attempts: it has to be a whole number >= 1"),
        ('[core]\nmax_wait_s = "long"\n', "core.max_wait_s: it has to be a number, not a text"),
        ("[sessions]\nidle_s = inf\n", "sessions.idle_s: it has to be a finite number"),
        ("[sessions]\nidle_s = nan\n", "sessions.idle_s: it has to be a finite number"),
        ('[[mcp]]\nname = "a"\ntimeout_s = [{ a = inf }]\n', "mcp[0].timeout_s[0].a: it has to be a finite"),
        ('[server]\nlisten = "nowhere"\n', "server.listen: it has to be HOST:PORT"),
        (
            '[server]\nworkers = "many"\n',
            "server.workers: Invalid enum value 'many': it has to be one of a number, ",
        ),
        (
            '[shared]\nurl = "memory://"\n',
            "shared.url: it has to be redis://[USER][:PASSWORD@]HOST:",
        ),
        ('[history]\nulr = "x"\n', "history.ulr: there is no such key; did you mean url?"),
        ('[[mcp]]\nname = "a"\nurl = "http://a"\nearly = []\n', "mcp[0].early: there is no such key"),
        (
            '[[tenants]]\nname = "a"\npermissions = ["all"]\n',
            "tenants[0].permissions[0]: Invalid enum value 'all': it has to be one of \"engine-control\",",
        ),
        (
            '[[pools]]\nreplicas = [{ url = "http://a" }]\ntransfer = "p2p"\n',
            'pools[1].transfer: Invalid enum value \'p2p\': it has to be one of "nixl", "shared_storage"',
        ),
        (
            '[[pools]]\nreplicas = [{ url = "http://a", zone = "b" }]\n',
            "pools[1].replicas[0].zone: there is no such key",
        ),
        ('[server]\nlisten = "localhost:99999"\n', "server: listen names a port above 65535"),
        ('[server]\nlisten = "0.0.0.0:80"\n', "server.listen: 0.0.0.0:80 is reachable from elsewhere"),
        ('[[tenants]]\nname = "a"\nkey_hashes = ["secret"]\n', "tenants[0].key_hashes[0]: it has to be"),
        ('[[tenants]]\nname = "a"\n', "tenants: a has no key_hashes, and there is no [jwt]"),
        ('[[tenants]]\nname = "a\\n"\nkey_hashes = []\n', "tenants[0].name: it has to be"),
        (
            '[hints]\ncache_salt_secret = "short"\n',
            "hints.cache_salt_secret: it has to be a text of length >= 16",
        ),
        ('[[pools]]\nreplicas = [{ url = "ftp://a" }]\n', "pools[1].replicas[0].url: it has to be"),
    ],
)
def test_it_names_the_file_and_the_key(write, text, said):
    path = write(text)
    assert complaint(path).startswith(f"{path}: {said}")


def test_a_section_that_was_renamed_is_answered_in_the_environment_too():
    renamed = "environment variable {}: `trickle` is called failover_pacing now"
    for variable, value in (("TURNPIKE_TRICKLE", "{}"), ("TURNPIKE_TRICKLE__SMALL_BYTES", "5")):
        assert complaint(environ={variable: value}) == renamed.format(variable)


@pytest.mark.parametrize(("old", "new"), load._RENAMED.items())
def test_a_setting_that_was_renamed_is_answered_with_its_name(write, old, new):
    section, _, name = old.rpartition(".")
    shapes = [each for each in load._shapes_at(section) if isinstance(each, inspect.StructType)]
    known = [field.name for shape in shapes for field in shape.fields]
    assert new in known and name not in known
    header = f"[[{section}]]" if section in ("tenants", "bounds") else f"[{section}]" if section else ""
    line = f"{name} = 1\n" if section else f"[{name}]\n"
    required = 'name = "a"\n' if header.startswith("[[") else ""
    assert f"{name}: it is called {new} now" in complaint(write(f"{header}\n{required}{line}"))


def test_it_names_where_a_value_came_from_if_not_from_the_file(write):
    path = write("")
    environ = {"TURNPIKE_CORE__MAX_ATTEMPTS": "0"}
    said = complaint(path, environ)
    assert said.startswith(
        "environment variable TURNPIKE_CORE__MAX_ATTEMPTS: core.max_attempts: it has to be"
    )
    assert complaint(path, environ, {"core.max_attempts": 99}).startswith("command line: core.max_attempts")
    public = complaint(path, {"TURNPIKE_SERVER__LISTEN": "0.0.0.0:80"})
    assert public.startswith("environment variable TURNPIKE_SERVER__LISTEN: server.listen: 0.0.0.0:80")
    similar = {"TURNPIKE_SERVER__CONTROL": "127.0.0.1:1"}
    assert complaint(write('[server]\ncontrol_key_hashes = ["x"]\n'), similar).startswith(path)
    elsewhere = complaint(write("[core]\nmax_attempts = 0\n"), {"TURNPIKE_CORE__MAX_WAIT_S": "5"})
    assert elsewhere.startswith(path)


def test_an_infinite_number_is_named_after_the_variable_that_has_it(write):
    pools = '[{ replicas = [{ url = "http://a", weight = inf }] }]'
    environ = {"TURNPIKE_POOLS": pools}
    with pytest.raises(ConfigError, match=r"^environment variable TURNPIKE_POOLS: pools\[0\].replicas\[0\]"):
        load_config(None, environ, {})


def test_a_typo_in_the_environment_is_not_passed_over(write):
    assert complaint(write(""), {"TURNPIKE_SEVER__LISTEN": "x"}) == (
        "environment variable TURNPIKE_SEVER__LISTEN: there is no section `sever`"
    )
    assert "server.lisen: there is no such key" in complaint(write(""), {"TURNPIKE_SERVER__LISEN": "x"})


def test_every_form_is_told_in_words():
    """No pattern is left for a person to read."""

    def patterns(kind: Any, path: tuple[str, ...]) -> Iterator[str]:
        for field in kind.fields:
            for each in load._inner([field.type]):
                if isinstance(each, inspect.StructType):
                    yield from patterns(each, (*path, field.name))
                elif isinstance(each, inspect.StrType) and each.pattern is not None:
                    yield ".".join((*path, field.name))

    keys = list(patterns(inspect.type_info(Config), ()))
    assert len(keys) > 25
    assert [key for key in keys if load._form_of(key).startswith(": it has to be one of")] == []


def test_a_section_is_no_value(write):
    path = write('[server]\nlisten = "127.0.0.1:1"\n')
    said = complaint(path, {}, {"server.listen.host": "x"})
    assert said == "command line: server.listen.host: listen is not a section"


def test_no_backend(tmp_path):
    assert complaint() == "settings: pools: no backend is given; use --backend URL, or [[pools]] in a file"
    path = tmp_path / "empty.toml"
    path.write_text("")
    assert complaint(str(path)).startswith(f"{path}: pools: no backend")


def test_files_that_cannot_be_read(write, tmp_path):
    assert complaint(str(tmp_path / "missing.toml")).endswith("missing.toml: No such file or directory")
    assert "line 1" in complaint(write(b"= 1"))
    assert "utf-8" in complaint(write(b"\xff"))


# --- keys of replicas ----------------------------------------------------------------------------


def test_a_replica_may_need_no_key():
    assert read_api_key(None, None, {}) is None


def test_a_key_from_the_environment():
    assert read_api_key("KEY", None, {"KEY": " secret\n"}) == "secret"
    for environ in ({}, {"KEY": " "}):
        with pytest.raises(ConfigError, match="api_key_env: the environment variable KEY is not set"):
            read_api_key("KEY", None, environ)


def test_a_key_from_a_file(tmp_path):
    path = tmp_path / "key"
    path.write_text("secret\n")
    assert read_api_key(None, str(path), {}) == "secret"
    for content, said in ((b"\n", "the file is empty"), (b"\xff", "not a text file")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"api_key_file: {said}: {re.escape(str(path))}"):
            read_api_key(None, str(path), {})
    path.unlink()
    with pytest.raises(ConfigError, match="api_key_file: No such file"):
        read_api_key(None, str(path), {})


@pytest.mark.parametrize("where", ["pool", "replica"])
def test_a_profile_that_is_none_is_refused(where):
    def settings(profile):
        of = {"profile": profile}
        replica = {"url": "http://a"} | (of if where == "replica" else {})
        return {"pools": [{"replicas": [replica]} | (of if where == "pool" else {})]}

    assert load_config(None, {}, settings("qwen3-coder-30b-a3b@h200")).pools
    with pytest.raises(ConfigError, match="profile: nothing: a profile is named"):
        load_config(None, {}, settings("nothing"))


@pytest.mark.parametrize("text", ["drain_s = " + "9" * 5_000, "drain_s = " + "[" * 5_000])
def test_a_file_that_python_cannot_hold_is_a_complaint(write, text):
    assert complaint(write("[server]\n" + text)).startswith(write(""))


@pytest.mark.parametrize("text", ["9" * 5_000, "[" * 5_000, "\udcff"])
def test_a_variable_that_cannot_be_read_is_a_complaint(write, text):
    assert "TURNPIKE_SERVER__DRAIN_S" in complaint(write(""), {"TURNPIKE_SERVER__DRAIN_S": text})
    assert "TURNPIKE_SERVER__LISTEN" in complaint(write(""), {"TURNPIKE_SERVER__LISTEN": text})


def test_a_pool_that_is_not_there_is_no_target():
    models = [{"name": "smart", "targets": [{"model": "m", "pool": "big"}]}]
    pools = [{"name": "big", "replicas": [{"url": "http://a:8000"}]}]
    assert load_config(None, {}, {"pools": pools, "models": models}).models[0].targets[0].pool == "big"
    said = complaint(flags={"pools": [{**pools[0], "name": "small"}], "models": models})
    assert said == "settings: models: smart: there is no pool 'big'"


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
        ("server", {"debug_headers": False}, False),
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
