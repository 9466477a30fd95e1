"""One replica: an engine loop around vLLM's scheduler, on the virtual clock.

The loop is that of vLLM's engine core, one step after the other: schedule, compute, take in what was
computed. Computing takes the time that the cost model says, and its result is that every request that is not
in the middle of its prompt has one more token.

Deviation: live, vLLM schedules the next step while one computes, so that a request that arrives waits for
up to one step more than here.

Between steps that matter the loop takes *stretches* (`stretch.py`). One is only planned when it begins, and
carried out as far as it came when it ends or something happens to this replica: a turn arrives, somebody
looks. So planning far ahead costs nothing.
"""

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from gateway.domain.ids import ReplicaId
from lab.simulator.engine.hand_over import KvExchange, exchange_config
from lab.simulator.engine.host_tier import HostTier, offload_config
from lab.simulator.engine.options import EngineOptions, EngineSpec, SchedulingPolicy
from lab.simulator.engine.plugin import RETRY_S, Plugin
from lab.simulator.engine.policy_hooks import PolicyHooks
from lab.simulator.engine.scheduler import build_request, build_scheduler
from lab.simulator.engine.steps import StepTimes
from lab.simulator.engine.stretch import Stretch, advance, limit, within_blocks
from lab.simulator.engine.turn import EngineTurn, TurnListener
from lab.simulator.engine.work import EngineCounts, Work
from lab.simulator.kernel import Alarm, Kernel


