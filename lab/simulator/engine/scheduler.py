"""vLLM's scheduler, built without a model: what it decides needs none.

Its requests carry no token ids, only lengths, and take their block hashes from the workload.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.engine.plugin import biased
from lab.simulator.engine.turn import EngineTurn

_BYTES_PER_ELEMENT: Final = 2  # of bfloat16
_SAMPLING: Final = SamplingParams(max_tokens=1, ignore_eos=True)  # shared: requests set their own length
_NO_TOKENS: Final = bytearray()


class _Model:
    """What the scheduler asks of a model's configuration: plain text in, text out."""

    runner_type = "generate"
    model = "simulated"
    dtype = torch.bfloat16

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len = max_model_len

    def get_total_num_kv_heads(self) -> int:
        return 1  # as in the layer that stands for all of them

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False  # whatever else a model could be, this one is not


class _NoGrammar:
    """Stands in for vLLM's structured outputs, which no simulated turn uses."""

    def accept_tokens(self, request: Request, tokens: Sequence[int]) -> bool:
        return True


def build_scheduler(spec: EngineSpec, options: EngineOptions, kv_transfer: Any = None) -> Any:
    """As `vllm serve` would, with chunked prefill and prefix caching."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it says what it lacks for a model that it will never run
    try:
        cache = CacheConfig(block_size=options.block_size, enable_prefix_caching=True)
        cache.num_gpu_blocks = spec.kv_blocks
        config = VllmConfig(
            device_config=DeviceConfig(device="cpu"),
            cache_config=cache,
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=spec.profile.chunk_tokens,
                max_num_seqs=options.max_num_seqs,
                max_model_len=options.max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                async_scheduling=False,
                policy=options.scheduling_policy.value,
                scheduler_reserve_full_isl=options.reserve_full_prompt,
                watermark=options.watermark,
            ),
            kv_transfer_config=kv_transfer,
            additional_config=_plugin_settings(options.plugin),
        )
        config.model_config = _Model(options.max_model_len)
        # One layer with one head as wide as all of them: the bytes of a block are the model's.
        head_size = round(spec.profile.model.kv_bytes_per_token / 2 / _BYTES_PER_ELEMENT)
        layer = FullAttentionSpec(
            block_size=options.block_size, num_kv_heads=1, head_size=head_size, dtype=torch.bfloat16
        )
        blocks = KVCacheConfig(
            num_blocks=spec.kv_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
        )
        kind = Scheduler if options.plugin is None else biased(Scheduler)
        return kind(config, blocks, _NoGrammar(), block_size=options.block_size)
    finally:
        logging.disable(previous)


class _Keys:
    """A request's block hasher: those of the workload, as far as there are tokens."""

    __slots__ = ("_block_size", "_keys")

    def __init__(self, keys: Sequence[bytes], block_size: int) -> None:
        self._keys = keys
        self._block_size = block_size

    def __call__(self, request: Request) -> Sequence[bytes]:
        return self._keys[len(request.block_hashes) : request.num_tokens // self._block_size]


def _plugin_settings(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """No client reaches this engine: hints need no signature."""
    return {} if given is None else {"turnpike": {"signed_hints": False, **given}}


def _with_hint(hint: str) -> SamplingParams:
    """As a request's `vllm_xargs` become."""
    return SamplingParams(max_tokens=1, ignore_eos=True, extra_args={"turnpike": hint})


def build_request(turn: EngineTurn, *, block_size: int, priority: int) -> Any:
    """A request of the turn's length, with its number for an id: numbers hash the same in every process."""
    request = Request(
        turn.number,
        bytearray(turn.input_tokens),  # as a list of token ids, in an eighth of the memory
        _SAMPLING if turn.hint is None else _with_hint(turn.hint),
        None,
        arrival_time=turn.submitted_s,
        priority=priority,
        block_hasher=_Keys(turn.keys, block_size),
    )
    request.prompt_token_ids = _NO_TOKENS  # there is a copy; a model would read this one
    request.max_tokens = turn.output_tokens
    request.prefill_stats = None  # would count a request's blocks for statistics that nobody reads
    return request
