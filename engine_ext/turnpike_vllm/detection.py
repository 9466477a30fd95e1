"""What of the settings can this vLLM's scheduler carry out? Looked for once, when the server starts.

A seam that is missing switches off the features that need it; so does a configuration in which they were not
tried (`compatibility.py`). Nothing here imports vLLM.
"""

from dataclasses import fields, replace
from typing import Any

from turnpike_vllm.compatibility import FEATURES, reasons
from turnpike_vllm.retain.pool import KvPool
from turnpike_vllm.settings import SWITCHED_OFF, Settings, SettingsError
from turnpike_vllm.waiting import RankedQueue

# Runs for every request of a step before its blocks are allocated, and may make its chunk smaller.
CHUNK_SEAM = "_reserve_prefill_lookahead"
# They are off without it, which vLLM has from 0.28 on.
CHUNK_FEATURES = ("classes", "headroom")
# Methods of vLLM's scheduler that are wrapped.
SEAMS = (
    *("schedule", "update_from_output", "add_request", "reset_prefix_cache", "_free_blocks"),
    *("_preempt_request", CHUNK_SEAM),
)
_NEEDED = (
    *("running", "waiting", "requests", "block_size", "num_spec_tokens"),
    *("max_num_running_reqs", "max_num_scheduled_tokens"),
    *(name for name in SEAMS if name != CHUNK_SEAM),
)


def detect(scheduler: Any, settings: Settings, queue_class: type[Any]) -> tuple[Settings, dict[str, str]]:
    """What of the settings this scheduler can carry out, and feature → "on" or why it is off.

    ``queue_class``: what vLLM's waiting queues are. Raises `SettingsError` if it can carry out nothing."""
    lacks = [name for name in _NEEDED if not hasattr(scheduler, name)]
    lacks += KvPool.missing_features(getattr(scheduler, "kv_cache_manager", None))
    if lacks:
        raise SettingsError(f"this vLLM has no {', '.join(lacks)}")
    why: dict[str, str] = {}

    def off(reason: str | None, *names: str) -> None:
        for name in names if reason else ():
            why.setdefault(name, reason or "")

    if not isinstance(scheduler.waiting, queue_class):
        off("the waiting queue is of another kind", "coordinator", "classes")
    off(missing_of_queue(queue_class), "coordinator")
    if not hasattr(scheduler, CHUNK_SEAM):
        off("no seam for chunk sizes", *CHUNK_FEATURES)
    if not scheduler.kv_cache_manager.enable_caching:
        off("prefix caching is off", "retention")
    for name, reason in reasons(scheduler, settings.connectors):
        off(reason, name)
    if settings.coordinator is None or "coordinator" in why:
        off(why.get("coordinator", "switched off"), "headroom")
    none: dict[str, Any] = {each.name: None for each in fields(settings) if each.name in why}
    features = {
        name: why.get(name) or ("on" if getattr(settings, name, True) is not None else SWITCHED_OFF)
        for name in FEATURES
    }
    return replace(settings, **none), features


def missing_of_queue(base: type[Any]) -> str | None:
    """What vLLM's waiting queues have and ours has not: as its subclass, it could not even be made."""
    wanted: frozenset[str] = getattr(base, "__abstractmethods__", frozenset())
    lacks = [name for name in sorted(wanted) if not callable(getattr(RankedQueue, name, None))]
    return f"our queue has no {', '.join(lacks)}" if lacks else None
