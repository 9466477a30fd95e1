"""Everything that biases one scheduler, behind the few calls that the seams make.

Asleep until the first hint: a server that nobody hints pays for one test per request.
Awake until the server ends. Should anything here fail, `fail` lets go of all that is held and the biases
become inert: vLLM goes on as it would have.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turnpike_vllm import hints, telemetry
from turnpike_vllm.classes import Piggyback
from turnpike_vllm.conductor import Conductor
from turnpike_vllm.coordinator import Coordinator
from turnpike_vllm.eviction import Evictor
from turnpike_vllm.ferry import Calls, Ferry
from turnpike_vllm.hints import Hint, Refusal, ServiceClass
from turnpike_vllm.host_tier import CopyPace, HostTier
from turnpike_vllm.keeper import Keeper
from turnpike_vllm.offload import HostCopies, Luggage
from turnpike_vllm.pace import Pace
from turnpike_vllm.pool import KvPool
from turnpike_vllm.retention import Retention, Thread
from turnpike_vllm.rows import ATTRIBUTE, Row, nobodys
from turnpike_vllm.sessions import Session, Sessions
from turnpike_vllm.settings import Settings

REACTIVE_LIVES_S = 60.0
"""A reactive session that nothing was heard of for so long does not count as alive."""

CLAIMS_PER_BLOCK = 8
"""So many threads share a block on average, at most, in what is remembered of who may use what again."""

LOOK_WITHIN_S = 1.0
"""Where nothing changes, a step is looked at after so long at the latest, however long steps take."""

MAX_TIMED = 64
"""More steps than these are never under way: the oldest then has had no output."""


class Timed(NamedTuple):
    output: Any
    began: float
    tokens: int
    rows: int
    context: int
    behind: int
    """Tokens behind those that decode."""


class Biases:
    def __init__(
        self,
        scheduler: Any,
        settings: Settings,
        features: dict[str, str],
        *,
        clock: Callable[[], float],
        is_running: Callable[[Any], bool],
        displace: Callable[[Any, float], bool],
        watch: Callable[[bool], None],
        wake: Callable[[], None],
        failed: Callable[[Exception], None],
        calls: Calls,
        hint_key: str | None = None,
    ) -> None:
        """``failed`` hears of what goes wrong outside of the seams; ``hint_key``: with what hints in requests
        are signed; None follows all of them."""
        self.scheduler = scheduler
        self.settings = settings
        self.features = features
        """Bias → "on", or why it is off."""
        self.clock = clock
        self._hint_key = hint_key
        self.is_awake = False
        self.is_inert = False
        self.failures = 0
        """Since the server started."""
        self.heard: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter()
        self.launch = telemetry.LaunchDelay()
        self._wake = wake
        self._failed = failed
        self._is_running = is_running
        self.sessions = Sessions(settings.max_sessions)
        self.pace = Pace()
        self.pool = KvPool(scheduler.kv_cache_manager, scheduler.block_size)
        retention, eviction, classes = settings.retention, settings.eviction, settings.classes
        self.keeper = Keeper(
            self.pool,
            self.sessions,
            self.pace,
            None if retention is None else Retention(retention, self.pool.total_blocks),
            None if eviction is None else Evictor(eviction, CLAIMS_PER_BLOCK * self.pool.total_blocks),
        )
        if settings.host_tier is not None and self.keeper.retention is not None:
            copies = HostCopies(scheduler)
            tier: HostTier[Luggage] = HostTier(settings.host_tier, CopyPace(copies.bytes_per_block))
            self.keeper.ferry = Ferry(
                tier, copies, self.pool, self.pace, self.keeper.retention, self.keeper.release, calls
            )
        self.conductor = Conductor(
            scheduler,
            self.pool,
            self.row_of,
            None if settings.coordinator is None else Coordinator(settings.coordinator),
            None if classes is None else Piggyback(classes, self.pace),
            is_running,
            displace,
            watch,
        )
        self.conductor.has_victims = features["victims"] == "on"
        self.conductor.has_headroom = features["headroom"] == "on"
        self._reactive_until = float("-inf")
        self._was_blocked = False
        self.quiet_until = float("-inf")
        """Nothing is due before."""
        self.timed: deque[Timed] = deque(maxlen=MAX_TIMED)
        """Steps under way whose time is measured, the oldest first."""
        self._last_output = 0.0

    # Hints.

    def hint(self, given: Sequence[Hint | Refusal]) -> None:
        """What came outside of a request."""
        for each in given:
            if isinstance(each, Refusal):
                self.heard[each.value] += 1
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
        given = _carried_by(request, self._hint_key)
        if self.is_inert or (not given and not self.is_awake):
            return
        self.wake()
        now = self.clock()
        row = nobodys(request, now)
        setattr(request, ATTRIBUTE, row)
        for each in given:
            if isinstance(each, Refusal):
                self.heard[each.value] += 1
            else:
                self._annotate(row, each, now)
        self.conductor.enter(row)

    def _annotate(self, row: Row, hint: Hint, now: float) -> None:
        """The request is this thread's, however old the hint is."""
        self._follow(hint, now, begins_turn=True)
        session = self.sessions.get(hint.session)
        row.session, row.thread = session, Thread(hint.session, hint.thread)
        self.keeper.returning(row.thread)
        row.is_final = hint.is_final
        if session is not None:
            row.task_at = session.task_at
            row.klass = session.klass if hint.service is None else hint.service

    def _follow(self, hint: Hint, now: float, *, begins_turn: bool = False) -> None:
        found = self.sessions.follow(hint, begins_turn=begins_turn, now=now)
        if not isinstance(found, Session):
            self.heard[found.value] += 1
            return
        self.heard["followed"] += 1
        self.conductor.passes_until = 0
        if found.klass is ServiceClass.REACTIVE and not found.is_finished:
            self._reactive_until = now + REACTIVE_LIVES_S
        self.keeper.heard(hint, now=now)

    # The seams.

    def wake(self) -> None:
        if not self.is_awake and not self.is_inert:
            self.is_awake = True
            self._wake()

    def row_of(self, request: Any) -> Row:
        row: Row | None = getattr(request, ATTRIBUTE, None)
        if row is None:  # it was there before us
            row = nobodys(request, self.clock())
            setattr(request, ATTRIBUTE, row)
            self.conductor.enter(row)
        return row

    def before_step(self) -> None:
        now = self.clock()
        self.keeper.observe(is_blocked=self._was_blocked, now=now)
        self._was_blocked = False
        self.conductor.before_step(is_reactive_alive=now < self._reactive_until, now=now)
        self.keeper.expire(now)
        self.conductor.settle()

    def after_step(self, output: Any) -> None:
        if self.is_inert:  # it failed in this step
            return
        now, conductor = self.clock(), self.conductor
        conductor.after_step()
        if self.keeper.ferry is not None:
            self.keeper.ferry.after_step(now)
        for new in output.scheduled_new_reqs:
            request = self.scheduler.requests.get(new.req_id)
            if request is not None:
                self._admitted(self.row_of(request), now)
        tokens = output.total_num_scheduled_tokens
        contexts = getattr(output.scheduled_cached_reqs, "num_computed_tokens", ())
        decodes = tokens == len(contexts) and not conductor.prefill
        if not decodes:
            conductor.unsettle()
        # Steps that only decode are many and alike.
        if tokens and (conductor.is_due or not decodes):
            rows, context = max(0, tokens - conductor.prefill), sum(contexts)
            behind = context if decodes else _behind(output)
            self.timed.append(Timed(output, now, tokens, rows, context, behind))
        if conductor.is_settled:
            deadline = self.keeper.next_deadline()
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
        return self.conductor.chunk(request, computed, tokens, self.clock())

    def starved(self, request: Any) -> bool:
        """A request found no memory. Whether there is more now."""
        now, row = self.clock(), self.row_of(request)
        if row.is_call:
            return False
        runs = self._is_running(request)
        if not runs:
            self._was_blocked = True
            if row.blocked_since is None:
                row.blocked_since = now
        waited = 0.0 if row.blocked_since is None else now - row.blocked_since
        alone = not self.scheduler.running
        return self.keeper.make_room(row, is_running=runs, is_alone=alone, waited_s=waited, now=now)

    def freeing(self, request: Any, *, is_normal: bool) -> None:
        """A request has ended, and still has its blocks."""
        now, row = self.clock(), self.row_of(request)
        if row.is_call:
            if self.keeper.ferry is not None:
                self.keeper.ferry.freeing(request, now)
            return
        self.conductor.leave(row)
        self.keeper.turn_ended(row, is_normal=is_normal, is_blocked=self._was_blocked, now=now)

    def preempting(self, request: Any) -> None:
        """A running request is about to lose its blocks."""
        self.preemptions[self.row_of(request).klass.name.lower()] += 1
        self.keeper.preempted(self.row_of(request), self.clock())
        self.conductor.stir()

    def resetting(self) -> None:
        self.keeper.reset()

    def fail(self, error: Exception) -> None:
        """Something here went wrong: say so, and let go of everything."""
        self.is_inert = True
        why = f"given up: {type(error).__name__}"
        self.features = {name: why if how == "on" else how for name, how in self.features.items()}
        self.keeper.abandon()

    def _admitted(self, row: Row, now: float) -> None:
        row.blocked_since = None
        self.conductor.stir()
        if row.admitted is None:
            row.admitted = now
            self.launch.add(now - row.arrived)
        self.keeper.admitted(row, now)

    # Telemetry.

    def tick(self) -> None:
        """Deadlines pass while nothing runs, too."""
        if not self.is_awake or self.is_inert:
            return
        try:
            self.keeper.expire(self.clock())
        except Exception as error:  # noqa: BLE001  # as in every seam
            self._failed(error)

    def snapshot(self) -> dict[str, Any]:
        """Plain data. Costs a look at every running and waiting request and every retained block."""
        self.tick()
        retention = self.keeper.retention
        holds = [] if retention is None else [hold.blocks for hold in retention.holds]
        free, used, retained = self.pool.account(holds)
        deadline, ferry = self.keeper.next_deadline(), self.keeper.ferry
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
                **({} if ferry is None else {"host": ferry.copies.blocks}),
            },
            "running": self._by_class(self.scheduler.running),
            "waiting": self._by_class(self._waiting()),
            "sessions": self._sessions(),
            "launch_delay": self.launch.as_dict(),
            "pace": {"steps": self.pace.steps, "s_per_token": self.pace.per_token_s},
            "host_tier": None if ferry is None else ferry.snapshot(),
            "next_deadline_s": None if deadline is None else max(0.0, deadline - self.clock()),
            "counters": self.counters(),
        }

    def counters(self) -> dict[str, dict[str, int]]:
        retention, ferry = self.keeper.retention, self.keeper.ferry
        return telemetry.counters(
            hints=self.heard,
            holds=self.keeper.holds,
            releases=self.keeper.releases,
            host_tier=Counter() if ferry is None else ferry.counts,
            preemptions=self.preemptions,
            order=self.conductor.order,
            classes=self.conductor.classes,
            evictions=Counter(named=self.pool.named_victims),
            retention=Counter(
                holds=0 if retention is None else len(retention),
                given_up=bool(retention is not None and retention.has_given_up),
            ),
        )

    def _waiting(self) -> list[Any]:
        held = getattr(self.scheduler, "kv_holding_waiting", None) or ()
        return [*self.scheduler.waiting, *held]

    def _by_class(self, requests: Sequence[Any]) -> dict[str, int]:
        found = {each.name.lower(): 0 for each in ServiceClass}
        for request in requests:
            row = getattr(request, ATTRIBUTE, None) or nobodys(request, 0.0)
            found[row.klass.name.lower()] += 1
        return found

    def _sessions(self) -> dict[str, dict[str, float]]:
        """The sessions that hold anything, and the last ones heard of."""
        retained = self.keeper.retained_by_session()
        running: Counter[str] = Counter()
        for request in self.scheduler.running:
            row = getattr(request, ATTRIBUTE, None)
            if row is not None and row.session is not None:
                running[row.session.name] += self.pool.blocks_held_by(request.request_id)
        told: dict[str, dict[str, float]] = {}
        for session in reversed(list(self.sessions)):
            if len(told) == telemetry.MAX_SESSIONS_TOLD:
                break
            told[session.name] = {
                "retained": retained[session.name],
                "running": running[session.name],
                "resident": max(running[session.name], self.keeper.resident(session)),
            }
        return told


def _behind(output: Any) -> int:
    """Tokens behind the requests that decode, in a step that also computes prompts."""
    cached, tokens = output.scheduled_cached_reqs, output.num_scheduled_tokens
    pairs = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    return sum(computed for request, computed in pairs if tokens[request] == 1)


def _carried_by(request: Any, key: str | None) -> list[Hint | Refusal]:
    """The hints that came with a request."""
    given: list[Hint | Refusal] = []
    params = request.sampling_params
    extra = None if params is None else params.extra_args
    if extra and hints.XARGS_KEY in extra:
        raw = extra[hints.XARGS_KEY]
        given.append(hints.parse(raw) if key is None else hints.parse_signed(raw, key))
    envelope = getattr(request, "kv_hints", None)
    if envelope is not None:
        given += hints.parse_actions(envelope.actions)
    return given
