"""Reads the settings: defaults, then the TOML file, then the environment, then flags; validated once.

Environment variables are named after the keys: `TURNPIKE_SERVER__LISTEN=0.0.0.0:80` sets `server.listen`,
`TURNPIKE_POOLS=[…]` sets a whole section. Their values are TOML where they can be read as such, else text.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from gateway.config import Config
from gateway.config.addresses import meant_listen, meant_url
from gateway.config.profiles import load_profile
from gateway.cost.profile import ProfileError

DEFAULT_FILE: Final = "turnpike.toml"
_ELSEWHERE: Final = "http://127.0.0.1:9"
_ENV_PREFIX: Final = "TURNPIKE_"
_SECTIONS: Final = frozenset(field.name for field in msgspec.structs.fields(Config))


class ConfigError(Exception):
    """What is wrong, for a person: the file, the key, and what was expected there."""


_NAME: Final = "a name of lower-case letters, digits, `.`, `_` and `-`"
# Of texts, by how their keys end.
_FORMS: Final = {
    "shared.url": "redis://[USER][:PASSWORD@]HOST:PORT/DB, or rediss://, redis+cluster://, rediss+cluster://",
    "shared.peer_url": "http://HOST:PORT, or https://HOST:PORT",
    "jwt.jwks": "an https:// URL, or the path of a file",
    "kv_events.endpoint": "tcp://HOST:PORT, or ipc://PATH",
    "kv_events.replay": "tcp://HOST:PORT, or ipc://PATH",
    "discovery.dns": "NAME:PORT",
    "replicas.name": "a name of letters, digits, `.`, `_` and `-`",
    **dict.fromkeys(
        ("models.name", "targets.model", "models.fallbacks"), "1 to 256 visible ASCII characters"
    ),
    "bounds.agents": "16 hexadecimal digits",
    "tenants.key_hashes": "sha256:…, as `turnpike hash-key` prints it",
    **dict.fromkeys(
        ("control_key_hashes", "control_read_key_hashes"), "sha256:…, as `turnpike hash-key` prints it"
    ),
    **dict.fromkeys(
        ("url", "endpoint", "api"), "http://HOST:PORT, or https://, with a path where there is one"
    ),
    **dict.fromkeys(("listen", "control", "peer_listen"), "HOST:PORT"),
    **dict.fromkeys(("name", "namespace", "service", "port", "control_hosts"), _NAME),
}


def load_config(
    path: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    *,
    text: str | None = None,
    serves: bool = True,
) -> Config:
    """`flags`: dotted key → value, as given on the command line; `text`: what to read in place of the file;
    no other file is read for it; `serves`: else backends may be given elsewhere. Raises ConfigError."""
    if text is not None:
        path, tree = "the file", _parse_toml(text, "the file")
    else:
        tree = _read_toml(path) if path is not None else {}
    # Where a value comes from, if not from the file.
    origins: dict[str, str] = {}
    for key, variable in _from_environment(environ).items():
        origins[key] = f"environment variable {variable}"
        _set(tree, key, _as_toml(environ[variable]), source=origins[key])
    for key, value in flags.items():
        origins[key] = "command line"
        _set(tree, key, value, source=origins[key])
    source = path or "settings"
    if "pools" not in tree and not serves:
        tree["pools"] = [{"replicas": [{"url": _ELSEWHERE}]}]
    if "pools" not in tree:
        here = f"; or name {DEFAULT_FILE}, which is here" if not path and Path(DEFAULT_FILE).exists() else ""
        missing = f"pools: no backend is given; use --backend URL, or [[pools]] in a file{here}"
        raise ConfigError(f"{source}: {missing}")
    try:
        if (infinite := _infinite_key(tree)) is not None:
            raise msgspec.ValidationError(f"it has to be a finite number - at `$.{infinite}`")
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        what = _explain(str(error), tree)
        named = [key for key in origins if re.match(rf"{re.escape(key)}(?![a-z0-9_])", what)]
        raise ConfigError(f"{origins[max(named, key=len)] if named else source}: {what}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{', '.join(origins.values()) or source}: not valid UTF-8") from None
    if text is None:
        _check_profiles(config, source)
    _check_targets(config, source)
    if (why := _what_is_wrong_with_bounds(config)) is not None:
        raise ConfigError(f"{source}: bounds: {why}")
    return config


def _infinite_key(tree: Mapping[str, Any]) -> str | None:
    left: list[tuple[str, Any]] = list(tree.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", each) for name, each in value.items()]
        elif isinstance(value, list):
            left += [(f"{key}[{at}]", each) for at, each in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            return key
    return None


def _check_profiles(config: Config, source: str) -> None:
    for pool in config.pools:
        for profile in (pool.profile, *(replica.profile for replica in pool.replicas)):
            try:
                if profile is not None:
                    load_profile(profile)
            except ProfileError as error:
                raise ConfigError(f"{source}: pools: profile: {error}") from None


def _check_targets(config: Config, source: str) -> None:
    pools = {pool.name for pool in config.pools}
    for model in config.models:
        for target in model.targets:
            if target.pool is not None and target.pool not in pools:
                raise ConfigError(f"{source}: models: {model.name}: there is no pool {target.pool!r}")


def _what_is_wrong_with_bounds(config: Config) -> str | None:
    tenants = {tenant.name for tenant in config.tenants}
    for bound in config.bounds:
        if bound.is_empty:
            what = "turns, tokens, cost, max_duration_s, repeats or same_calls"
            return f"{bound.name}: it bounds nothing: set {what}"
        if unknown := [name for name in bound.tenants if name not in tenants]:
            return f"{bound.name}: there is no tenant {unknown[0]!r}"
        if bound.cost is not None and not config.prices:
            return f"{bound.name}: a cost needs [[prices]]"
        if bound.period is None:
            continue
        if not tenants:
            names = "clients without keys have other names after a restart"
            return f"{bound.name}: per {bound.period} needs [[tenants]]: {names}"
        if config.server.state_path is None and config.shared.url is None:
            needs = "server.state_path or shared.url: else a restart forgets what was used"
            return f"{bound.name}: per {bound.period} needs {needs}"
    return None


@contextmanager
def named(key: str, *files: str | None) -> Iterator[None]:
    """An OSError for what a setting points to names that setting, and the files where it names none."""
    try:
        yield
    except OSError as error:
        where = ", ".join(file for file in files if file is not None)
        raise ConfigError(f"{key}: {error.strerror}: {where}" if where else f"{key}: {error}") from None


def read_api_key(
    env: str | None, file: str | None, environ: Mapping[str, str], *, named: str = "api_key_env"
) -> str | None:
    """A key, from where the settings say that it is. Raises ConfigError if it is not there, or no header can
    hold it. `named`: where `env` is named."""
    if env is not None:
        where = f"{named}: the environment variable {env}"
        if not environ.get(env, "").strip():
            raise ConfigError(f"{where} is not set, or empty")
        return _sendable(environ[env].strip(), where)
    if file is not None:
        try:
            key = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"api_key_file: {error.strerror}: {file}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"api_key_file: not a text file: {file}") from None
        if not key:
            raise ConfigError(f"api_key_file: the file is empty: {file}")
        return _sendable(key, f"api_key_file: {file}")
    return None


def _sendable(key: str, where: str) -> str:
    if re.fullmatch("[!-~]+", key) is None:
        what = "a byte order mark in front" if key.startswith("\ufeff") else "other than visible ASCII"
        raise ConfigError(f"{where}: no key can hold what is in it: {what}")
    return key


def _read_toml(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return _parse_toml(text, path)


def _parse_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of TOML, of a number of 5,000 digits
        raise ConfigError(f"{source}: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Dotted key → the variable that sets it. Variables without `__` that name no section are not ours."""
    found = {}
    for variable in environ:
        name = variable.removeprefix(_ENV_PREFIX).lower()
        section, dots, _ = name.partition("__")
        if variable.startswith(_ENV_PREFIX) and (dots or section in _SECTIONS or section in _RENAMED):
            if section not in _SECTIONS:
                renamed = _RENAMED.get(section)
                why = (
                    f"`{section}` is called {renamed} now" if renamed else f"there is no section `{section}`"
                )
                raise ConfigError(f"environment variable {variable}: {why}")
            found[name.replace("__", ".")] = variable
    return found


