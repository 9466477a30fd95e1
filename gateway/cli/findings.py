"""What was seen of a backend, in sentences: what is there, what is missing, what that would gain (pure)."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from gateway.cli.examine import LONG_PREFILL, SHORT_PREFILL, BackendProbe, CacheProbe
from gateway.domain.engine import EngineSignals
from gateway.upstream.health_probes import NO_ENGINE

_PLUGIN: Final = (
    "VLLM_PLUGINS=turnpike vllm serve MODEL --scheduler-cls turnpike_vllm.scheduler.TurnpikeScheduler "
    "(with turnpike-vllm installed there: docs/guide/install.md)"
)
_PLUGIN_GAIN: Final = (
    "it keeps a session's KV cache while its tools run, and runs the turn first that should be first; it "
    "pays where strangers' requests or background work share the engine, not beside --kv-offloading-size"
)
_FULL: Final = 0.95


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    level: Literal["ok", "off", "bad"]
    """`off`: it works, and something would be gained; `bad`: the gateway cannot use it so."""
    what: str
    gain: str | None = None
    do: str | None = None
    """The flag or setting to add."""


NO_CACHED: Final = Finding(
    level="off",
    what="answers do not say how many prompt tokens were cached",
    gain="the gateway knows what each turn found, and what a session's KV cache saved",
    do="vllm serve … --enable-prompt-tokens-details",
)

NOT_PROBED: Final = msgspec.structs.replace(
    NO_CACHED,
    what="whether answers say how many prompt tokens were cached was not looked at",
    do=f"turnpike doctor --ask has it generate two tokens to see; if not: {NO_CACHED.do}",
)


def findings(seen: BackendProbe, *, role: str = "both", transfer: str | None = None) -> list[Finding]:
    """`role`, `transfer`: what the settings say of it and its pool."""
    return sorted(_findings(seen, role, transfer), key=lambda each: each.level == "off")


def _findings(seen: BackendProbe, role: str, transfer: str | None) -> Iterator[Finding]:
    if seen.facts is None:
        what = f"does not answer: {seen.why_down}"
        do = "start it, or check the address and that this machine reaches it"
        if seen.why_down.startswith(NO_ENGINE):
            what, _, do = seen.why_down.partition(": ")
        if "expired" in seen.why_down:
            do = "renew the engine's certificate"
        names_setting = "upstream.ca_file" in seen.why_down
        yield Finding(level="bad", what=what, do=None if names_setting else do)
        return
    abilities = seen.facts.abilities
    is_vllm = abilities.engine == "vllm"
    if is_vllm:
        yield Finding(level="ok", what=f"vLLM {abilities.version}")
    else:
        gain = "a vLLM says how full its KV cache is, so that admission and placement go by it"
        what = "not vLLM: proxied, sessions tracked, load-balanced"
        yield Finding(level="off", what=what, gain=gain)
    yield _models(seen)
    if transfer is not None:
        yield Finding(level="ok", what=f"role {role}, in a pool that hands prompts over by {transfer}")
    if is_vllm:
        yield from _vllm(seen)
    elif seen.cache_probe is not None and not 0 < seen.cache_probe.status < 500:
        yield _cache_finding(seen.cache_probe)


def _models(seen: BackendProbe) -> Finding:
    if seen.wants_key:
        do = 'api_key_env = "VARIABLE" beside its url, and the key in that variable'
        return Finding(level="bad", what=f"wants an API key ({seen.models_status})", do=do)
    if not seen.models:
        do = "name them: models = [...] of its pool"
        return Finding(
            level="off", what="lists no models", gain="requests are sent where their model is", do=do
        )
    context = f" (context {seen.max_tokens} tokens)" if seen.max_tokens is not None else ""
    return Finding(level="ok", what=f"serves {', '.join(seen.models)}{context}")


def _vllm(seen: BackendProbe) -> Iterator[Finding]:
    """What is cheap to add first; but where the KV cache is full, what that needs."""
    full = _full(seen.signals)
    if full and _has_no_offload(seen):
        yield _offload(seen, full)
    yield _cache_finding(seen.cache_probe) if seen.cache_probe is not None else NOT_PROBED
    if seen.signals is None:
        do = "let the gateway read /metrics"
        gain = "admission follows the engine's KV cache; without it, it goes by what answers say"
        yield Finding(level="off", what="/metrics is not there", gain=gain, do=do)
    else:
        yield _prefix_caching(seen)
        if 0 < seen.prefills[1] < seen.prefills[0]:
            yield _long_prefills(*seen.prefills)
        if not full or not _has_no_offload(seen):
            yield _offload(seen, "")
    yield _events(seen)
    yield from _plugin(seen)


def _full(signals: EngineSignals | None) -> str:
    """How one sees that the KV cache is full; empty if it is not."""
    if signals is None or not (signals.preemptions or (signals.kv_used or 0.0) >= _FULL):
        return ""
    used = f"{100 * (signals.kv_used or 0.0):.0f} % in use"
    return f"the KV cache is full ({used}, {signals.preemptions or 0} preemptions since its start), and "


def _long_prefills(short: int, long: int) -> Finding:
    return Finding(
        level="off",
        what=f"{long} prefills of over {LONG_PREFILL} tokens among {short} of up to {SHORT_PREFILL}",
        gain="a short turn's first token does not wait until a long prompt is computed",
        do="vllm serve … --long-prefill-token-threshold 1024 (its value is not reported; 0, off, by default)",
    )


def _plugin(seen: BackendProbe) -> Iterator[Finding]:
    state = str(seen.plugin.get("state")) if seen.plugin is not None else None
    if state in ("awake", "asleep"):
        yield Finding(level="ok", what=f"plugin turnpike-vllm: {state}")
    elif state is None:
        yield Finding(level="off", what="plugin turnpike-vllm is not loaded", gain=_PLUGIN_GAIN, do=_PLUGIN)
    else:
        assert seen.plugin is not None
        why = f": {seen.plugin['why']}" if seen.plugin.get("why") else ""
        do = f"{_PLUGIN}; turnpike-vllm doctor says more"
        yield Finding(level="off", what=f"plugin turnpike-vllm: {state}{why}", gain=_PLUGIN_GAIN, do=do)


def _prefix_caching(seen: BackendProbe) -> Finding:
    if seen.cache.get("enable_prefix_caching") == "False":
        return Finding(
            level="off",
            what="prefix caching is off",
            gain="the next turn of a session computes only what is new, not the whole conversation",
            do="vllm serve … --enable-prefix-caching",
        )
    tokens = seen.signals.kv_tokens if seen.signals is not None else None
    room = f", room for {tokens} tokens" if tokens is not None else ""
    return Finding(level="ok", what=f"prefix caching is on{room}")


def _has_no_offload(seen: BackendProbe) -> bool:
    return seen.cache.get("kv_offloading_size", "None") in ("None", "") and not (
        seen.plugin is not None and seen.plugin.get("blocks", {}).get("host")
    )


def _offload(seen: BackendProbe, full: str) -> Finding:
    if not _has_no_offload(seen):
        size = seen.cache.get("kv_offloading_size", "None")
        return Finding(level="ok", what=f"KV offload: {'on' if size in ('None', '') else f'{size} GiB'}")
    return Finding(
        level="off",
        what=f"{full}no KV offload to the host's memory",
        gain="the cheapest remedy for a full cache: conversations that leave the device are copied back,\n"
        "not computed again; 4.7 × the sessions an hour (Claude Code as recorded, simulated H200)",
        do="vllm serve … --kv-offloading-size GIB",
    )


def _events(seen: BackendProbe) -> Finding:
    if seen.publishes_events:
        return Finding(level="ok", what="KV events: somebody publishes at kv_events.endpoint")
    if seen.publishes_events is not None:
        return Finding(
            level="bad",
            what="KV events: nobody publishes at kv_events.endpoint",
            do="start the engine with the flag below, or take kv_events out of the settings\n" + _EVENTS,
        )
    return Finding(
        level="off",
        what="KV events are not listened to",
        gain="which session's KV cache it holds is known, not estimated",
        do=_EVENTS + '\nand kv_events = { endpoint = "tcp://HOST:5557" } beside its url',
    )


_EVENTS: Final = (
    "vllm serve … --kv-events-config "
    """'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'"""
)


def _cache_finding(probe: CacheProbe) -> Finding:
    if probe.status != 200:
        return Finding(
            level="bad", what=f"a request for one token was answered with {probe.status or 'nothing'}"
        )
    if probe.reports_cached:
        return Finding(level="ok", what="answers say how many prompt tokens were cached")
    if probe.was_cached is False:
        return Finding(level="off", what="a prompt that was sent twice was not found in the cache")
    return NO_CACHED
