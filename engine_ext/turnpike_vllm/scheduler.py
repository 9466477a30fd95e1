"""The seams in vLLM's scheduler: ``--scheduler-cls turnpike_vllm.scheduler.TurnpikeScheduler``.

``schedule()`` is wrapped, never copied: before a step the queue, the order of the running requests and the
chunk sizes are changed, and vLLM's own code decides within them. Whatever a seam needs is looked for at the
start (`detection.py`). What is missing costs one log line and the features that need it; so does a wrong
setting. The seams of every step are put in place by the first hint (`EnginePlugin`), as attributes of the one
scheduler object.
"""

import copy
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import RequestStatus

from turnpike_vllm.api.secret_keys import hint_key
from turnpike_vllm.detection import CHUNK_SEAM, detect
from turnpike_vllm.engine_plugin import EngineHooks, EnginePlugin
from turnpike_vllm.method_patches import MAX_RETRIES, RETRY_AFTER_S, MethodPatches
from turnpike_vllm.request_state import ATTRIBUTE, RequestState
from turnpike_vllm.settings import SWITCHED_OFF, Settings, SettingsError, read_settings
from turnpike_vllm.waiting import RankedQueue

logger = logging.getLogger("vllm.turnpike")
RequestQueue.register(RankedQueue)

_NORMAL = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class TurnpikeMixin:
    """Put before a vLLM scheduler class."""

    turnpike: EnginePlugin | None = None
    _is_in_step = False
    _back_at = math.inf
    """When the plugin is tried again after it failed."""
    _own_queue: Any = None
    """vLLM's queue, while ours is in its place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patches = MethodPatches()
        # Seams that each request of a step goes through: object, name, ours, vLLM's.
        self._of_requests: list[tuple[Any, str, Any, Any]] = []
        try:
            self.turnpike = self._attach()
        except SettingsError as error:
            logger.error("turnpike: %s; vLLM runs as it is", error)  # noqa: TRY400  # nothing broke
        except Exception:
            # Whatever a new vLLM does differently must not keep it from serving.
            logger.exception("turnpike: cannot attach; vLLM runs as it is")

    def _attach(self) -> EnginePlugin:
        scheduler: Any = self
        wanted: Settings = read_settings(getattr(scheduler.vllm_config, "additional_config", None))
        settings, features = detect(self, wanted, RequestQueue)
        for name, state in features.items():
            if state not in ("on", SWITCHED_OFF):
                logger.warning("turnpike: %s is off: %s", name, state)
        return EnginePlugin(
            scheduler,
            settings,
            features,
            clock=time.monotonic,
            hooks=EngineHooks(
                is_running=_is_running,
                watch=self._watch_requests,
                wake=lambda: self._safely(self._install_seams),
                failed=self._give_up,
            ),
            hint_key=hint_key() if wanted.signed_hints else None,
        )

    # Seams of single requests and rare events: always there.

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        scheduler = _parent(self)
        if self.turnpike is not None and self.turnpike.is_inert:
            self._safely(self._come_back)
        plugin = self.turnpike
        if plugin is not None and request.request_id not in scheduler.requests:
            self._safely(lambda: plugin.arriving(request))
        return super().add_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_blocks(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        plugin = self._awake()
        if plugin is not None:
            self._safely(lambda: plugin.freeing(request, is_normal=request.status in _NORMAL))
        return super()._free_blocks(request, *args, **kwargs)  # type: ignore[misc]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        plugin = self._awake()
        if plugin is not None:
            self._safely(lambda: plugin.preempting(request))
        return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        plugin = self._awake()
        if plugin is not None:
            self._safely(plugin.resetting)
        return super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]

    # Seams of every step: put in place by the first hint.

    def _install_seams(self) -> None:
        plugin, scheduler, seams = self.turnpike, _parent(self), self._patches
        assert plugin is not None
        settings, manager = plugin.settings, scheduler.kv_cache_manager
        update = self._before_update(plugin, scheduler.update_from_output)
        seams.replace(scheduler, "schedule", self._around_schedule(plugin, scheduler.schedule, update))
        seams.replace(scheduler, "update_from_output", update)
        if plugin.planner.has_headroom or settings.classes is not None:
            reserve = getattr(scheduler, CHUNK_SEAM)
            self._of_requests.append((scheduler, CHUNK_SEAM, self._around_reserve(plugin, reserve), reserve))
        if settings.retention is not None or settings.coordinator is not None:
            allocate = manager.allocate_slots
            self._of_requests.append(
                (manager, "allocate_slots", self._around_allocate(plugin, allocate), allocate)
            )
        for owner, name, ours, _ in self._of_requests:
            seams.replace(owner, name, ours)
        if settings.coordinator is not None:
            self._rank_those_that_wait(plugin)

    def _watch_requests(self, is_wanted: bool) -> None:
        """A call for each request is most of what the features cost: none is made in vain."""
        for owner, name, ours, original in self._of_requests:
            setattr(owner, name, ours if is_wanted else original)

    def _around_schedule(
        self, plugin: EnginePlugin, original: Callable[..., Any], update: Callable[..., Any]
    ) -> Callable[..., Any]:
        """``update``: our `_before_update`, for the steps that are measured."""
        scheduler, planner = _parent(self), plugin.planner
        free = scheduler.kv_cache_manager.block_pool.free_block_queue
        timed = plugin.timed

        def schedule(*args: Any, **kwargs: Any) -> Any:
            step = planner.steps = planner.steps + 1
            if (
                step < planner.passes_until
                and len(scheduler.running) == len(scheduler.requests)
                and free.num_free_blocks >= planner.least_free
                and plugin.clock() < plugin.quiet_until
            ):
                # Should a feature fail in this one, the queue is given back at once: nobody is in it.
                return original(*args, **kwargs)
            # As in _safely, without the cost of another call.
            try:
                plugin.before_step()
            except Exception as error:  # noqa: BLE001
                self._give_up(error)
            if plugin.is_inert:
                return original(*args, **kwargs)
            self._is_in_step = True
            try:
                output = original(*args, **kwargs)
            finally:
                self._is_in_step = False
                if self._awake() is None:
                    _undo(self._give_back_queue)
            try:
                plugin.after_step(output)
            except Exception as error:  # noqa: BLE001
                self._give_up(error)
            if timed and not plugin.is_inert:
                scheduler.update_from_output = update
            return output

        return schedule

    def _before_update(self, plugin: EnginePlugin, original: Callable[..., Any]) -> Callable[..., Any]:
        scheduler, timed = _parent(self), plugin.timed

        def update_from_output(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = original(scheduler_output, *args, **kwargs)
            if plugin.is_inert:
                return outputs
            if timed:
                try:
                    plugin.output_arrived(scheduler_output)
                except Exception as error:  # noqa: BLE001  # as in _safely
                    self._give_up(error)
                    return outputs
            if not timed:
                # vLLM's own, until a step is measured.
                scheduler.update_from_output = original
            return outputs

        return update_from_output

    def _around_reserve(self, plugin: EnginePlugin, original: Callable[..., int]) -> Callable[..., int]:
        planner = plugin.planner
        is_plain = getattr(self, "num_prefill_lookahead", None) == 0  # then the original changes nothing

        def reserve(request: Any, computed: int, tokens: int, *args: Any, **kwargs: Any) -> int:
            if tokens == 1:  # as all that decode: the many, in every step
                left_out = planner.left_out
                if left_out and request.request_id in left_out and not plugin.is_inert:
                    planner.classes["left_out"] += 1
                    return 0
            elif not plugin.is_inert:
                try:
                    tokens = plugin.chunk(request, computed, tokens)
                except Exception as error:  # noqa: BLE001  # as in _safely, without the cost of another call
                    self._give_up(error)
            return tokens if is_plain else original(request, computed, tokens, *args, **kwargs)

        return reserve

    def _around_allocate(self, plugin: EnginePlugin, original: Callable[..., Any]) -> Callable[..., Any]:
        def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = original(request, *args, **kwargs)
            if blocks is not None:
                return blocks
            while blocks is None and not plugin.is_inert:
                if not self._safely(lambda: plugin.starved(request)):
                    break
                blocks = original(request, *args, **kwargs)
            return blocks

        return allocate_slots

    def _rank_those_that_wait(self, plugin: EnginePlugin) -> None:
        planner, scheduler = plugin.planner, _parent(self)
        queue: RankedQueue[Any] = RankedQueue(planner.rank, planner.next_rise, plugin.clock(), self._give_up)
        self._own_queue, scheduler.waiting = scheduler.waiting, queue
        planner.queue = queue
        queue.prepend_requests(list(self._own_queue))

    def _give_back_queue(self) -> None:
        """vLLM's own, with all that wait: those that have run go first, as vLLM would have it.

        Not in the middle of a step: there, vLLM has the queue in its hands."""
        scheduler, own = _parent(self), self._own_queue
        if own is None:
            return
        preempted = RequestStatus.PREEMPTED
        waiting = sorted(scheduler.waiting, key=lambda each: (each.status != preempted, each.arrival_time))
        own.remove_requests(list(own))
        for request in waiting:
            own.add_request(request)
        scheduler.waiting, self._own_queue = own, None

    # On doubt.

    def _awake(self) -> EnginePlugin | None:
        plugin = self.turnpike
        return plugin if plugin is not None and plugin.is_awake and not plugin.is_inert else None

    def _safely(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # noqa: BLE001  # no feature is worth somebody's request; it is logged
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        """Everything that was replaced is vLLM's own again, and what was held is free."""
        plugin = self.turnpike
        if plugin is None or plugin.is_inert:
            return
        plugin.failures += 1
        after_s = RETRY_AFTER_S * 2 ** (plugin.failures - 1)
        again = f"for {after_s:.0f} s" if plugin.failures <= MAX_RETRIES else "from now on"
        logger.error("turnpike: a feature failed; vLLM runs without %s", again, exc_info=error)
        plugin.is_inert = True
        self._of_requests.clear()
        is_undone = _undo(self._patches.restore)
        if not self._is_in_step:  # else its end does it
            is_undone &= _undo(self._give_back_queue)
        is_undone &= _undo(lambda: plugin.fail(error))
        is_last = not is_undone or plugin.failures > MAX_RETRIES
        self._back_at = math.inf if is_last else plugin.clock() + after_s

    def _come_back(self) -> None:
        """The plugin as it was at the start, asleep. Nothing of the one that failed is used again."""
        failed = self.turnpike
        if failed is None or failed.clock() < self._back_at or self._own_queue is not None:
            return
        self._back_at = math.inf
        try:
            fresh = self._attach()
        except Exception:
            logger.exception("turnpike: cannot attach again; vLLM runs without from now on")
            return
        fresh.clock, fresh.failures = failed.clock, failed.failures
        for request in _parent(self).requests.values():
            known: RequestState | None = vars(request).pop(ATTRIBUTE, None)
            if known is not None:
                fresh.state_of(request, known.service_class)
        self.turnpike = fresh