def _as_toml(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # a number of 5,000 digits is no TOMLDecodeError
        return text
    return read["value"] if len(read) == 1 else text


def _set(tree: dict[str, Any], dotted_key: str, value: Any, *, source: str) -> None:
    *sections, key = dotted_key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{source}: {dotted_key}: {section} is not a section")
    tree[key] = value


def _explain(message: str, tree: Mapping[str, Any]) -> str:
    """msgspec's `Expected … - at `$.server.listen`` with the key in front."""
    what, found, where = message.rpartition(" - at `$")
    what, where = (what, where.removesuffix("`").removeprefix(".")) if found else (message, "")
    key = where
    field = re.fullmatch(r"Object (?:contains (unknown)|missing required) field `(.*)`", what)
    if field is not None:
        key = f"{key}.{field[2]}" if key else field[2]
        what = "is required"
        if field[1] is not None:
            structs = [
                each for each in _shapes_at(_INDEX.sub("", where)) if isinstance(each, inspect.StructType)
            ]
            names = [each.name for struct in structs for each in struct.fields]
            renamed = _RENAMED.get(_INDEX.sub("", key))
            meant = get_close_matches(field[2], names, 1)
            what = "there is no such key" + (f"; did you mean {meant[0]}?" if meant else "")
            what = f"it is called {renamed} now" if renamed else what
    elif "matching regex" in what or what.startswith(("Invalid enum", "Expected `str`, got `int`")):
        found = f"{what}: " if what.startswith("Invalid") else ""
        what = f"{found}{_form_of(_INDEX.sub('', key))}{_meant(tree, key)}"
    elif what.startswith("Expected"):
        what = _TYPE.sub(lambda at: _TYPES.get(at[1], at[1]), what)
        what = (
            what.replace("Expected", "it has to be")
            .replace(", got a number", ", not a fraction")
            .replace(", got", ", not")
        )
    return f"{key}: {what}" if key else what


# Settings by their names up to 0.1, so that an older file is answered with the new name.
_RENAMED: Final = {
    "server.lame_duck_s": "shutdown_delay_s",
    "server.receipts": "debug_headers",
    "server.holding.quiet_s": "first_keepalive_s",
    "server.limits.linger_s": "drain_rejected_body_s",
    "core.max_held_s": "max_stream_wait_s",
    "core.max_outage_s": "no_replica_wait_s",
    "core.is_unknown_state_refused": "reject_unknown_ids",
    "tenants.trust": "permissions",
    "bounds.of": "scope",
    "bounds.per": "period",
    "bounds.wall_s": "max_duration_s",
    "objective.alpha": "slowdown_target",
    "admission.follows_tools": "limit_by_tool_load",
    "health.out_at_most": "max_ejected_share",
    "health.rest_s": "ejection_s",
    "health.rest_most_s": "max_ejection_s",
    "health.trials": "slow_ejections_limit",
    "trickle": "failover_pacing",
    "failover_pacing.small_bytes": "unpaced_below_bytes",
    "disaggregation.must_gain": "max_time_ratio",
    "prefill_ahead.most": "max_concurrent",
}
_INDEX: Final = re.compile(r"\[[^]]*\]")
_TYPE: Final = re.compile(r"`(\w+)(?: \| null)?`")
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_MEANT: Final = {
    **dict.fromkeys(("listen", "control", "peer_listen"), meant_listen),
    **dict.fromkeys(("url", "peer_url", "api"), meant_url),
}


def _meant(tree: Any, key: str) -> str:
    """What to write instead of what stands there; nothing if that is anybody's guess."""
    names = re.findall(r"[^.\[\]]+", key)
    if key == "shared.url" or (meant := _MEANT.get(names[-1])) is None:
        return ""
    return meant(str(reduce(lambda at, name: at[int(name) if isinstance(at, list) else name], names, tree)))


def _form_of(key: str) -> str:
    """What has to stand there: the form of a text, or one of some words."""
    if form := next((form for end, form in _FORMS.items() if f".{key}".endswith(f".{end}")), None):
        return f"it has to be {form}"
    words = []
    for shape in _shapes_at(key):
        if isinstance(shape, inspect.LiteralType):
            words += [msgspec.json.encode(each).decode() for each in shape.values]
        elif isinstance(shape, inspect.IntType):
            words.append("a number")
    return f"it has to be one of {', '.join(words)}"


def _shapes_at(key: str) -> Iterator[inspect.Type]:
    shapes: Iterable[inspect.Type] = [inspect.type_info(Config)]
    for name in key.split(".") if key else ():
        fields = [each.fields for each in _inner(shapes) if isinstance(each, inspect.StructType)]
        shapes = [field.type for some in fields for field in some if field.name == name]
    return _inner(shapes)


def _inner(shapes: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for shape in shapes:
        yield shape
        below = [getattr(shape, name, None) for name in ("type", "item_type", "value_type")]
        yield from _inner([each for each in (*below, *getattr(shape, "types", ())) if each is not None])
