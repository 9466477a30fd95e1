"""All features of the plugin in one scheduler, behind the few calls that the seams make.

Asleep until the first hint: a server that nobody hints pays for one test per request.
Awake until the server ends. Should anything here fail, `fail` lets go of all that is held and the features
become inert: vLLM goes on as it would have.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turnpike_vllm import hints, telemetry
from turnpike_vllm.classes import Piggyback
from turnpike_vllm.coordinator import Coordinator
from turnpike_vllm.hints import Hint, Refusal, ServiceClass
from turnpike_vllm.request_state import ATTRIBUTE, RequestState, without_hint
from turnpike_vllm.retain.kv_retainer import KvRetainer
from turnpike_vllm.retain.pool import KvPool, host_blocks
from turnpike_vllm.retain.retention import Retention, RetentionConfig, Thread
from turnpike_vllm.sessions import Session, Sessions
from turnpike_vllm.settings import Settings
from turnpike_vllm.step_planner import StepPlanner
from turnpike_vllm.step_time import StepTimeModel

# A reactive session without hints for so long does not count as alive.
REACTIVE_LIVES_S = 60.0

# Where nothing changes, a step is looked at after so long at the latest, however long steps take.
LOOK_WITHIN_S = 1.0

# More steps than these are never under way: the oldest then has had no output.
MAX_TIMED = 64


class Timed(NamedTuple):
    output: Any
    began: float
    tokens: int
    rows: int
    context: int
    behind: int
    """Tokens behind those that decode."""


class EngineHooks(NamedTuple):
    """What the scheduler around it does for the plugin."""

    is_running: Callable[[Any], bool]
    watch: Callable[[bool], None]
    """Look at each request's output, or no more."""
    wake: Callable[[], None]
    failed: Callable[[Exception], None]
    """Takes what goes wrong outside of the scheduler's own calls."""


