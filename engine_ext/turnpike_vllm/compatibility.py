"""In which configurations of vLLM was each feature tried? Elsewhere it is off, and says why.

An allow-list, read when the server starts. What is on here runs against stock vLLM's schedulers, token by
token, in ``tests/engine_ext/test_configurations.py``.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

# ``headroom`` belongs to the coordinator.
FEATURES: Final = ("coordinator", "headroom", "retention", "classes")
_ORDER: Final = frozenset({"coordinator"})
_ALL: Final = frozenset(FEATURES)
_CONNECTORS: Final = ("OffloadingConnector", "ExampleConnector")
_OTHER_CONNECTOR: Final = "not tried with it; name it in `connectors` if you have"


class Condition(NamedTuple):
    name: str
    has: Callable[[Any], bool]
    """Of a scheduler."""
    tried: frozenset[str]
    why: str = "not tried with it"
    """About the others."""


def _get(scheduler: Any, path: str, default: Any = None) -> Any:
    found = scheduler
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            return default
    return found


def _specs(scheduler: Any) -> list[str]:
    groups = _get(scheduler, "kv_cache_config.kv_cache_groups", ())
    return [type(group.kv_cache_spec).__name__ for group in groups]


def connector_of(scheduler: Any) -> str | None:
    connector = _get(scheduler, "connector")
    return None if connector is None else type(connector).__name__


def _is_more(path: str) -> Callable[[Any], bool]:
    return lambda scheduler: _get(scheduler, path, 1) > 1


CONDITIONS: Final = (
    Condition(
        "LoRA",
        lambda it: _get(it, "lora_config") is not None,
        _ALL - {"headroom"},
        "whoever waits may wait for its adapter's place, not for room",
    ),
    Condition(
        "Mamba layers",
        lambda it: any("Mamba" in name for name in _specs(it)),
        _ORDER,
        "chunks must end where Mamba state is kept",
    ),
    Condition(
        "attention other than full, latent or in a sliding window",
        lambda it: (
            not all(
                name in ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec") or "Mamba" in name
                for name in _specs(it)
            )
        ),
        _ORDER,
    ),
    Condition("hashes that are not by block", lambda it: _hash_size(it) != it.block_size, _ORDER),
    Condition(
        "a KV connector that was not tried",
        lambda it: connector_of(it) not in (None, *_CONNECTORS),
        _ORDER,
        _OTHER_CONNECTOR,
    ),
    Condition("context parallelism", _is_more("dcp_world_size"), frozenset()),
    Condition("context parallelism of prompts", _is_more("pcp_world_size"), frozenset()),
    Condition("an encoder-decoder", lambda it: bool(_get(it, "is_encoder_decoder")), frozenset()),
    Condition("an encoder alone", lambda it: bool(_get(it, "is_mm_encoder_only")), frozenset()),
    Condition("an encoder cache elsewhere", lambda it: _get(it, "ec_connector") is not None, frozenset()),
    Condition(
        "pooling", lambda it: _get(it, "vllm_config.model_config.runner_type") == "pooling", frozenset()
    ),
    Condition("diffusion", lambda it: _get(it, "vllm_config.diffusion_config") is not None, frozenset()),
)


def _hash_size(scheduler: Any) -> int:
    return int(_get(scheduler, "hash_block_size", scheduler.block_size))


def reasons(scheduler: Any, connectors: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """(Feature, why it is off in this configuration). ``connectors``: those that the operator has tried."""
    for condition in CONDITIONS:
        if condition.why == _OTHER_CONNECTOR and connector_of(scheduler) in connectors:
            continue
        if condition.has(scheduler):
            for name in FEATURES:
                if name not in condition.tried:
                    yield name, f"{condition.name}: {condition.why}"
