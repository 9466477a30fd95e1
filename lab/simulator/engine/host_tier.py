"""KV blocks in the host's memory: vLLM's own OffloadingConnector, and a link that takes its time.

The scheduler's side of the connector is vLLM's: it decides what is stored, what is loaded, and what is
overwritten (least recently used first). Its worker, which would copy bytes, is played here: each direction of
the link carries one transfer after the other at the profile's bandwidth; stores of one step are sent with the
next, as vLLM's worker does it; a step that overwrites blocks which are still being stored waits for them.
"""

from typing import Any, Final

import msgspec
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from lab.simulator.engine.options import EngineOptions, EngineSpec

_CONNECTOR: Final = "OffloadingConnector"


def offload_config(spec: EngineSpec) -> Any:
    """What `vllm serve` would be given."""
    return KVTransferConfig(
        kv_connector=_CONNECTOR,
        kv_role="kv_both",
        engine_id=str(spec.name),
        kv_connector_extra_config={"cpu_bytes_to_use": int(spec.offload_bytes)},
    )


class _Link:
    """One direction: one transfer after the other."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def send(self, size: float, *, now: float) -> float:
        """When it is through."""
        self._free_s = max(now, self._free_s) + size / self._bytes_per_s
        return self._free_s


class _Transfer(msgspec.Struct, eq=False):
    job: int
    end_s: float
    loads_for: Any
    """The request that waits for it; None for a store."""
    size: float


class HostTier:
    """The worker's side of one engine's connector."""

    stores_full_blocks = True

    def __init__(self, spec: EngineSpec, options: EngineOptions) -> None:
        profile = spec.profile
        self._bytes_per_s = bytes_per_s = profile.hardware.host_link_bytes_per_s * profile.tensor_parallel
        self._block_bytes = profile.model.kv_bytes_per_token * options.block_size
        self._in, self._out = _Link(bytes_per_s), _Link(bytes_per_s)
        self._deferred: dict[int, Any] = {}
        """Stores that go with the next step."""
        self._going_on: dict[int, _Transfer] = {}
        self.loaded_tokens = 0
        self._block_size = options.block_size

    def begin_step(self, meta: Any, *, now: float) -> tuple[float, list[float]]:
        """The scheduler has made a pass: when may its step begin, and when will its loads be through?"""
        starts_s = now
        flushed = meta.jobs_to_flush or ()
        for job in sorted(flushed):
            store = meta.store_jobs.pop(job, None)
            if store is not None:
                self._deferred[job] = store
        self.send_deferred(now=now)
        for job in flushed:
            if job in self._going_on:
                starts_s = max(starts_s, self._going_on[job].end_s)
        loads = []
        for job, load in meta.load_jobs.items():
            blocks = len(load.dst_spec.block_ids)
            self.loaded_tokens += blocks * self._block_size
            end_s = self._in.send(blocks * self._block_bytes, now=starts_s)
            self._going_on[job] = _Transfer(job, end_s, load.req_id, blocks * self._block_bytes)
            loads.append(end_s)
        self._deferred.update(meta.store_jobs)
        return starts_s, loads

    def send_deferred(self, *, now: float) -> None:
        """Stores of the step before this one begin."""
        for job, store in self._deferred.items():
            size = len(store.src_spec.block_ids) * self._block_bytes
            self._going_on[job] = _Transfer(job, self._out.send(size, now=now), None, size)
        self._deferred.clear()

    def next_end_s(self) -> float | None:
        """When the next transfer is through."""
        return min((transfer.end_s for transfer in self._going_on.values()), default=None)

    def take_ended(self, *, now: float) -> Any:
        """What the worker reports of transfers that are through: a step's output; None if none is."""
        ended = [transfer for transfer in self._going_on.values() if transfer.end_s <= now]
        if not ended:
            return None
        ended.sort(key=lambda transfer: (transfer.end_s, transfer.job))
        meta = OffloadingWorkerMetadata()
        for transfer in ended:
            del self._going_on[transfer.job]
            meta.mark_completed(transfer.job)
            stats = meta.transfer_stats
            way = stats.store if transfer.loads_for is None else stats.load
            way.record(transfer.size, transfer.size / self._bytes_per_s)
        report = KVConnectorOutput(
            finished_recving={transfer.loads_for for transfer in ended if transfer.loads_for is not None},
            kv_connector_worker_meta=meta,
        )
        return ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=report)
