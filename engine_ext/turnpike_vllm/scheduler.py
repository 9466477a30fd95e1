"""The seams in vLLM's scheduler: ``--scheduler-cls turnpike_vllm.scheduler.TurnpikeScheduler``.

``schedule()`` is wrapped, never copied: before a step the queue, the order of the running requests and the
chunk sizes are biased, and vLLM's own code decides within them. Whatever a seam needs is looked for at the
start. What is missing costs one log line and the biases that need it; so does a wrong setting. The seams of
every step are put in place by the first hint (`Biases`), as attributes of the one scheduler object.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import RequestStatus

from turnpike_vllm.biases import Biases
from turnpike_vllm.coordinator import Rank
from turnpike_vllm.ferry import Calls
from turnpike_vllm.hints import ServiceClass
from turnpike_vllm.offload import NOT_CONFIGURED, HostCopies
from turnpike_vllm.pool import KvPool
from turnpike_vllm.secret_keys import hint_key
from turnpike_vllm.settings import Settings, SettingsError, read_settings
from turnpike_vllm.waiting import RankedQueue

logger = logging.getLogger("vllm.turnpike")
RequestQueue.register(RankedQueue)

_NORMAL = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
_CHUNK_SEAM = "_reserve_prefill_lookahead"
"""Runs for every request of a step before its blocks are allocated, and may make its chunk smaller."""
SEAMS = (
    *("schedule", "update_from_output", "add_request", "reset_prefix_cache", "_free_blocks"),
    *("_preempt_request", _CHUNK_SEAM),
)
"""Methods of vLLM's scheduler that are wrapped."""
_NEEDED = (
    *("running", "waiting", "requests", "block_size", "num_spec_tokens"),
    *("max_num_running_reqs", "max_num_scheduled_tokens"),
    *(name for name in SEAMS if name != _CHUNK_SEAM),
)


def detect(scheduler: Any, settings: Settings) -> tuple[Settings, dict[str, str]]:
    """What of the settings this scheduler can carry out, and bias → "on" or why it is off.

    Raises `SettingsError` if it can carry out nothing."""
    lacks = [name for name in _NEEDED if not hasattr(scheduler, name)]
    lacks += KvPool.lacks(getattr(scheduler, "kv_cache_manager", None))
    if lacks:
        raise SettingsError(f"this vLLM has no {', '.join(lacks)}")
    why: dict[str, str | None] = dict.fromkeys(
        ("coordinator", "opportunist", "retention", "host_tier", "eviction", "classes"), None
    )
    if not scheduler.kv_cache_manager.enable_caching:
        why["retention"] = why["eviction"] = "prefix caching is off"
    elif len(scheduler.kv_cache_config.kv_cache_groups) != 1:
        why["eviction"] = "several KV cache groups"
    if not hasattr(scheduler, _CHUNK_SEAM):
        why["opportunist"] = why["classes"] = "no seam for chunk sizes"
    elif getattr(scheduler, "need_mamba_block_aligned_split", False):
        why["opportunist"] = why["classes"] = "chunks must end where Mamba state is kept"
    why["host_tier"] = HostCopies.lacks(scheduler) or why["retention"] or why["opportunist"]
    if why["host_tier"] is None and settings.retention is None:
        why["host_tier"] = "retention is switched off"
    if not isinstance(scheduler.waiting, RequestQueue):
        why["coordinator"] = why["classes"] = "the waiting queue is of another kind"
    off: dict[str, Any] = {name: None for name, reason in why.items() if reason}
    possible = replace(settings, **(off | ({"opportunist": False} if "opportunist" in off else {})))
    features = {
        name: reason or ("on" if getattr(settings, name) not in (None, False) else "switched off")
        for name, reason in why.items()
    }
    return possible, features


