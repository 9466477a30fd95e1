"""vLLM's native offload to host memory, as far as the host tier touches it.

What is on the host, how fast copies are, and how to bring something back. The connector copies blocks out by
itself, as they are computed. It copies back only for a request that waits: ``get_num_new_matched_tokens`` and
``update_state_after_alloc`` are called nowhere but in the scheduler's ``schedule()``. So a call is a request:
it carries the tokens of the thread's last turn, is put behind all that wait, and is aborted in the step in
which its load was issued, as if its client had gone. vLLM then keeps its blocks until the copy is there, and
frees them through ``_free_blocks``, where they get their hashes and are held. It never runs. The connector
knows no load that failed: its worker asserts that there is none.
"""

import importlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

NOT_CONFIGURED = "no KV offload is configured"
PREFIX = "turnpike-call-"
"""Of the ids of these requests."""
LAST = 1 << 31
"""Behind every priority."""


_CONFIG = ("kv_group_configs", "blocks_per_chunk", "tokens_per_hash", "offload_prompt_only")


class Luggage(NamedTuple):
    """What it takes to find a thread's blocks again."""

    tokens: Sequence[int]
    hashes: Sequence[Any]
    on_host: int
    """Blocks that the host can have: it copies whole chunks, and not what the last token is in."""
    like: Any
    """The request whose they were, without its tokens: adapter, salt, client."""


class Likeness(NamedTuple):
    lora_request: Any
    cache_salt: str | None
    client_index: int


class HostCopies:
    """Around ``scheduler.connector``."""

    def __init__(self, scheduler: Any) -> None:
        base = importlib.import_module("vllm.v1.kv_offload.base")
        side = scheduler.connector.connector_scheduler
        group = side.config.kv_group_configs[0]
        spec = scheduler.kv_cache_config.kv_cache_groups[0]
        self.scheduler = scheduler
        self.manager = side.manager
        self.bytes_per_block: int = spec.kv_cache_spec.page_size_bytes * len(spec.layer_names)
        self.blocks_per_chunk: int = side.config.blocks_per_chunk
        self.blocks: int = getattr(side.manager, "_num_chunks", 0) * self.blocks_per_chunk
        """That the host holds, in the device's size; 0 where this vLLM does not say."""
        self.is_prompt_only: bool = side.config.offload_prompt_only
        """What a model said is copied only once it is part of the next prompt."""
        self._group: int = group.group_idx
        self._key: Callable[[Any, int], Any] = base.make_offload_key
        self._hit = base.LookupResult.HIT
        self._nobody = base.ReqContext(req_id="turnpike")
        self._request = importlib.import_module("vllm.v1.request").Request
        self._sampling = importlib.import_module("vllm.sampling_params").SamplingParams
        self._count = 0

    @staticmethod
    def missing_features(scheduler: Any) -> str | None:
        """Why this scheduler's connector cannot be used; None if it can."""
        connector = getattr(scheduler, "connector", None)
        if connector is None:
            return NOT_CONFIGURED
        side = getattr(connector, "connector_scheduler", None)
        config = getattr(side, "config", None)
        manager = getattr(side, "manager", None)
        if type(connector).__name__ != "OffloadingConnector" or config is None:
            return f"{type(connector).__name__} is not vLLM's native offload"
        if type(manager).__name__ != "CPUOffloadingManager":
            return f"the host's blocks are kept by {type(manager).__name__}"
        lacks = [
            name
            for owner, name in (
                *((config, each) for each in (*_CONFIG,)),
                *((connector, each) for each in ("update_connector_output",)),
                *((scheduler, each) for each in ("finish_requests", "finished_recving_kv_req_ids")),
                (scheduler.kv_cache_manager, "cache_blocks"),
            )
            if not hasattr(owner, name)
        ]
        if lacks:
            return f"this vLLM has no {', '.join(lacks)}"
        groups = scheduler.kv_cache_config.kv_cache_groups
        if len(groups) != 1 or type(groups[0].kv_cache_spec).__name__ != "FullAttentionSpec":
            return "not one group of full attention"
        if config.tokens_per_hash != scheduler.block_size:
            return "hashes are not by block"
        return None

    def watched(
        self, observe: Callable[[bool, float, float], None], safely: Callable[[Callable[[], None]], Any]
    ) -> tuple[Any, Callable[..., Any]]:
        """The connector, and its ``update_connector_output`` with ``observe(to_host, bytes, seconds)`` called
        for what the workers say they copied."""
        connector = self.scheduler.connector
        original = connector.update_connector_output

        def told(output: Any) -> None:
            stats = getattr(getattr(output, "kv_connector_worker_meta", None), "transfer_stats", None)
            for to_host, copied in (
                (True, getattr(stats, "store", None)),
                (False, getattr(stats, "load", None)),
            ):
                if copied is not None and copied.bytes:
                    observe(to_host, copied.bytes, copied.time)

        def update_connector_output(output: Any, *args: Any, **kwargs: Any) -> Any:
            safely(lambda: told(output))
            return original(output, *args, **kwargs)

        return connector, update_connector_output

    def luggage(self, request: Any, blocks: int) -> Luggage | None:
        """Of a request that has ended; None if its prompt is not text alone."""
        if getattr(request, "mm_features", None) or getattr(request, "prompt_embeds", None) is not None:
            return None
        size, chunk = self.scheduler.block_size, self.blocks_per_chunk
        # The connector does not copy the slot of the last token, nor what is left of a chunk.
        tokens = max(request.num_prompt_tokens, request.num_tokens - 1)
        tokens = request.num_prompt_tokens if self.is_prompt_only else tokens
        stored = min(blocks, tokens // size) // chunk * chunk
        return Luggage(
            array("i", request.all_token_ids[: blocks * size]),
            list(request.block_hashes[:blocks]),
            stored,
            Likeness(request.lora_request, request.cache_salt, request.client_index),
        )

    def missing(self, luggage: Luggage) -> int:
        """Blocks at its end of which the host has no copy yet: those are copied last."""
        count, chunk = 0, self.blocks_per_chunk
        while count < luggage.on_host and not self._has(luggage, luggage.on_host - count):
            count += chunk
        return count

    def has_all(self, luggage: Luggage) -> bool:
        """Whether the host could give back everything. The last block, which is copied last, is looked at
        first."""
        chunk = self.blocks_per_chunk
        return all(self._has(luggage, end) for end in range(luggage.on_host, 0, -chunk))

    def call(self, luggage: Luggage) -> Any:
        """A request that makes the connector load what is missing here."""
        self._count += 1
        like: Likeness = luggage.like
        return self._request(
            request_id=f"{PREFIX}{self._count}",
            # Two more tokens, so that what is loaded is never all of it, nor all but a token to decode.
            prompt_token_ids=[*luggage.tokens[: luggage.on_host * self.scheduler.block_size], 0, 0],
            sampling_params=self._sampling(max_tokens=1, temperature=0.0),
            pooling_params=None,
            client_index=like.client_index,
            arrival_time=float("inf"),
            lora_request=like.lora_request,
            cache_salt=like.cache_salt,
            priority=LAST,
            block_hasher=lambda request: (
                [] if request.block_hashes else list(luggage.hashes[: luggage.on_host])
            ),
        )

    def _has(self, luggage: Luggage, end: int) -> bool:
        """Whether the host has the chunk whose last block is the ``end``-th."""
        key = self._key(luggage.hashes[end - 1], self._group)
        return self.manager.lookup(key, self._nobody) is self._hit