class TurnpikeScheduler(TurnpikeMixin, AsyncScheduler):  # type: ignore[misc]
    """The scheduler that vLLM itself would have taken, with the plugin.

    vLLM takes another where it does not overlap steps (pipelines on its first model runner, n-gram
    speculation, ...). There, the overlap would schedule tokens that no worker has yet."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        stock = stock_class(kwargs["vllm_config"] if "vllm_config" in kwargs else args[0])
        if cls is not TurnpikeScheduler or stock is AsyncScheduler:
            return super().__new__(cls)
        return type("TurnpikeScheduler", (TurnpikeMixin, stock), {})(*args, **kwargs)


def stock_class(vllm_config: Any) -> type[Any]:
    """What vLLM takes without ``--scheduler-cls``."""
    config = copy.copy(vllm_config.scheduler_config)
    config.scheduler_cls = None
    if getattr(vllm_config, "diffusion_config", None) is not None:
        kind = "DiffusionAsyncScheduler" if config.async_scheduling else "DiffusionScheduler"
        config.scheduler_cls = f"vllm.v1.core.sched.diffusion_scheduler.{kind}"
    found: type[Any] = config.get_scheduler_cls()
    return found


def _undo(act: Callable[[], None]) -> bool:
    """Whether it was done."""
    try:
        act()
    except Exception:  # then blocks stay held until a restart; serving goes on
        logger.exception("turnpike: cannot let go")
        return False
    return True


def _is_running(request: Any) -> bool:
    return bool(request.status == RequestStatus.RUNNING)


def _parent(scheduler: TurnpikeMixin) -> Any:
    """The scheduler as vLLM knows it."""
    return scheduler
