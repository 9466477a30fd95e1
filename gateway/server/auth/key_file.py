"""Keys that come and go while the gateway runs: a file of hashes, with a name, a tenant and an end.

`turnpike keys` writes it anew, in one step; each gateway looks every second whether it is another one.
Invariants: it holds no key; a key that is revoked or expires is refused a second later, on open connections
too; no key counts of a file that cannot be read as a whole.
"""

import argparse
import asyncio
import fcntl
import logging
import math
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config.load import DEFAULT_FILE, ConfigError, load_config
from gateway.config.tenants import StoredKey
from gateway.dashboard.terminal import print_table
from gateway.server.auth.client_keys import ClientKeys, hash_key
from gateway.server.runtime.clock import wall_clock
from gateway.server.storage.state_file import write_anew
from gateway.telemetry.log_lines import log_event

_PERIOD_S: Final = 1.0
_MAX_BYTES: Final = 1 << 25


class KeyFile:
    def __init__(self, path: str, client_keys: ClientKeys, on_change: Callable[[], None]) -> None:
        """`on_change`: called by `run` when somebody may be known by a key that counts no more."""
        self._path, self._client_keys, self._on_change = Path(path), client_keys, on_change
        self._seen: tuple[int, ...] | str = ()  # which file was read, or what was wrong with it
        self._keys: tuple[StoredKey, ...] = ()
        self._next_end_s = math.inf
        self._look()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            if await asyncio.to_thread(self._look):
                self._on_change()

    def _look(self) -> bool:
        keys, now, seen = self._keys, wall_clock(), self._seen
        try:
            found = self._path.stat()
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if stamp != seen:
                keys, self._seen = read_keys(self._path), stamp
                self._client_keys.keys_fault = ""
                log_event(logging.INFO, "keys_read", keys=len(keys))
        except (ConfigError, OSError) as error:
            keys, self._seen = (), str(error)
            self._client_keys.keys_fault = f"{error}; no key of server.keys_path counts"
            if self._seen != seen:
                remedy = "; `turnpike keys add NAME` makes it" if isinstance(error, FileNotFoundError) else ""
                log_event(logging.ERROR, "keys_unread", f"{error}; no key of server.keys_path counts{remedy}")
        if keys == self._keys and now < self._next_end_s:
            return False
        ends = (each.expires.timestamp() for each in keys if each.expires is not None)
        self._keys, self._next_end_s = keys, min((end for end in ends if end > now), default=math.inf)
        self._client_keys.set_keys(keys)
        return True


def read_keys(file: str | Path) -> tuple[StoredKey, ...]:
    """Raises ConfigError unless all of it can be read."""
    path, keys, number = Path(file), dict[str, StoredKey](), 0
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            raise ConfigError(f"server.keys_path: not a file of keys: {path}")
        for line in path.read_bytes().splitlines():
            number += 1
            if not line.strip():
                continue
            key = msgspec.json.decode(line, type=StoredKey)
            if keys.setdefault(key.hash, key) is not key:
                raise ValueError("this key is there twice")
    except OSError as error:
        remedy = "; `turnpike keys add NAME` makes it" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"server.keys_path: {error.strerror}: {path}{remedy}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"server.keys_path: {path}, line {number}: {error}; take it out") from None
    return tuple(keys.values())


@contextmanager
def _changing(path: Path) -> Iterator[list[StoredKey]]:
    """Written as it is left, unless that raises. One waits for another, by a lock on the file itself."""
    path = path.resolve()
    if path.is_dir():
        read_keys(path)  # says so
    while True:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else another has replaced it
                yield (keys := list(read_keys(path)))
                write_anew(path, [msgspec.json.encode(each) + b"\n" for each in keys])
                return


