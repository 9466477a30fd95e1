"""What the simulated vLLM is configured with."""

from dataclasses import dataclass
from typing import Any

from lab.engine import tiny_model
from lab.engine.simulated_host import transfer_config


@dataclass
class Parts:
    """Arguments of vLLM's configurations, and its groups of layers that share KV blocks."""

    model: dict[str, Any]
    cache: dict[str, Any]
    scheduler: dict[str, Any]
    others: dict[str, Any]
    """Of ``VllmConfig``."""
    kv_groups: list[Any]
    is_async: bool = True
    """Whether steps overlap."""


def default_parts(options: Any, kv_group: Any, bytes_per_block: int) -> Parts:
    # Nobody but whoever drives it can hint here.
    given = options.turnpike
    turnpike = False if given is False else {"signed_hints": False, **(given or {})}
    others: dict[str, Any] = {"additional_config": {"turnpike": turnpike}}
    if options.host is not None:
        others["kv_transfer_config"] = transfer_config(options.host, bytes_per_block)
    return Parts(
        model={
            "model": str(tiny_model.build()),
            "dtype": "float32",
            "max_model_len": options.max_model_len,
            "seed": 0,
        },
        cache={
            "block_size": options.block_size,
            "gpu_memory_utilization": 0.5,
            "enable_prefix_caching": True,
        },
        scheduler={
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_batched_tokens,
            "max_model_len": options.max_model_len,
            "enable_chunked_prefill": True,
            "is_encoder_decoder": False,
            "policy": options.policy,
            "scheduler_reserve_full_isl": options.reserve_full_input,
        },
        others=others,
        kv_groups=[kv_group],
    )
