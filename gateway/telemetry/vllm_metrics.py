"""A vLLM's `/metrics`, as signals.

Only the lines of the few metrics that decisions are made from are read. Engines of one server (data parallel)
are added up. What is missing or unreadable is None; a server that is no vLLM has none of it.

Names as in vLLM 0.32: `vllm:cache_config_info` (a gauge whose labels are the configuration),
`vllm:kv_cache_usage_perc`, `vllm:num_requests_running` and `…_waiting`, `vllm:num_preemptions_total`,
`vllm:prefix_cache_queries_total` and `…_hits_total`, and the same of the external cache behind it,
`vllm:lora_requests_info` (whose value is when its labels were true). With native offload
(`--kv-offloading-size`): `vllm:kv_offload_store_bytes_total`. With
`turnpike-vllm`: `turnpike_engine_blocks`, by what they are used for.
"""

import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from gateway.domain.engine import EngineSignals

_LABEL: Final = re.compile(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')
_MAX_BYTES: Final = 8 << 20


def read_vllm_metrics(text: str) -> EngineSignals:
    """Never raises, whatever the text is."""
    sums: dict[str, float] = {}
    most_used: float | None = None
    kv_tokens = 0
    host_bytes = 0.0
    blocks: dict[str, float] = {}
    ranks: set[str] = set()
    loras: tuple[dict[str, str], float] = ({}, 0.0)
    for name, labels, value in _samples(text[:_MAX_BYTES]):
        if name == "cache_config_info":
            kv_tokens += _kv_tokens(labels)
            host_bytes += _host_bytes(labels)
        elif name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            most_used = max(most_used or 0.0, value)
        elif name == _LORAS:
            loras = max(loras, (labels, value), key=itemgetter(1))
        elif name == _BLOCKS:
            state = labels.get("state", "")
            blocks[state] = blocks.get(state, 0.0) + value
        else:
            if name == "num_requests_running":
                ranks.add(labels.get("engine", ""))
            sums[name] = sums.get(name, 0.0) + value
    total = blocks.get("total")
    retained = blocks["retained"] / total if total and "retained" in blocks else None
    if most_used is not None and retained is not None:
        most_used = max(0.0, most_used - retained)  # vLLM counts what is held as used
    stated = int(kv_tokens * blocks.get("host", 0.0) / max(1.0, total or 0.0))  # by `turnpike-vllm`
    most = loras[0].get("max_lora", "")
    return EngineSignals(
        kv_tokens=kv_tokens or None,
        host_kv_tokens=min(stated, _MOST) or _host_tokens(host_bytes, sums),
        kv_used=most_used,
        running=_whole(sums, "num_requests_running"),
        waiting=_whole(sums, "num_requests_waiting"),
        preemptions=_whole(sums, "num_preemptions_total"),
        ranks=_ranks(ranks),
        most_adapters=int(most) if most.isdecimal() and len(most) < 7 else None,
        adapters=tuple(filter(None, loras[0].get("running_lora_adapters", "").split(","))),
        kv_retained=retained,
        prefix_hit=_whole(sums, "prefix_cache_hits_total", "external_prefix_cache_hits_total"),
    )


def cache_settings(text: str) -> dict[str, str]:
    """The settings of its KV cache, by vLLM's own names; values as Python writes them. Never
    raises."""
    samples = _samples(text[:_MAX_BYTES])
    return next((labels for name, labels, _ in samples if name == "cache_config_info"), {})


_WANTED: Final = (
    "cache_config_info",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",  # its name before 0.10
    "num_requests_running",
    "num_requests_waiting",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_hits_total",
    "generation_tokens_total",
    "kv_offload_store_bytes_total",
    "lora_requests_info",
)
_LORAS: Final = "lora_requests_info"
_BLOCKS: Final = "turnpike_engine_blocks"
_SAMPLE: Final = re.compile(rf"^(vllm:(?:{'|'.join(_WANTED)})|{_BLOCKS})([{{ ].*)$", re.MULTILINE)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, rest in _SAMPLE.findall(text):
        labels, _, numbers = rest[1:].rpartition("}") if rest.startswith("{") else ("", "", rest)
        try:
            value = float(numbers.split()[0])
        except (ValueError, IndexError):
            continue
        if 0.0 <= value < 1e18:  # a NaN is none of it
            yield name.removeprefix("vllm:"), dict(_LABEL.findall(labels)), value


# Tokens; a greater number is nonsense, which must not overflow anywhere.
_MOST: Final = 1 << 53


def _kv_tokens(labels: dict[str, str]) -> int:
    """Blocks × tokens of a block, as configured; 0 if it is not reported."""
    try:
        return min(int(labels["num_gpu_blocks"]) * int(labels["block_size"]), _MOST)
    except (KeyError, ValueError):
        return 0


_GIB: Final = 1 << 30
# Stored in the host's memory, before its capacity is reported: of few tokens many are in blocks that are not
# full, which are not stored.
_ENOUGH_TOKENS: Final = 10_000


def _host_bytes(labels: dict[str, str]) -> float:
    """`--kv-offloading-size`; 0 if it is unset, or set in `--kv-transfer-config`, which vLLM does not
    report."""
    try:
        size = float(labels["kv_offloading_size"])
    except (KeyError, ValueError):
        return 0.0
    return size * _GIB if 0.0 < size < _MOST / _GIB else 0.0


def _host_tokens(host_bytes: float, sums: dict[str, float]) -> int | None:
    """Tokens that fit into the host's memory, to two digits, so that the value is stable. An engine does not
    report the bytes of a token: it stores what it computes, so they follow from both sums."""
    queried, generated = sums.get("prefix_cache_queries_total", 0.0), sums.get("generation_tokens_total", 0.0)
    found = sums.get("prefix_cache_hits_total", 0.0) + sums.get("external_prefix_cache_hits_total", 0.0)
    computed, stored = queried - found + generated, sums.get("kv_offload_store_bytes_total", 0.0)
    if not host_bytes or not stored or computed < _ENOUGH_TOKENS:
        return None
    return int(min(float(f"{host_bytes * computed / stored:.1e}"), _MOST))


# Of one server; a greater number is nonsense, and each new session looks at all of them.
_MOST_RANKS: Final = 1024


def _ranks(labels: set[str]) -> int | None:
    """Engines are numbered from 0; with other labels, which of them requests can be sent to is not known."""
    count = len(labels)
    if not count:
        return None
    return count if count <= _MOST_RANKS and labels == set(map(str, range(count))) else 1


def _whole(sums: dict[str, float], *names: str) -> int | None:
    if names[0] not in sums:
        return None
    return int(sum(sums.get(name, 0.0) for name in names))
