"""The real vLLM scheduler and KV cache manager without a model, on a virtual clock.

For tests, benchmarks and simulation: ``schedule()``, a fabricated model output, ``update_from_output()``, as
the engine core would call them, steps overlapping as they do there. Only the time that a step takes is
invented, by `StepTime` or whatever else is given. Needs vLLM; imports it late, because that takes seconds.

::

    engine = SimulatedEngine(SimulatedOptions(blocks=160, block_size=64))
    first = engine.submit(prompt, max_tokens=32, hint=Hint(session="s", seq=1, retain_s=6.0))
    engine.run()
    engine.done[first].cached_tokens
"""

import importlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lab.engine.simulated_config import Parts, default_parts
from lab.engine.simulated_host import EMPTY_STEP_S, Copies, HostMemory
from turnpike_vllm.hints import XARGS_KEY, Hint


class StepLoad(NamedTuple):
    """What a step computes."""

    tokens: int
    prefill_tokens: int
    attended: int
    """Of the prompts: for each token, how many tokens it looks at, summed up."""
    context: int
    """Of the decoding requests: tokens behind them, summed up."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. The defaults are a small model on a large GPU: 4 ms, 70k tokens of prefill a
    second."""

    base_s: float = 0.004
    per_token_s: float = 14e-6
    per_attended_s: float = 1.8e-10
    per_context_s: float = 2e-8

    def __call__(self, load: StepLoad) -> float:
        return (
            self.base_s
            + self.per_token_s * load.tokens
            + self.per_attended_s * load.attended
            + self.per_context_s * load.context
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedOptions:
    blocks: int = 512
    block_size: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 8_192
    max_model_len: int = 131_072
    has_plugin: bool = True
    """False: vLLM's own scheduler."""
    turnpike: Any = None
    """The settings (``additional_config``); None means the defaults."""
    policy: str = "fcfs"
    reserve_full_input: bool = True
    depth: int = 2
    """Steps in flight, as vLLM's asynchronous scheduling has them."""
    step_time: Callable[[StepLoad], float] = field(default_factory=StepTime)
    host: HostMemory | None = None
    """Where vLLM's native offload keeps what it copies."""
    configure: Callable[[Parts], None] | None = None
    """Changes what vLLM is configured with."""


@dataclass
class RequestResult:
    """What became of a request; times on the engine's clock."""

    arrived: float
    prompt_tokens: int
    first_token: float | None = None
    finished: float | None = None
    cached_tokens: int = 0
    is_aborted: bool = False
    tokens: list[int] = field(default_factory=list)
    """What it said."""

    @property
    def ttft_s(self) -> float:
        assert self.first_token is not None
        return self.first_token - self.arrived


class _Step(NamedTuple):
    output: Any
    answered: list[str]
    seconds: float


class SimulatedEngine:
    def __init__(self, options: SimulatedOptions) -> None:
        self.options = options
        self.now = 0.0
        self.done: dict[str, RequestResult] = {}
        self.steps = 0
        self.computed_tokens = 0
        """By all steps: prompts that were not cached, and what was said."""
        self._vllm = _modules()
        self.scheduler: Any = self._build()
        self._hasher = self._build_hasher()
        self._names = itertools.count()
        self._said = itertools.count(1)
        self._in_flight: deque[_Step] = deque()
        self._free_at = 0.0
        self.copies = None if options.host is None else Copies(options.host, self._bytes_per_block)
        plugin = getattr(self.scheduler, "turnpike", None)
        if plugin is not None:
            plugin.clock = lambda: self.now

    @property
    def plugin(self) -> Any:
        """The plugin's `EnginePlugin`, or None."""
        return getattr(self.scheduler, "turnpike", None)

    @property
    def total_blocks(self) -> int:
        return self.options.blocks - 1

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self.scheduler.has_requests()

    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 16,
        hint: Hint | str | None = None,
        priority: int = 0,
        name: str | None = None,
        **more: Any,
    ) -> str:
        """Queue a request now; returns its id. ``more``: adapter, images, as vLLM's `Request` has them."""
        name = name or f"r{next(self._names)}"
        extra = None
        if hint is not None:
            extra = {XARGS_KEY: hint.as_json() if isinstance(hint, Hint) else hint}
        params = self._vllm["sampling"].SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, extra_args=extra, temperature=0.0
        )
        request = self._vllm["request"].Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=self.now,
            priority=priority,
            block_hasher=self._hasher,
            **more,
        )
        self.done[name] = RequestResult(self.now, len(prompt))
        self.scheduler.add_request(request)
        return name

    def hint(self, hint: Hint) -> None:
        """As ``POST /turnpike/hints`` does."""
        if self.plugin is not None:
            self.plugin.hint([hint])

    def abort(self, name: str) -> None:
        status = self._vllm["request"].RequestStatus.FINISHED_ABORTED
        self.scheduler.finish_requests([name], status)
        if self.done[name].finished is None:
            self.done[name].finished, self.done[name].is_aborted = self.now, True

    def step(self) -> bool:
        """Schedule a step if there is room for one, else finish the oldest. False if nothing was done."""
        if len(self._in_flight) < self.options.depth and self.scheduler.has_requests():
            output = self.schedule()
            if output.total_num_scheduled_tokens or self.copies is not None:
                self._in_flight.append(self._begin(output))
                return True
            if not self._in_flight:
                self._update(output, [])
                return False
        if self._in_flight:
            self._end(self._in_flight.popleft())
            return True
        return False

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def run(self, *, until: float | None = None, max_steps: int = 1_000_000) -> None:
        """Until nothing is left to do, or the clock says ``until`` (which it then says, if the engine was
        idle)."""
        for _ in range(max_steps):
            if until is not None and self.now >= until:
                return
            if not self.step() and self.is_idle:
                break
            if not self._in_flight and not self.scheduler.has_unfinished_requests():
                continue
        if until is not None:
            self.now = max(self.now, until)

    def idle(self, seconds: float) -> None:
        """Let the clock go on while nothing runs."""
        self.now += seconds

    def idle_until(self, at: float) -> None:
        """Finish what there is, then `rest`. As the API server does of an idle engine, meet deadlines."""
        while self.now < at:
            if not self.is_idle:
                self.step()
                continue
            due = None if self.plugin is None else self.plugin.retainer.retention.next_deadline()
            self.now = max(self.now, at if due is None else min(due, at))
            if due is not None and due <= self.now:
                self.plugin.tick()

    def account(self) -> tuple[int, int, int]:
        """Free, used by requests, retained: counted from the pool's own records."""
        pool = self.scheduler.kv_cache_manager.block_pool
        using: set[int] = set()
        for request in self.scheduler.requests:
            for group in self.scheduler.kv_cache_manager.get_blocks(request).blocks:
                using |= {block.block_id for block in group}
        # Of requests that are gone, while a step may still write to them.
        for _, blocks in getattr(self.scheduler, "deferred_frees", ()):
            using |= {block.block_id for block in blocks}
        used = sum(1 for block in pool.blocks if block.ref_cnt > 0 and block.block_id in using)
        held = sum(
            1
            for block in pool.blocks
            if block.ref_cnt > 0 and block.block_id not in using and not block.is_null
        )
        return len(pool.free_block_queue.get_all_free_blocks()), used, held

    def _begin(self, output: Any) -> _Step:
        answered: list[str] = []
        tokens = prefill = attended = context = 0
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            tokens += count
            after = request.num_computed_tokens
            if count > 1:
                prefill += count
                attended += count * (after - count) + count * count // 2
            else:
                context += after
            if not request.is_prefill_chunk:
                answered.append(name)
        for new in output.scheduled_new_reqs:
            record = self.done[new.req_id]
            if record.first_token is None:
                record.cached_tokens = new.num_computed_tokens
        if self.copies is not None:
            self.copies.scheduled(output.kv_connector_metadata, self.now)
        if not tokens:
            return _Step(output, answered, EMPTY_STEP_S)
        self.steps += 1
        self.computed_tokens += tokens
        seconds = self.options.step_time(StepLoad(tokens, prefill, attended, context))
        return _Step(output, answered, seconds)

    def _end(self, step: _Step) -> None:
        self.now = max(self.now, self._free_at)
        if self.copies is not None:
            self.now = self.copies.ready_at(step.output.kv_connector_metadata, self.now)
        self.now += step.seconds
        self._free_at = self.now
        self._update(step.output, step.answered)

    def make_model_output(self, output: Any, answered: Collection[str] | None = None) -> Any:
        """A model's output for a step in which all (or ``answered``) requests produce a token."""
        names = list(output.num_scheduled_tokens)
        produced = [
            [next(self._said) % 16_000] if answered is None or name in answered else [] for name in names
        ]
        return self._vllm["outputs"].ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=produced,
        )

    def _update(self, output: Any, answered: list[str]) -> None:
        produced = self.make_model_output(output, frozenset(answered))
        if self.copies is not None:
            produced.kv_connector_output = self.copies.ended(output.kv_connector_metadata, self.now)
        outputs = self.scheduler.update_from_output(output, produced)
        for each in (each for group in outputs.values() for each in group.outputs):
            record = self.done[each.request_id]
            record.tokens += each.new_token_ids
            if record.first_token is None and each.new_token_ids:
                record.first_token = self.now
            if each.finish_reason is not None and record.finished is None:
                record.finished = self.now

    def _build(self) -> Any:
        options, vllm = self.options, self._vllm
        config, kv = vllm["config"], vllm["kv_interface"]
        torch = importlib.import_module("torch")
        head_size = 8 if options.host is None else options.host.bytes_per_token // 8
        spec = kv.FullAttentionSpec(
            block_size=options.block_size, num_kv_heads=1, head_size=head_size, dtype=torch.float32
        )
        self._bytes_per_block: int = spec.page_size_bytes
        parts = default_parts(options, kv.KVCacheGroupSpec(["layer"], spec), spec.page_size_bytes)
        if options.configure is not None:
            options.configure(parts)
        whole = config.VllmConfig(
            scheduler_config=config.SchedulerConfig(**parts.scheduler, async_scheduling=False),
            model_config=config.ModelConfig(**parts.model),
            cache_config=config.CacheConfig(**parts.cache),
            device_config=config.DeviceConfig(device="cpu"),
            **parts.others,
        )
        whole.cache_config.num_gpu_blocks = options.blocks
        # A CPU's vLLM does not overlap steps; what is simulated is a device.
        whole.scheduler_config.async_scheduling = parts.is_async
        layout = kv.KVCacheConfig(
            num_blocks=options.blocks, kv_cache_tensors=[], kv_cache_groups=parts.kv_groups
        )
        if options.has_plugin:
            scheduler = importlib.import_module("turnpike_vllm.scheduler").TurnpikeScheduler
        else:
            scheduler = whole.scheduler_config.get_scheduler_cls()
        return scheduler(
            vllm_config=whole,
            kv_cache_config=layout,
            structured_output_manager=vllm["structured"].StructuredOutputManager(whole),
            block_size=options.block_size,
            hash_block_size=options.block_size,
            log_stats=False,
        )

    def _build_hasher(self) -> Any:
        hashing = importlib.import_module("vllm.utils.hashing")
        kv_utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        function = hashing.get_hash_fn_by_name("sha256")
        if not hasattr(
            kv_utils, "NONE_HASH"
        ):  # older versions draw another each time: other engines' hashes fail
            kv_utils.init_none_hash(function)
        return kv_utils.get_request_block_hasher(self.options.block_size, function)


def _modules() -> dict[str, Any]:
    names = {
        "config": "vllm.config",
        "kv_interface": "vllm.v1.kv_cache_interface",
        "outputs": "vllm.v1.outputs",
        "request": "vllm.v1.request",
        "sampling": "vllm.sampling_params",
        "structured": "vllm.v1.structured_output",
    }
    return {key: importlib.import_module(name) for key, name in names.items()}
