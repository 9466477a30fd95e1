"""The plugin's settings: ``--additional-config '{"turnpike": {...}}'`` of the vLLM server.

Every feature can be switched off, and every number of a policy's configuration set:

    {"turnpike": {"retention": {"grace_s": 3.0}, "classes": false}}

What is wrong raises `SettingsError`, and the plugin then leaves vLLM as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, get_type_hints

from turnpike_vllm.classes import ClassesConfig
from turnpike_vllm.coordinator import CoordinatorConfig
from turnpike_vllm.retain.retention import RetentionConfig

KEY = "turnpike"
# State of a feature that the settings switch off.
SWITCHED_OFF = "switched off"


class SettingsError(ValueError):
    """What is wrong, and where."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """``None`` switches a feature off."""

    coordinator: CoordinatorConfig | None = field(default_factory=CoordinatorConfig)
    retention: RetentionConfig | None = field(default_factory=RetentionConfig)
    classes: ClassesConfig | None = field(default_factory=ClassesConfig)
    signed_hints: bool = True
    """Follow those in requests only if a gateway has signed them; off where all clients may hint."""
    connectors: tuple[str, ...] = ()
    """Classes of KV connectors, beside those that the features were tried with, that they may run with."""
    max_sessions: int = 4_096
    """Sessions that are remembered; the one that was silent longest goes first."""


OFF = Settings(coordinator=None, retention=None, classes=None)

_POLICIES: Mapping[str, Any] = {
    "coordinator": CoordinatorConfig,
    "retention": RetentionConfig,
    "classes": ClassesConfig,
}

Config = TypeVar("Config")


def read_settings(additional_config: object) -> Settings:
    """From vLLM's ``additional_config``; an absent key means the defaults."""
    raw = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    if raw is False:
        return OFF
    if not isinstance(raw, Mapping):
        raise SettingsError(f"{KEY}: must be an object or false")
    changes: dict[str, Any] = {}
    for name, value in raw.items():
        if name in _POLICIES:
            changes[name] = _policy(name, value)
        elif name == "connectors" and _are_names(value):
            changes[name] = tuple(value)
        elif (
            isinstance(value, bool) if name == "signed_hints" else name == "max_sessions" and _is_size(value)
        ):
            changes[name] = value
        else:
            raise SettingsError(f"{KEY}.{name}: unknown, or of the wrong kind")
    return replace(Settings(), **changes)


def _policy(name: str, value: object) -> object | None:
    if value is False or value is None:
        return None
    default: object = _POLICIES[name]()
    return default if value is True else _read(default, value, f"{KEY}.{name}")


def _read(default: Config, value: object, place: str) -> Config:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{place}: must be an object or a boolean")
    types = get_type_hints(type(default))
    changes: dict[str, Any] = {}
    for name, given in value.items():
        if name not in {each.name for each in fields(default)}:  # type: ignore[arg-type]
            raise SettingsError(f"{place}.{name}: unknown")
        changes[name] = _number(types[name], given, f"{place}.{name}")
    return replace(default, **changes)  # type: ignore[type-var]


def _number(wanted: object, given: object, place: str) -> object:
    if wanted is float and isinstance(given, int | float) and not isinstance(given, bool) and given >= 0:
        return float(given)
    if wanted is int and _is_count(given):
        return given
    raise SettingsError(f"{place}: must be a number")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_size(value: object) -> bool:
    return _is_count(value) and value != 0
