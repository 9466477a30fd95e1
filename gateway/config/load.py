"""Reads the settings: defaults, then the TOML file, then the environment, then flags; validated once.

Environment variables are named after the keys: `TURNPIKE_SERVER__LISTEN=0.0.0.0:80` sets `server.listen`.
Their values are TOML where they can be read as such, else text.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config import Config

_ENV_PREFIX: Final = "TURNPIKE_"
_SECTIONS: Final = frozenset(field.name for field in msgspec.structs.fields(Config))


class ConfigError(Exception):
    """What is wrong, for a person: the file, the key, and what was expected there."""


def load_config(path: str | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """`flags`: dotted key → value, as given on the command line. Raises ConfigError."""
    source = path or "command line"
    tree = _read_toml(path) if path is not None else {}
    for key, value in _from_environment(environ).items():
        _set(tree, key, value, source="environment")
    for key, value in flags.items():
        _set(tree, key, value, source="command line")
    if "pools" not in tree:
        raise ConfigError(f"{source}: no backend is given; use --backend URL, or [[pools]] in a file")
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error))}") from None


def read_api_key(env: str | None, file: str | None, environ: Mapping[str, str]) -> str | None:
    """A replica's key, from where the settings say that it is. Raises ConfigError if it is not there."""
    if env is not None:
        if env not in environ:
            raise ConfigError(f"api_key_env: the environment variable {env} is not set")
        return environ[env].strip()
    if file is not None:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"api_key_file: {error.strerror}: {file}") from None
    return None


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for name, text in environ.items():
        key = name.removeprefix(_ENV_PREFIX).lower().replace("__", ".")
        if name.startswith(_ENV_PREFIX) and "." in key and key.partition(".")[0] in _SECTIONS:
            found[key] = _as_toml(text)
    return found


def _as_toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _set(tree: dict[str, Any], dotted_key: str, value: Any, *, source: str) -> None:
    *sections, key = dotted_key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{source}: {dotted_key}: {section} is not a section")
    tree[key] = value


def _explain(message: str) -> str:
    """msgspec's `Expected … - at `$.server.listen`` with the key in front."""
    what, found, where = message.rpartition(" - at `$")
    if not found:
        return message
    key = where.removesuffix("`").removeprefix(".").replace("[...]", "[]")
    return f"{key}: {what}"
