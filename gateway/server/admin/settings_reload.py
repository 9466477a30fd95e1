"""Settings that change while the gateway runs: what would change, and the change itself.

On the control plane, for whoever may act there:

    POST /turnpike/settings/diff     a TOML file, or nothing for the gateway's own: what it would change
    POST /turnpike/settings/reload   the gateway's own file is read again, as on SIGHUP

A change is taken up whole or not at all. All that may be wrong is read and checked first; then every part
takes it up within one turn of the event loop, so no request sees half of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web

from gateway.config import Config
from gateway.config.changes import Change, changes, moved_between_pools, read_anew
from gateway.config.load import ConfigError
from gateway.server.admin.loaded_references import LoadedReferences, read_references
from gateway.telemetry.log_lines import JsonFormatter, log_event

_log: Final = logging.getLogger(__name__)
DIFF_PATH: Final = "/turnpike/settings/diff"
RELOAD_PATH: Final = "/turnpike/settings/reload"

# Who, what, and what came of it as an HTTP status.
Record = Callable[[str, str, int], None]
# The settings as they are read at the start: from their file, or from this text in its place, with the
# environment and the command line. Blocks; raises ConfigError.
Read = Callable[[str | None], Config]


class SettingsReload:
    def __init__(
        self,
        config: Config,
        references: LoadedReferences,
        environ: Mapping[str, str],
        read: Read,
        apply_config: Callable[[Config, LoadedReferences], None],
    ) -> None:
        """`apply_config`: has every part of the gateway go by these settings from now on."""
        self._config = config
        self._references = references
        self._environ = environ
        self._read = read
        self._follow = apply_config
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> tuple[Change, ...]:
        """What changed. Also what the settings point to is read again: keys of replicas, certificates. Raises
        ConfigError, OSError or ValueError, with the reason, if nothing was changed."""
        try:
            changed = await self._reload()
        except (ConfigError, OSError, ValueError) as error:
            log_event(
                logging.WARNING, "reload_failed", f"the settings stay as they were: {error}", cause=error
            )
            raise
        keys = [each.key for each in changed]
        message = f"the settings were read again: {', '.join(keys) or 'no change'}"
        log_event(logging.INFO, "reload", message, changed=keys)
        return changed

    async def _reload(self) -> tuple[Change, ...]:
        async with self._one_at_a_time:
            config = await asyncio.to_thread(self._read, None)
            references = await asyncio.to_thread(read_references, config, self._environ)
            changed = changes(self._config, config)
            if restarting := [each.key for each in changed if each.needs_restart]:
                needs = "need" if len(restarting) > 1 else "needs"
                raise ConfigError(f"{', '.join(restarting)}: {needs} a restart")
            if (name := moved_between_pools(self._config, config)) is not None:
                raise ConfigError(f"pools.replicas: {name} changes its pool: give it another name there")
            try:
                self._follow(config, references)
            except Exception as error:
                _log.exception("new settings were not taken up")
                self._follow(self._config, self._references)
                raise ConfigError(f"the gateway failed to take them up: {error}") from error
            known, keys = self._references.files, {each.key for each in changed}
            anew = [key for key, digest in references.files.items() if known.get(key, digest) != digest]
            self._config, self._references = config, references
            return (*changed, *(read_anew(key) for key in anew if key not in keys))

    def routes(self) -> list[web.RouteDef]:
        return [web.post(DIFF_PATH, self._answer), web.post(RELOAD_PATH, self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        """400 if the text is wrong, 409 if the settings stay as they were."""
        is_reload = request.path == RELOAD_PATH
        try:
            changed = await (self.reload() if is_reload else self._would_change(request))
        except (ConfigError, OSError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=409 if is_reload else 400)
        return web.json_response({"changes": msgspec.to_builtins(changed)})

    async def _would_change(self, request: web.Request) -> tuple[Change, ...]:
        text = (await request.read()).decode()
        return changes(self._config, await asyncio.to_thread(self._read, text or None))


async def reload_on_signal(reload: Callable[[], Awaitable[tuple[Change, ...]]], record: Record) -> None:
    outcome = 200
    try:
        await reload()
    except (ConfigError, OSError, ValueError):
        outcome = 409
    record("SIGHUP", f"POST {RELOAD_PATH}", outcome)


def set_log_level(level: str) -> None:
    logging.getLogger("gateway").setLevel(level.upper())


def set_log_format(name: str, worker: int | None) -> None:
    if name == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter(worker))