class EnginePlugin:
    def __init__(
        self,
        scheduler: Any,
        settings: Settings,
        features: dict[str, str],
        *,
        clock: Callable[[], float],
        hooks: EngineHooks,
        hint_key: str | None = None,
    ) -> None:
        """``hint_key``: with what hints in requests are signed; None follows all of them."""
        self.scheduler = scheduler
        self.settings = settings
        # Feature → "on", or why it is off.
        self.features = features
        self.clock = clock
        self._hint_key = hint_key
        self.is_awake = False
        self.is_inert = False
        # Since the server started.
        self.failures = 0
        self.hint_counts: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter()
        self._wake = hooks.wake
        self._failed = hooks.failed
        self._is_running = hooks.is_running
        self.sessions = Sessions(settings.max_sessions)
        self.pace = StepTimeModel()
        self.pool = KvPool(scheduler.kv_cache_manager, scheduler.block_size)
        retention, classes = settings.retention or RetentionConfig(budget=0.0), settings.classes
        self.retainer = KvRetainer(
            self.pool,
            self.sessions,
            self.pace,
            Retention(retention, self.pool.total_blocks, self.pool.groups == 1),
        )
        self.planner = StepPlanner(
            scheduler,
            self.pool,
            self.state_of,
            None if settings.coordinator is None else Coordinator(settings.coordinator),
            None if classes is None else Piggyback(classes, self.pace),
            hooks.is_running,
            hooks.watch,
        )
        self.planner.has_headroom = features["headroom"] == "on"
        self._reactive_until = float("-inf")
        self._was_blocked = False
        # Since when somebody who waits has found no memory in every step that was looked at.
        self._blocked_since: float | None = None
        # Nothing is due before.
        self.quiet_until = float("-inf")
        # Steps under way whose time is measured, the oldest first.
        self.timed: deque[Timed] = deque(maxlen=MAX_TIMED)
        self._last_output = 0.0

    # Hints.

    def hint(self, given: Sequence[Hint | Refusal]) -> None:
        """What came outside of a request."""
        for each in given:
            if isinstance(each, Refusal):
                self.hint_counts[each.value] += 1
                continue
            self.wake()
            if self.is_inert:
                break
            try:
                self._follow(each, self.clock())
            except Exception as error:  # noqa: BLE001  # as in every seam
                self._failed(error)

    def arriving(self, request: Any) -> None:
        """A request is about to be queued."""
        if self.is_inert:
            return
        given = _carried_by(request, self._hint_key)
        self.hint_counts.update(each.value for each in given if isinstance(each, Refusal))
        found = [each for each in given if isinstance(each, Hint)]
        if found:
            self.wake()
        if not self.is_awake:
            return
        now = self.clock()
        state = without_hint(request, now)
        setattr(request, ATTRIBUTE, state)
        for each in found:
            self._annotate(state, each, now)
        self.planner.enter(state)

    def _annotate(self, state: RequestState, hint: Hint, now: float) -> None:
        """The request is this thread's, however old the hint is."""
        self._follow(hint, now, begins_turn=True)
        session = self.sessions.get(hint.session)
        state.session, state.thread = session, Thread(hint.session, hint.thread)
        state.is_final = hint.is_final
        if session is not None:
            state.task_at = session.task_at
            state.service_class = session.service_class if hint.service is None else hint.service

    def _follow(self, hint: Hint, now: float, *, begins_turn: bool = False) -> None:
        found = self.sessions.follow(hint, begins_turn=begins_turn, now=now)
        if not isinstance(found, Session):
            self.hint_counts[found.value] += 1
            return
        self.hint_counts["followed"] += 1
        self.planner.passes_until = 0
        if found.service_class is ServiceClass.REACTIVE and not found.is_finished:
            self._reactive_until = now + REACTIVE_LIVES_S
        self.retainer.apply_hint(hint, now=now)

    # The seams.

    def wake(self) -> None:
        if not self.is_awake and not self.is_inert:
            self.is_awake = True
            self._wake()

    def state_of(self, request: Any, service_class: ServiceClass = ServiceClass.REACTIVE) -> RequestState:
        """``service_class``: of a request that is not known yet."""
        state: RequestState | None = getattr(request, ATTRIBUTE, None)
        if state is None:  # it was there before us
            state = without_hint(request, self.clock())
            state.service_class = service_class
            setattr(request, ATTRIBUTE, state)
            self.planner.enter(state)
        return state

    def before_step(self) -> None:
        now = self.clock()
        self.retainer.observe(is_blocked=self._was_blocked, now=now)
        if not self._was_blocked:
            self._blocked_since = None
        self._was_blocked = False
        self.planner.before_step(is_reactive_alive=now < self._reactive_until, now=now)
        self.retainer.expire(now)
        self.planner.update_steady_state()

    def after_step(self, output: Any) -> None:
        if self.is_inert:  # it failed in this step
            return
        now, planner = self.clock(), self.planner
        for new in output.scheduled_new_reqs:
            request = self.scheduler.requests.get(new.req_id)
            if request is not None:
                self._admitted(self.state_of(request), new.num_computed_tokens)
        tokens = output.total_num_scheduled_tokens
        contexts = getattr(output.scheduled_cached_reqs, "num_computed_tokens", ())
        decodes = tokens == len(contexts) and not planner.prefill
        if not decodes:
            planner.leave_steady_state()
        # Steps that only decode are many and alike.
        if tokens and (planner.is_due or not decodes):
            rows, context = max(0, tokens - planner.prefill), sum(contexts)
            behind = context if decodes else _behind(output)
            self.timed.append(Timed(output, now, tokens, rows, context, behind))
        if planner.is_steady:
            deadline = self.retainer.retention.next_deadline()
            latest = now + LOOK_WITHIN_S
            self.quiet_until = latest if deadline is None else min(deadline, latest)

    def output_arrived(self, output: Any) -> None:
        """While a step is measured: of that step, or of one before it."""
        now, timed = self.clock(), self.timed[0]
        last, self._last_output = self._last_output, now
        if timed.output is output:
            self.timed.popleft()
            took_s = now - max(timed.began, last)
            self.pace.observe(
                took_s, tokens=timed.tokens, rows=timed.rows, context=timed.context, behind=timed.behind
            )

    def chunk(self, request: Any, computed: int, tokens: int) -> int:
        return self.planner.chunk(request, computed, tokens, self.clock())

    def starved(self, request: Any) -> bool:
        """A request found no memory. Whether there is more now."""
        now, state = self.clock(), self.state_of(request)
        runs = self._is_running(request)
        if not runs:
            self._was_blocked = True
            if state.blocked_since is None:
                state.blocked_since = now
            if self._blocked_since is None:
                self._blocked_since = now
        # One after the other, each behind the one before it, they would all wait as long.
        waited = 0.0 if self._blocked_since is None else now - self._blocked_since
        alone = not self.scheduler.running
        return self.retainer.make_room(state, is_running=runs, is_alone=alone, waited_s=waited, now=now)

    def freeing(self, request: Any, *, is_normal: bool) -> None:
        """A request has ended, and still has its blocks."""
        now, state = self.clock(), self.state_of(request)
        self.planner.leave(state)
        if is_normal:
            self.retainer.turn_ended(state, is_blocked=self._was_blocked, now=now)

    def preempting(self, request: Any) -> None:
        """A running request is about to lose its blocks."""
        self.preemptions[self.state_of(request).service_class.name.lower()] += 1
        self.planner.invalidate()

    def resetting(self) -> None:
        self.retainer.reset()

    def fail(self, error: Exception) -> None:
        """Something here went wrong: say so, and let go of everything."""
        self.is_inert = True
        why = f"given up: {type(error).__name__}"
        self.features = {name: why if how == "on" else how for name, how in self.features.items()}
        self.retainer.abandon()

    def _admitted(self, state: RequestState, cached_tokens: int) -> None:
        state.blocked_since = None
        self.planner.invalidate()
        self.retainer.admitted(state, cached_tokens)

    # Telemetry.

    def tick(self) -> None:
        """Deadlines pass while nothing runs, too."""
        if not self.is_awake or self.is_inert:
            return
        try:
            self.retainer.expire(self.clock())
        except Exception as error:  # noqa: BLE001  # as in every seam
            self._failed(error)

    def snapshot(self) -> dict[str, Any]:
        """Plain data. Costs a look at every running and waiting request and every retained block."""
        self.tick()
        retention = self.retainer.retention
        free, used, retained = self.pool.account([hold.blocks for hold in retention.holds])
        deadline = retention.next_deadline()
        counters = self.counters()
        return {
            "v": telemetry.SNAPSHOT_VERSION,
            "hints": [hints.VERSION],
            "state": "inert" if self.is_inert else "awake" if self.is_awake else "asleep",
            "features": self.features,
            "failures": self.failures,
            "block_size": self.pool.block_size,
            "blocks": {
                "total": self.pool.total_blocks,
                "free": free,
                "used": used,
                "retained": retained,
                **({"host": host} if (host := host_blocks(self.scheduler)) else {}),
            },
            "running": self._by_class(self.scheduler.running),
            "waiting": self._by_class(self._waiting()),
            "sessions": self._sessions(),
            "next_deadline_s": None if deadline is None else max(0.0, deadline - self.clock()),
            "counters": counters,
            "acted": telemetry.acted(counters),
            "saved_s": {"retention": self.retainer.saved_s},
        }

    def counters(self) -> dict[str, dict[str, int]]:
        retention = self.retainer.retention
        return {
            "hints": dict(self.hint_counts),
            "holds": dict(self.retainer.holds),
            "releases": dict(self.retainer.releases),
            "preemptions": dict(self.preemptions),
            "order": dict(self.planner.order),
            "classes": dict(self.planner.classes),
            "retention": {"holds": len(retention), "given_up": int(retention.has_given_up)},
        }

    def _waiting(self) -> list[Any]:
        held = getattr(self.scheduler, "kv_holding_waiting", None) or ()
        return [*self.scheduler.waiting, *held]

    def _by_class(self, requests: Sequence[Any]) -> dict[str, int]:
        found = {each.name.lower(): 0 for each in ServiceClass}
        for request in requests:
            state = getattr(request, ATTRIBUTE, None) or without_hint(request, 0.0)
            found[state.service_class.name.lower()] += 1
        return found

    def _sessions(self) -> dict[str, dict[str, float]]:
        """The newest sessions, with the blocks that each holds."""
        retained = self.retainer.retained_by_session()
        running: Counter[str] = Counter()
        for request in self.scheduler.running:
            state = getattr(request, ATTRIBUTE, None)
            if state is not None and state.session is not None:
                running[state.session.name] += self.pool.blocks_held_by(request.request_id)
        by_session: dict[str, dict[str, float]] = {}
        for session in reversed(list(self.sessions)):
            if len(by_session) == telemetry.MAX_SESSIONS_REPORTED:
                break
            by_session[session.name] = {
                "retained": retained[session.name],
                "running": running[session.name],
                "resident": max(running[session.name], retained[session.name]),
            }
        return by_session


def _behind(output: Any) -> int:
    """Tokens behind the requests that decode, in a step that also computes prompts."""
    cached, tokens = output.scheduled_cached_reqs, output.num_scheduled_tokens
    pairs = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    return sum(computed for request, computed in pairs if tokens[request] == 1)


def _carried_by(request: Any, key: str | None) -> list[Hint | Refusal]:
    """The hints that came with a request; in an envelope where its other place has none."""
    params = request.sampling_params
    extra = None if params is None else params.extra_args
    if extra and hints.XARGS_KEY in extra:
        return [hints.parse_signed(extra[hints.XARGS_KEY], key)]
    envelope = getattr(request, "kv_hints", None)
    return [] if envelope is None else hints.parse_actions(envelope.actions, key)