def add_keys(commands: Any) -> None:
    parser = commands.add_parser("keys", help="add, list and revoke keys while the gateway runs")
    below = parser.add_subparsers(required=True, metavar="COMMAND")
    add = below.add_parser("add", help="make a key, print it once, and store its hash")
    add.add_argument("name", metavar="NAME", help="the key's own, such as ci-2")
    add.add_argument("--tenant", metavar="NAME", help="tenant of the key, if there are several")
    add.add_argument("--expires", metavar="WHEN", help="such as 12h, 30d or 2030-01-31 (UTC)")
    revoke = below.add_parser("revoke", help="have a key refused from now on")
    revoke.add_argument("name", metavar="NAME", help="name of the key")
    actions = {add: _add, revoke: _revoke, below.add_parser("list", help="list names, tenants, ends"): _list}
    for action, run in actions.items():
        action.add_argument("--config", metavar="FILE", help=f"settings in TOML (default {DEFAULT_FILE})")
        action.set_defaults(command=run)


def _place(arguments: argparse.Namespace) -> tuple[Path, list[str]]:
    settings = arguments.config or (DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None)
    config = load_config(settings, os.environ, {}, serves=False)  # it may have --backend
    if config.server.keys_path is None:
        raise ConfigError('server.keys_path is not set; write keys_path = "/PATH" in [server], and restart')
    return Path(config.server.keys_path), [each.name for each in config.tenants]


def _add(arguments: argparse.Namespace) -> int:
    path, tenants = _place(arguments)
    name, tenant = arguments.name, arguments.tenant or (tenants[0] if len(tenants) == 1 else "")
    if re.fullmatch(r"[a-z0-9][\w.-]{0,63}", name, re.ASCII | re.IGNORECASE) is None:
        raise ConfigError("NAME: write 1 to 64 letters, digits, dots, dashes and underscores")
    if tenant not in tenants:
        what = f"{tenant!r} is not in the settings" if tenant else "whose key is it?"
        raise ConfigError(f"--tenant: {what}; write one of {', '.join(tenants)}")
    key, now = f"tp-{secrets.token_urlsafe(32)}", datetime.fromtimestamp(int(wall_clock()), UTC)
    end = _end(arguments.expires, now) if arguments.expires is not None else None
    with _changing(path) as keys:
        if any(each.name == name for each in keys):
            raise ConfigError(f"NAME: there is a key {name} already; write another name, or revoke that one")
        keys.append(StoredKey(name=name, tenant=tenant, hash=hash_key(key), created=now, expires=end))
    print(key)
    print(f"shown once; tenant {tenant}, expires {_shown(end)}, in {path.resolve()}", file=sys.stderr)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    path, tenants = _place(arguments)
    rows: list[tuple[str, ...]] = [("NAME", "TENANT", "CREATED", "EXPIRES", "STATE")]
    for each in read_keys(path):
        state = "expired" if each.has_expired(wall_clock()) else "active"
        state = state if each.tenant in tenants else "no such tenant"
        rows.append((each.name, each.tenant, _shown(each.created), _shown(each.expires), state))
    print_table(rows)
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    path, _ = _place(arguments)
    if all(each.name != arguments.name for each in read_keys(path)):
        raise ConfigError(f"NAME: no key {arguments.name!r} in {path}; `turnpike keys list` shows all")
    with _changing(path) as keys:
        keys[:] = [each for each in keys if each.name != arguments.name]
    print(f"turnpike: {arguments.name} is refused within a second", file=sys.stderr)
    return 0


def _end(text: str, now: datetime) -> datetime:
    try:
        units = {"d": timedelta(days=1), "h": timedelta(hours=1)}
        unit = units.get(text[-1:])
        end = datetime.fromisoformat(text) if unit is None else now + int(text[:-1]) * unit
        end = end.replace(tzinfo=end.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"--expires: {text!r} is no time; write 12h, 30d or 2030-01-31") from None
    if end <= now:
        raise ConfigError(f"--expires: {_shown(end)} is past; write a later time, or such as 30d")
    return end


def _shown(moment: datetime | None) -> str:
    return moment.isoformat(" ", "minutes").replace("+00:00", "Z") if moment is not None else "never"