class ReplicaEngine:
    def __init__(
        self, spec: EngineSpec, options: EngineOptions, *, kernel: Kernel, listener: TurnListener, seed: str
    ) -> None:
        self.name: ReplicaId = spec.name
        self.scheduler = build_scheduler(spec, options, _transfer_config(spec))
        self.counts = EngineCounts()
        self.kv_blocks = spec.kv_blocks - 1  # vLLM keeps one for itself
        self.host_kv_tokens = int(spec.offload_bytes / spec.profile.model.kv_bytes_per_token) or None
        self._kernel = kernel
        self._listener = listener
        self._options = options
        self._block_size = options.block_size
        self._times = StepTimes(spec.profile, noise=spec.noise, seed=seed)
        self._token_budget = spec.profile.chunk_tokens
        self._pool = self.scheduler.kv_cache_manager.block_pool
        self._work: dict[int, Work] = {}
        self._are_marked = False
        """Some turn had marks."""
        self._alarm: Alarm | None = None
        """At the end of the step or stretch that is going on, or where one begins; None while idle."""
        self._stretch: Stretch | None = None
        """That is going on, if one is."""
        self._is_head_refused = False
        """The scheduler's last pass left somebody waiting, and nothing has changed for them since."""
        self._is_resting = False
        """Nothing can be computed before a transfer has ended; the alarm is for that."""
        self._count_preempted()
        self.plugin: Plugin | None = None
        if options.plugin is not None:
            self.plugin = Plugin(self.scheduler, clock=lambda: kernel.now, piggyback=options.piggyback)
        self._takes_stretches = options.takes_stretches and self.plugin is None
        self.exchange: KvExchange | None = None
        if spec.network_bytes_per_s:
            self.exchange = KvExchange(
                spec,
                self.scheduler,
                kernel=kernel,
                turn_of=lambda number: self._work[number].turn,
                before=self.settle,
                changed=self._books_changed,
                arrived=self._loaded,
            )
        self._tier = HostTier(spec, options) if spec.offload_bytes else self.exchange
        """What brings blocks from elsewhere."""
        self._hooks: PolicyHooks | None = None
        if options.policy is not None:
            self._hooks = PolicyHooks(
                options.policy(),
                self.scheduler,
                options,
                kernel,
                self._work,
                kv_used=self.kv_used,
                before_release=self.settle,
                after_release=self._blocks_were_released,
            )
        self._retention = self._hooks.retention if self._hooks is not None else None
        self._has_order = self._hooks is not None and self._hooks.has_order

    # --- what others ask ---------------------------------------------------------------------------

    def submit(self, turn: EngineTurn) -> None:
        """Takes a turn in. It is scheduled with the step that begins next."""
        priority = turn.priority
        if self._hooks is not None and self._hooks.has_priorities:
            priority = self._hooks.policy.priority(turn, now=self._kernel.now)
        request = build_request(turn, block_size=self._block_size, priority=priority)
        self._work[turn.number] = Work(turn, request)
        self._are_marked = self._are_marked or bool(turn.marks)
        self.scheduler.add_request(request)
        if self._alarm is None or self._is_resting:
            self._begin_now()
            return
        if self._options.scheduling_policy is not SchedulingPolicy.FCFS:
            self._is_head_refused = False  # this one may be let in before those who wait
        if self._stretch is not None and not self._is_head_refused:
            self._cut()

    def abort(self, number: int) -> None:
        """Whoever sent this prefill does not want it any more."""
        self.settle()
        work = self._work[number]
        self.scheduler.finish_requests([number], RequestStatus.FINISHED_ABORTED)
        self._count_moved(work)
        del self._work[number]
        self._is_head_refused = False
        if self._stretch is not None:
            self._cut()

    def end(self) -> None:
        """The simulation is over; what a policy still holds is let go."""
        if self._retention is not None:
            self._retention.let_all_go()
        if self.exchange is not None:
            self.exchange.end()
        if self.plugin is not None:
            self.plugin.end()

    def hint(self, text: str) -> None:
        """What comes outside of a request."""
        if self.plugin is not None:
            self.plugin.hint(text)

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._work) - self.running

    @property
    def turns(self) -> int:
        """That are in the engine."""
        return len(self._work)

    def settle(self) -> None:
        """Carries out the steps that are over, so that the books are those of now."""
        if self._stretch is None:
            return
        steps, time_s = self._stretch.take(now=self._kernel.now)
        if steps:
            advance(self.scheduler, steps, self._block_size)
            self._times.took(steps)
            self.counts.steps += steps
            self.counts.computed_tokens += steps * len(self.scheduler.running)
            self.counts.busy_s += time_s

    def kv_used(self) -> float:
        """Share of the KV blocks that are held."""
        free: int = self._pool.get_num_free_blocks()
        return 1.0 - free / self.kv_blocks

    def kv_retained(self) -> float | None:
        """Share of them that are held for turns to come; None where nobody holds any."""
        holder = self.plugin or self._retention
        return None if holder is None else holder.retained_blocks() / self.kv_blocks

    # --- the loop ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A step begins, if there is something to do."""
        self._alarm = None
        self._is_resting = False
        if self._tier is not None:
            self._hear_of_transfers(self._tier)
        if self._takes_stretches and self._begin_stretch():
            return
        if self._hooks is not None and self._has_order:
            self._hooks.order_waiting()
        scheduler = self.scheduler
        out, starts_s = self._pass()
        while not out.total_num_scheduled_tokens:
            if not out.preempted_req_ids:
                self._rest()
                return
            out, starts_s = self._pass()  # whoever ran was preempted, and whoever waits was not looked at
        self._is_head_refused = (
            bool(scheduler.waiting)
            and self._tier is None  # with one, waiting has more reasons
            and not out.preempted_req_ids
            and out.total_num_scheduled_tokens < self._token_budget
        )
        for new in out.scheduled_new_reqs:
            self._runs_first(self._work[new.req_id], new.num_computed_tokens)
        if out.scheduled_cached_reqs.resumed_req_ids:
            self._count_resumed(out.scheduled_cached_reqs)
        time_s = self._times.next_s(out.num_scheduled_tokens, self._work)
        self.counts.steps += 1
        self.counts.scheduled_steps += 1
        self.counts.computed_tokens += out.total_num_scheduled_tokens
        self._alarm = self._kernel.at(starts_s + time_s, self._end, out, time_s)

    def _pass(self) -> tuple[Any, float]:
        """What the scheduler decides, and when that step can begin."""
        now = self._kernel.now
        out = self.scheduler.schedule()
        self.counts.preemptions += len(out.preempted_req_ids or ())
        if self._tier is None:
            return out, now
        starts_s, loads_end_s = self._tier.begin_step(out.kv_connector_metadata, now=now)
        for end_s in loads_end_s:
            self._kernel.at(end_s, self._loaded)
        return out, starts_s

    def _count_preempted(self) -> None:
        """Whoever is preempted loses what it had, and may find some of it, or more, when it runs again."""
        preempt = self.scheduler._preempt_request  # noqa: SLF001 - nothing else says what was lost

        def counted(request: Any, *rest: Any, **how: Any) -> Any:
            self.counts.again_tokens += request.num_computed_tokens
            return preempt(request, *rest, **how)

        self.scheduler._preempt_request = counted  # noqa: SLF001

    def _count_resumed(self, cached: Any) -> None:
        for number, tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if number in cached.resumed_req_ids:
                self.counts.again_tokens -= tokens

    def _runs_first(self, work: Work, cached_tokens: int) -> None:
        if work.cached_tokens is None:
            work.cached_tokens = work.turn.cached_tokens = cached_tokens
            work.turn.began_s = self._kernel.now
            if not work.turn.is_prefill:
                self.counts.prompt_tokens += work.turn.turn.input_tokens
                self.counts.cached_tokens += cached_tokens
            if self._retention is not None:
                self._retention.let_go(work.turn)  # the request holds them now

    def _end(self, out: Any, time_s: float) -> None:
        """A step is over: tells who has a first token, who has the last, and begins the next one."""
        self.counts.busy_s += time_s
        work = self._work
        numbers = list(out.num_scheduled_tokens)
        batch = [work.get(number) for number in numbers]  # None: aborted meanwhile
        sampled = [[] if each is None or each.request.is_prefill_chunk else [0] for each in batch]
        computed = ModelRunnerOutput(
            req_ids=numbers,
            req_id_to_index={number: index for index, number in enumerate(numbers)},
            sampled_token_ids=sampled,
        )
        self.scheduler.update_from_output(out, computed)
        for each, tokens in zip(batch, sampled, strict=True):
            if each is None or not tokens:
                continue
            if not each.has_token:
                each.has_token = True
                self._listener.first_token(each.turn)
            if each.turn.marks:
                self._tell_marks(each)
            if each.request.is_finished():
                self._is_head_refused = False
                self._finished(each)
        self._begin()

    def _tell_marks(self, work: Work) -> None:
        while (missing := work.to_mark()) is not None and missing <= 0:
            tokens = work.turn.marks[work.marks]
            work.marks += 1
            self._listener.reached(work.turn, tokens)

    def _finished(self, work: Work) -> None:
        del self._work[work.turn.number]
        assert work.cached_tokens is not None
        if work.turn.is_prefill:
            self._count_moved(work)
        self._listener.finished(
            work.turn, cached_tokens=work.cached_tokens, preemptions=work.request.num_preemptions
        )

    def _count_moved(self, work: Work) -> None:
        if work.cached_tokens is not None:
            self.counts.moved_tokens += work.request.num_computed_tokens - work.cached_tokens

    # --- stretches ---------------------------------------------------------------------------------

    def _begin_stretch(self) -> bool:
        scheduler = self.scheduler
        running = scheduler.running
        waiting = len(self._work) - len(running)
        if not running or (waiting > 1 and self._has_order):
            return False
        if self._tier is not None:
            # Whoever loads goes on loading; anybody else who waits may be let in by any pass, and so may
            # whoever was refused after its blocks had come.
            if scheduler.waiting or scheduler.finished_req_ids or not self._only_loads():
                return False
            self._tier.send_deferred(now=self._kernel.now)
        elif waiting and not self._is_head_refused:
            return False
        grace_ends_s = self._retention.grace_ends_s() if self._retention is not None else None
        if grace_ends_s is not None and grace_ends_s <= self._kernel.now:
            return False  # who waits is to be let in
        steps = limit(running, self._pool.get_num_free_blocks(), self._block_size)
        if self._tier is not None and self._tier.stores_full_blocks:
            steps = min(steps, within_blocks(running, self._block_size))
        if self._are_marked:
            missing = [each.to_mark() for each in self._work.values() if each.has_token]
            steps = min([steps, *(tokens for tokens in missing if tokens is not None)])
        if steps < 1:
            return False
        context = sum(request.num_computed_tokens for request in running)
        now = self._kernel.now
        self._stretch = Stretch(now, self._times.stretch(now, len(running), context, steps))
        if grace_ends_s is not None:
            self._stretch.cut(at_s=grace_ends_s)
        self._alarm = self._kernel.at(self._stretch.end_s, self._end_stretch)
        return True

    def _only_loads(self) -> bool:
        """Whether all that wait with blocks of their own wait for blocks that are on their way."""
        scheduler = self.scheduler
        return not scheduler.finished_recving_kv_req_ids and all(
            request.status is RequestStatus.WAITING_FOR_REMOTE_KVS for request in scheduler.kv_holding_waiting
        )

    def _end_stretch(self) -> None:
        self.settle()
        self._stretch = None
        if self._are_marked:
            for request in tuple(self.scheduler.running):
                self._tell_marks(self._work[request.request_id])
        self._begin()

    def _cut(self) -> None:
        """The stretch ends with the step that is going on."""
        assert self._alarm is not None and self._stretch is not None
        if self._stretch.cut(at_s=self._kernel.now):
            self._alarm.call_off()
            self._alarm = self._kernel.at(self._stretch.end_s, self._end_stretch)

    # --- what comes from elsewhere -------------------------------------------------------------------

    def _hear_of_transfers(self, tier: HostTier | KvExchange) -> None:
        report = tier.take_ended(now=self._kernel.now)
        if report is not None:
            self.scheduler.update_from_output(SchedulerOutput.make_empty(), report)

    def _rest(self) -> None:
        """Nothing to compute. What waits, if anybody does, may be let in when a transfer has ended."""
        if self.plugin is not None and self._work:
            self._is_resting = True
            self._alarm = self._kernel.after(RETRY_S, self._begin)
        if self._tier is None:
            return
        self._tier.send_deferred(now=self._kernel.now)  # as the next pass would, which vLLM makes at once
        end_s = self._tier.next_end_s()
        if self._work and end_s is not None and self._alarm is None:
            self._is_resting = True
            self._alarm = self._kernel.at(max(end_s, self._kernel.now), self._begin)

    def _loaded(self) -> None:
        """Somebody's blocks are there."""
        if self._stretch is not None:
            self._cut()
        elif self._alarm is None or self._is_resting:
            self._begin_now()

    def _begin_now(self) -> None:
        """Behind whatever else happens at this time."""
        if self._alarm is not None:
            self._alarm.call_off()
        self._is_resting = False
        self._alarm = self._kernel.at(self._kernel.now, self._begin)

    def _blocks_were_released(self) -> None:
        """Between steps, so whoever waits may have a chance."""
        if self._stretch is not None and not self.waiting:
            self._is_head_refused = False
        else:
            self._books_changed()

    def _books_changed(self) -> None:
        """Other blocks are free than when the stretch was planned that is going on, if one is."""
        self._is_head_refused = False
        if self._alarm is None and self._work:
            self._begin_now()
        elif self._stretch is not None:
            self._cut()


def _transfer_config(spec: EngineSpec) -> Any:
    """None if blocks come from nowhere else."""
    if spec.offload_bytes:
        return offload_config(spec)
    return exchange_config(spec) if spec.network_bytes_per_s else None
