"""vLLM's native offload to host memory without a device: copies take virtual time, the rest is real.

The connector's scheduler side decides what is stored, loaded, evicted on the host, and which copies a step
must wait for. What its workers would do is here: two links, one each way, that copy one job after the other
and report what is done.
"""

import importlib
from dataclasses import dataclass, field
from typing import Any

EMPTY_STEP_S = 0.001
"""While nothing can run, the engine's loop turns, and looks whether copies are done."""


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    blocks: int
    """As many fit into it."""
    bytes_per_token: int = 96 << 10
    """As Qwen3-Coder-30B-A3B has them."""
    bytes_per_s: float = 25e9
    """Each way; what SAGA (§9.1.2) takes PCIe Gen4 to sustain."""
    latency_s: float = 0.0005
    """Of each copy."""
    policy: str = "lru"
    is_prompt_only: bool = False
    """As vLLM has it by default: what a model said is copied once it is part of the next prompt."""


def transfer_config(memory: HostMemory, bytes_per_block: int) -> Any:
    """For ``VllmConfig``."""
    config = importlib.import_module("vllm.config")
    alignment = importlib.import_module("vllm.v1.kv_offload.cpu.spec").CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
    stored = -(-bytes_per_block // alignment) * alignment
    return config.KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "cpu_bytes_to_use": memory.blocks * stored,
            "eviction_policy": memory.policy,
            "offload_prompt_only": memory.is_prompt_only,
        },
    )


@dataclass(slots=True)
class _Copy:
    job: int
    request: str | None
    """Whose load it is; None of a store."""
    copied_bytes: int
    took_s: float
    done_at: float


@dataclass
class Copies:
    """What the connector's worker side does."""

    memory: HostMemory
    bytes_per_block: int
    loaded_blocks: int = 0
    _under_way: dict[int, _Copy] = field(default_factory=dict)
    _free_at: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    """By direction: to the device, to the host."""

    def scheduled(self, metadata: Any, now: float) -> None:
        """A step was scheduled: its loads begin."""
        for job, entry in metadata.load_jobs.items():
            self._begin(job, entry.req_id, len(entry.dst_spec.block_ids), now)

    def ready_at(self, metadata: Any, now: float) -> float:
        """A step is about to run. Until when it waits for copies of blocks that it overwrites."""
        flushed = metadata.jobs_to_flush or frozenset()
        self._store(metadata, now, flushed)
        return max((self._under_way[job].done_at for job in flushed if job in self._under_way), default=now)

    def ended(self, metadata: Any, now: float) -> Any:
        """A step has run: what it computed is copied. The `KVConnectorOutput` that tells what is done."""
        self._store(metadata, now, metadata.store_jobs.keys())
        outputs = importlib.import_module("vllm.v1.outputs")
        common = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.offloading.common")
        told = common.OffloadingWorkerMetadata()
        loaded: set[str] = set()
        for copy in [each for each in self._under_way.values() if each.done_at <= now]:
            del self._under_way[copy.job]
            told.mark_completed(copy.job)
            stats = told.transfer_stats.store if copy.request is None else told.transfer_stats.load
            stats.record(copy.copied_bytes, copy.took_s)
            if copy.request is not None:
                loaded.add(copy.request)
        meta = told if told.completed_jobs else None
        return outputs.KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=meta)

    def _store(self, metadata: Any, now: float, jobs: Any) -> None:
        for job in [each for each in metadata.store_jobs if each in jobs]:
            self._begin(job, None, len(metadata.store_jobs.pop(job).src_spec.block_ids), now)

    def _begin(self, job: int, request: str | None, blocks: int, now: float) -> None:
        is_load, copied_bytes = request is not None, blocks * self.bytes_per_block
        took_s = self.memory.latency_s + copied_bytes / self.memory.bytes_per_s
        done_at = max(now, self._free_at[is_load]) + took_s
        self._free_at[is_load] = done_at
        self._under_way[job] = _Copy(job, request, copied_bytes, took_s, done_at)
        if is_load:
            self.loaded_blocks += blocks
