"""Engine signals: each vLLM's own metrics.

`/metrics` of every vLLM that is up is read about once a second; while somebody looks, of one with the plugin
also what its features did and what it holds of each session. After a missing page or a time-out the next
attempt comes later; nothing depends on the answer.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import aiohttp
import msgspec
from msgspec import Meta

from gateway.config.upstream import UpstreamConfig
from gateway.domain.engine import EngineSignals, PluginFeature, PluginReport, SessionKv
from gateway.domain.fleet import Abilities
from gateway.domain.ids import ReplicaId, SessionId
from gateway.telemetry.vllm_metrics import read_vllm_metrics
from gateway.upstream.replica import Replica, open_session

_MAX_BYTES: Final = 2 << 20
# Periods until the next attempt at a replica that did not answer.
_LOOK_AGAIN: Final = 30.0


class _Blocks(msgspec.Struct):
    retained: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    resident: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class _Snapshot(msgspec.Struct):
    """Of `GET /turnpike/kv`, what is wanted here."""

    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    sessions: dict[str, _Blocks]
    features: dict[str, str] = {}
    acted: dict[str, Annotated[int, Meta(ge=0, le=1 << 53)]] = {}
    saved_s: dict[str, float] = {}


_snapshot: Final = msgspec.json.Decoder(_Snapshot)
_MOST_FEATURES: Final = 32


class EngineWatch:
    def __init__(
        self,
        replicas: Mapping[ReplicaId, Replica],
        config: UpstreamConfig,
        *,
        abilities: Callable[[ReplicaId], Abilities],
        on_report: Callable[[ReplicaId, EngineSignals], None],
        on_plugin: Callable[[ReplicaId, PluginReport], None] = lambda *_: None,
        is_looked_at: Callable[[], bool] = lambda: False,
    ) -> None:
        """`abilities`: none of a replica that is down; `is_looked_at`: whether anybody wants to know of the
        plugin."""
        self._replicas = replicas
        self._config = config
        self._abilities = abilities
        self._on_report = on_report
        self._on_plugin = on_plugin
        self._is_looked_at = is_looked_at
        self._session: aiohttp.ClientSession | None = None

    def apply_config(self, config: UpstreamConfig) -> None:
        self._config = config

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def watch(self, replica: Replica) -> None:
        while self._replicas.get(replica.id) is replica:
            pause_s = self._config.engine_period_s
            if self._abilities(replica.id).engine == "vllm":
                metrics = await self._get(replica, "/metrics")
                if metrics is None:
                    pause_s *= _LOOK_AGAIN
                elif self._abilities(replica.id).engine == "vllm":  # still
                    self._on_report(replica.id, read_vllm_metrics(metrics.decode(errors="replace")))
                if self._abilities(replica.id).turnpike_hints and self._is_looked_at():
                    report = await self._fetch_report(replica)
                    if self._abilities(replica.id).turnpike_hints:
                        self._on_plugin(replica.id, report)
            await asyncio.sleep(pause_s)

    async def _fetch_report(self, replica: Replica) -> PluginReport:
        content = await self._get(replica, "/turnpike/kv")
        try:
            snapshot = _snapshot.decode(content or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return PluginReport()
        features = tuple(
            PluginFeature(
                name=name, state=state, acted=snapshot.acted.get(name), saved_s=snapshot.saved_s.get(name)
            )
            for name, state in list(snapshot.features.items())[:_MOST_FEATURES]
        )
        sessions = tuple(
            SessionKv(
                session=SessionId(name),
                resident_tokens=blocks.resident * snapshot.block_size,
                retained_tokens=blocks.retained * snapshot.block_size,
            )
            for name, blocks in snapshot.sessions.items()
            if blocks.resident or blocks.retained
        )
        return PluginReport(features=features, sessions=sessions)

    async def _get(self, replica: Replica, path: str) -> bytes | None:
        if self._session is None:
            self._session = open_session(self._config.health_timeout_s)
        try:
            async with replica.ask(self._session, "GET", path) as response:
                if response.status != 200:
                    return None
                content = await response.content.read(_MAX_BYTES)
                while not response.content.at_eof() and len(content) < _MAX_BYTES:
                    content += await response.content.read(_MAX_BYTES - len(content))
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        return content
