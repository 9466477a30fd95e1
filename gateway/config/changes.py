"""What differs between two settings, and whether a gateway takes it up while it runs (pure).

It takes up what `LIVE` names, and keeps all that it knows; the rest needs a restart.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from gateway.config import Config
from gateway.config.addresses import HOST
from gateway.config.privacy import fields_of, holds_private_text
from gateway.config.upstream import PoolConfig

# With all that is below them.
LIVE: Final = (
    "bounds",
    "models",
    "pools",
    "prices",
    "tenants",
    "server.allow_public_without_keys",
    "server.control_hosts",
    "server.control_key_hashes",
    "server.control_read_key_hashes",
    "server.drain_s",
    "server.holding",
    "server.shutdown_delay_s",
    "server.limits",
    "server.log_level",
    "server.debug_headers",
    "server.tls_certificate",
    "server.tls_key",
    "upstream",
)
# Of what is below them, these are not.
_NOT_LIVE: Final = (
    "pools.discovery",
    "pools.transfer",
    "upstream.ca_file",
    "upstream.health_timeout_s",
    "upstream.tls_certificate",
    "upstream.tls_key",
    "upstream.tls_server_name",
)
# Live, but for the change from none to some, or back: it changes what every request goes through.
_NEVER_NONE: Final = ("tenants", "server.tls_certificate", "server.tls_key")
_HIDDEN: Final = "(not shown)"
_ADDRESSES: Final = frozenset("url peer_url endpoint api replay dns listen control peer_listen".split())
_ADDRESS: Final = re.compile(rf"[a-z][a-z+]*://{HOST}(?::\d{{1,5}})?(?=[/?#]|\Z)|{HOST}:\d{{1,5}}\Z")
# What is in them counts from a reload on.
_FILES: Final = re.compile(r"(server|pools|jwt)\b.*\.(tls_certificate|tls_key|api_key_file|jwks|profile)\Z")
# The value of a section.
_THERE: Final = "there"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that is another."""

    key: str
    """Such as `tenants[team-a].quota.weight`."""
    before: str | None
    """As JSON; None: it was not there. Of secrets and paths nothing is shown, of URLs host and port."""
    after: str | None
    needs_restart: bool


class _Leaf(NamedTuple):
    path: str
    """Without the names of elements: `tenants.quota.weight`."""
    value: Any
    is_private: bool
    is_default: bool
    """Then it is not listed for an element that comes or goes."""


def is_live(path: str) -> bool:
    """Whether a gateway takes it up; `path`: of a setting, without names of elements."""
    return _is_below(path, LIVE) and not _is_below(path, _NOT_LIVE)


def is_live_unless_none(path: str) -> bool:
    return path in _NEVER_NONE


def changes(before: Config, after: Config) -> tuple[Change, ...]:
    old, new = dict(_leaves(before)), dict(_leaves(after))
    found = []
    for key in dict.fromkeys((*old, *new)):
        was, now = old.get(key), new.get(key)
        leaf = was or now
        assert leaf is not None
        if was is not None and now is not None:
            if was.value == now.value:
                continue
        elif leaf.is_default:
            continue
        found.append(
            Change(
                key=key,
                before=_shown(was),
                after=_shown(now),
                needs_restart=not is_live(leaf.path)
                or (leaf.path in _NEVER_NONE and not (was and was.value and now and now.value)),
            )
        )
    return tuple(found)


def files_read_again(config: Config) -> Iterator[tuple[str, str]]:
    return ((key, leaf.value) for key, leaf in _leaves(config) if leaf.value and _FILES.match(key))


def read_anew(key: str) -> Change:
    """The file that a setting names is another one, under the same name."""
    return Change(key=key, before="as it was", after="read anew", needs_restart=False)


def set_by_hand(config: Config) -> dict[str, str | None]:
    return {
        key: _shown(leaf)
        for key, leaf in _leaves(config)
        if not leaf.is_default and leaf.value not in (_THERE, (), {})
    }


def moved_between_pools(before: Config, after: Config) -> str | None:
    """The name of a replica that would change its pool, which none can do while it may be running turns."""
    pool_of = {name: pool.name for pool in before.pools for name in pool.names()}
    names = ((name, pool.name) for pool in after.pools for name in pool.names())
    return next((name for name, pool in names if pool_of.get(name, pool) != pool), None)


def _leaves(config: Config) -> Iterator[tuple[str, _Leaf]]:
    yield from _below(config, "", "")


def _below(settings: msgspec.Struct, key: str, path: str) -> Iterator[tuple[str, _Leaf]]:
    for field in fields_of(type(settings)):
        value = getattr(settings, field.name)
        named, at = f"{key}{field.name}", f"{path}{field.name}"
        is_default = not field.required and value == field.default
        if isinstance(value, msgspec.Struct):
            yield named, _Leaf(at, _THERE, False, is_default)
            yield from _below(value, f"{named}.", f"{at}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            names = _names(settings, value)
            yield named, _Leaf(at, names, False, is_default)
            for name, each in zip(names, value, strict=True):
                yield from _below(each, f"{named}[{name}].", f"{at}.")
        else:
            yield named, _Leaf(at, value, holds_private_text(field.type), is_default)


def _names(settings: msgspec.Struct, elements: tuple[msgspec.Struct, ...]) -> tuple[str, ...]:
    if isinstance(settings, PoolConfig):
        return tuple(settings.names())
    names = (getattr(each, "name", None) or getattr(each, "model", None) for each in elements)
    return tuple(name or str(number) for number, name in enumerate(names))


def _shown(leaf: _Leaf | None) -> str | None:
    if leaf is None or leaf.value is None or leaf.value == ():
        return None
    if leaf.is_private:
        return _address(str(leaf.value)) if leaf.path.rpartition(".")[2] in _ADDRESSES else _HIDDEN
    return msgspec.json.encode(leaf.value).decode()


def _address(text: str) -> str:
    """Host and port, and whether there is more. Nothing of what is no address, or may hold a password."""
    found = _ADDRESS.match(text)
    if found is None or "@" in text:
        return _HIDDEN
    return f"{found[0]}/…" if text[found.end() :].strip("/") else found[0]


def _is_below(path: str, sections: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in sections)
