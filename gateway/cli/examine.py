"""One look at a backend from outside: is it up, what is it, how is it set up?

Requests are those of the gateway's own health checks (`health_probes.py`), `/metrics` and the plugin's state.
Nothing is generated, unless that is wanted: then one short prompt is sent twice, to see whether the second
one is found in the cache, and whether answers report it.
"""

import asyncio
import contextlib
import re
from collections import Counter
from math import inf
from typing import Any, Final

import aiohttp
import msgspec

from gateway.config.upstream import KvEventsConfig, UpstreamConfig
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaFacts
from gateway.telemetry.vllm_metrics import cache_settings, read_vllm_metrics
from gateway.upstream.health_probes import HealthChecks
from gateway.upstream.replica import Replica, open_session

_MAX_BYTES: Final = 2 << 20
SHORT_PREFILL: Final = 1_000
LONG_PREFILL: Final = 10_000
_BUCKET: Final = (
    r'^vllm:request_prefill_kv_computed_tokens_bucket\{.{0,400}\ble="(\d+\.0|\+Inf)".{0,400}\} (\d+)'
)
_COMPUTED: Final = re.compile(_BUCKET, re.MULTILINE)
# Longer than a KV block of any usual size.
_PROMPT: Final = "Turnpike asks whether this prompt is cached. " * 40


class CacheProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the second of two equal requests."""

    status: int
    reports_cached: bool
    """The answer has the number of prompt tokens from the cache."""
    was_cached: bool | None
    """As the engine counts; None if it does not."""


class BackendProbe(msgspec.Struct, frozen=True, kw_only=True):
    facts: ReplicaFacts | None = None
    """None if it is down."""
    why_down: str = ""
    models_status: int = 0
    max_tokens: int | None = None
    """Of a conversation with its first model."""
    plugin: dict[str, Any] | None = None
    """The answer of `/turnpike/kv`; None if there is no such path."""
    signals: EngineSignals | None = None
    cache: dict[str, str] = {}
    """By vLLM's own names."""
    prefills: tuple[int, int] = (0, 0)
    """Requests for which it computed at most `SHORT_PREFILL` tokens, and more than `LONG_PREFILL`."""
    publishes_events: bool | None = None
    """Somebody listens where KV events are to come from; None if the settings name no place."""
    cache_probe: CacheProbe | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return self.facts.models if self.facts is not None else ()

    @property
    def wants_key(self) -> bool:
        return self.models_status in (401, 403)


async def examine(
    replica: Replica, config: UpstreamConfig, *, kv_events: KvEventsConfig | None, may_generate: bool
) -> BackendProbe:
    """`may_generate`: two tokens, to test the cache."""
    facts, why = await _checked(replica, config)
    if facts is None:
        return BackendProbe(why_down=why)
    async with open_session(config.health_timeout_s) as session:
        status, listing = await _fetch(session, replica, "/v1/models")
        plugin_status, plugin = await _fetch(session, replica, "/turnpike/kv")
        metrics = await _metrics(session, replica)
        cache_probe = (
            await _probe_cache(session, replica, facts.models[0]) if may_generate and facts.models else None
        )
    return BackendProbe(
        facts=facts,
        models_status=status,
        max_tokens=_max_tokens(_json(listing)),
        plugin=state if plugin_status == 200 and isinstance(state := _json(plugin), dict) else None,
        signals=read_vllm_metrics(metrics) if "vllm:" in metrics else None,
        cache=cache_settings(metrics),
        prefills=_prefills(metrics),
        publishes_events=await _listens(kv_events.endpoint) if kv_events is not None else None,
        cache_probe=cache_probe,
    )


async def _checked(replica: Replica, config: UpstreamConfig) -> tuple[ReplicaFacts | None, str]:
    found: list[tuple[ReplicaFacts | None, str]] = []
    checks = HealthChecks(
        {replica.id: replica},
        msgspec.structs.replace(config, failures_until_down=1),
        on_up=lambda facts: found.append((facts, "")),
        on_down=lambda _, why: found.append((None, why)),
        has_several_pools=False,
    )
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(checks.watch(replica))
            await checks.checked(5 * config.health_timeout_s)  # a check sends up to five requests
            watching.cancel()
    finally:
        await checks.close()
    return found[0] if found else (None, "timed out")


async def _fetch(
    session: aiohttp.ClientSession, replica: Replica, path: str, content: bytes | None = None
) -> tuple[int, bytes]:
    """The status, 0 for none, and the body, cut to a bound."""
    method, body = "GET" if content is None else "POST", bytearray()
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with replica.ask(session, method, path, content=content) as answer:
            async for some in answer.content.iter_any():
                body += some
                if len(body) > _MAX_BYTES:
                    break
            return answer.status, bytes(body)
    return 0, b""


async def _metrics(session: aiohttp.ClientSession, replica: Replica) -> str:
    status, body = await _fetch(session, replica, "/metrics")
    return body.decode(errors="replace") if status == 200 else ""


def _prefills(metrics: str) -> tuple[int, int]:
    counts: Counter[float] = Counter()  # of all its engines together
    for most, count in _COMPUTED.findall(metrics):
        counts[float(most)] += int(count)
    return counts[SHORT_PREFILL], counts[inf] - counts[LONG_PREFILL] if LONG_PREFILL in counts else 0


async def _probe_cache(session: aiohttp.ClientSession, replica: Replica, model: str) -> CacheProbe:
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": _PROMPT}]}
    content, before, status, reply = msgspec.json.encode(body), None, 0, None
    for _ in range(2):
        before = read_vllm_metrics(await _metrics(session, replica)).prefix_hit
        answered, answer = await _fetch(session, replica, "/v1/chat/completions", content)
        if answered:
            status, reply = answered, _json(answer)
    after = read_vllm_metrics(await _metrics(session, replica)).prefix_hit
    usage = reply.get("usage") if isinstance(reply, dict) else None
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return CacheProbe(
        status=status,
        reports_cached=isinstance(details, dict) and "cached_tokens" in details,
        was_cached=after > before if after is not None and before is not None else None,
    )


async def _listens(endpoint: str) -> bool:
    """Of `tcp://`; others are taken to be there."""
    scheme, _, where = endpoint.partition("://")
    host, _, port = where.rpartition(":")
    if scheme != "tcp" or not port.isdecimal():
        return True
    try:
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _max_tokens(listing: Any) -> int | None:
    data = listing.get("data") if isinstance(listing, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    most = first.get("max_model_len") if isinstance(first, dict) else None
    return most if isinstance(most, int) else None


def _json(body: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return msgspec.json.decode(body)
    return None