class TurnpikeMixin:
    """Put before a vLLM scheduler class."""

    turnpike: Biases | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self.turnpike = self._attach()
        except SettingsError as error:
            logger.error("turnpike: %s; vLLM runs as it is", error)  # noqa: TRY400  # nothing broke
        except Exception:
            # Whatever a new vLLM does differently must not keep it from serving.
            logger.exception("turnpike: cannot attach; vLLM runs as it is")

    def _attach(self) -> Biases:
        scheduler: Any = self
        wanted = read_settings(getattr(scheduler.vllm_config, "additional_config", None))
        settings, features = detect(self, wanted)
        for name, state in features.items():
            if state not in ("on", "switched off", NOT_CONFIGURED):
                logger.warning("turnpike: %s is off: %s", name, state)
        return Biases(
            scheduler,
            settings,
            features,
            clock=time.monotonic,
            is_running=_is_running,
            displace=self._displace,
            wake=self._install_seams,
            calls=Calls(self._enqueue, self._abort, lambda: bool(scheduler.waiting)),
            hint_key=hint_key() if wanted.signed_hints else None,
        )

    # Seams of single requests and rare events: always there.

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        biases, scheduler = self.turnpike, _parent(self)
        if biases is not None and request.request_id not in scheduler.requests:
            self._safely(lambda: biases.arriving(request))
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_blocks(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        biases = self._awake()
        if biases is not None:
            self._safely(lambda: biases.freeing(request, is_normal=request.status in _NORMAL))
        return super()._free_blocks(request, *args, **kwargs)  # type: ignore[misc]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        biases = self._awake()
        if biases is not None:
            self._safely(lambda: biases.preempting(request))
        return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        biases = self._awake()
        if biases is not None:
            self._safely(biases.resetting)
        return super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]

    # Seams of every step: put in place by the first hint.

    def _install_seams(self) -> None:
        biases, scheduler = self.turnpike, _parent(self)
        assert biases is not None
        settings, manager = biases.settings, scheduler.kv_cache_manager
        scheduler.schedule = self._around_schedule(biases, scheduler.schedule)
        scheduler.update_from_output = self._before_update(biases, scheduler.update_from_output)
        if settings.coordinator is not None:
            scheduler.waiting = self._ranked(biases, scheduler.waiting)
        wanted = (settings.coordinator, settings.classes, settings.host_tier, settings.opportunist or None)
        if any(each is not None for each in wanted):
            if hasattr(scheduler, _CHUNK_SEAM):
                setattr(scheduler, _CHUNK_SEAM, self._around_reserve(biases, getattr(scheduler, _CHUNK_SEAM)))
        if settings.retention is not None or settings.coordinator is not None:
            manager.allocate_slots = self._around_allocate(biases, manager.allocate_slots)
        evictor = biases.keeper.evictor
        if evictor is not None:
            manager.block_pool.get_new_blocks = biases.pool.prefer(evictor.victims, evictor.is_claimed)

    def _around_schedule(self, biases: Biases, original: Callable[..., Any]) -> Callable[..., Any]:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            if biases.is_inert:
                return original(*args, **kwargs)
            self._safely(biases.before_step)
            output = original(*args, **kwargs)
            self._safely(lambda: biases.after_step(output))
            return output

        return schedule

    def _before_update(self, biases: Biases, original: Callable[..., Any]) -> Callable[..., Any]:
        def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = original(scheduler_output, *args, **kwargs)
            if not biases.is_inert:
                self._safely(lambda: biases.output_arrived(scheduler_output))
            return outputs

        return update_from_output

    def _around_reserve(self, biases: Biases, original: Callable[..., int]) -> Callable[..., int]:
        conductor = biases.conductor
        is_plain = getattr(self, "num_prefill_lookahead", None) == 0  # then the original changes nothing

        def reserve(request: Any, computed: int, tokens: int, *args: Any, **kwargs: Any) -> int:
            if tokens == 1:  # as all that decode: the many, in every step
                left_out = conductor.left_out
                if left_out and request.request_id in left_out and not biases.is_inert:
                    conductor.classes["left_out"] += 1
                    return 0
            elif not biases.is_inert:
                try:
                    tokens = biases.chunk(request, computed, tokens)
                except Exception as error:  # noqa: BLE001  # as in _safely, without the cost of another call
                    self._give_up(error)
            return tokens if is_plain else original(request, computed, tokens, *args, **kwargs)

        return reserve

    def _around_allocate(self, biases: Biases, original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = original(request, *args, **kwargs)
            if blocks is not None:
                return blocks
            while blocks is None and not biases.is_inert:
                if not self._safely(lambda: biases.starved(request)):
                    break
                blocks = original(request, *args, **kwargs)
            return blocks

        return allocate_slots

    def _ranked(self, biases: Biases, waiting: Any) -> Any:
        conductor = biases.conductor
        last = (True, 0, Rank(True, ServiceClass.REACTIVE, 0, 0, 0.0, 0.0))

        def rank(request: Any, now: float) -> Any:
            return self._safely(lambda: conductor.rank(request, now)) or last

        def next_rise(request: Any, now: float) -> float | None:
            return cast("float | None", self._safely(lambda: conductor.next_rise(request, now)))

        queue: RankedQueue[Any] = RankedQueue(rank, next_rise, biases.clock())
        queue.prepend_requests(list(waiting))
        conductor.queue = queue
        return queue

    def _displace(self, request: Any, now: float) -> bool:
        scheduler = _parent(self)
        can_free = getattr(scheduler, "_request_blocks_can_be_freed", None)
        if can_free is not None and not can_free(request):
            return False
        scheduler.running.remove(request)
        self._preempt_request(request, now)
        return True

    def _enqueue(self, request: Any) -> None:
        super().add_request(request)  # type: ignore[misc]

    def _abort(self, request: Any) -> bool:
        has_begun = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        _parent(self).finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        return bool(has_begun)

    # On doubt.

    def _awake(self) -> Biases | None:
        biases = self.turnpike
        return biases if biases is not None and biases.is_awake and not biases.is_inert else None

    def _safely(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # noqa: BLE001  # no bias is worth somebody's request; it is logged
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        biases = self.turnpike
        if biases is None or biases.is_inert:
            return
        logger.error("turnpike: a bias failed; from now on vLLM runs without", exc_info=error)
        try:
            biases.fail()
        except Exception:  # then its blocks stay held until a restart; serving goes on
            logger.exception("turnpike: cannot let go")


class TurnpikeScheduler(TurnpikeMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's default scheduler, biased."""


def _is_running(request: Any) -> bool:
    return bool(request.status == RequestStatus.RUNNING)


def _parent(scheduler: TurnpikeMixin) -> Any:
    """The scheduler as vLLM knows it."""
    return scheduler
