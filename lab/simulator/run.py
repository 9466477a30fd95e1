"""One simulation: sessions arrive, are played, and are over; then the books are checked."""

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from gateway.assembly import assemble
from gateway.config import Config
from gateway.config.profiles import load_profile as load_known_profile
from gateway.config.upstream import PoolConfig, ReplicaConfig
from gateway.core import events as ev
from gateway.core.coordinator import Coordinator
from gateway.cost.profile import Profile
from gateway.domain.fleet import Abilities, ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.session_ids import numbered_ids
from gateway.requests.kv_transfer import TransferName
from gateway.routing.placement import RoutingConfig
from lab.simulator.agents import Agent, Stage
from lab.simulator.brain import Brain
from lab.simulator.conservation import check_end
from lab.simulator.driver import Call, ClientConfig, Driver
from lab.simulator.engine import build_engines
from lab.simulator.engine.front import Front, FrontCosts
from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.errors import ConservationError, SimulatorError
from lab.simulator.fleet import Change, FleetSpec
from lab.simulator.hosts import HostProbe, ToolHost
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.kernel import Kernel
from lab.simulator.network import Network
from lab.simulator.results import Ignore, ReplicaSample, SessionOutcome, Sink, Totals, TurnOutcome
from lab.simulator.signals import Reports
from lab.workload.trace.content import ContentChain
from lab.workload.trace.format import Session

if TYPE_CHECKING:
    from lab.simulator.engine.replica import ReplicaEngine

POOL = PoolId("sim")
"""The one pool that a simulated fleet is."""


def stock_config(fleet: FleetSpec) -> Config:
    """The gateway's defaults, before this fleet."""
    replicas = tuple(
        ReplicaConfig(
            url=f"http://{name}",
            role=group.role,
            price_per_h=group.price_per_h,
        )
        for name, group in fleet.each()
    )
    transfer: TransferName | None = "nixl" if fleet.hands_over else None
    return Config(
        pools=(PoolConfig(name=POOL, replicas=replicas, transfer=transfer),),
        routing=RoutingConfig(price_per_s=fleet.price_per_s),
    )


def stock_coordinator(fleet: FleetSpec) -> Coordinator:
    return assemble(stock_config(fleet), session_ids=numbered_ids())


def simulate(
    sessions: Iterable[Session],
    fleet: FleetSpec,
    make_brain: Callable[[FleetSpec], Brain] = stock_coordinator,
    *,
    options: EngineOptions | None = None,
    client: ClientConfig | None = None,
    seed: int = 0,
    sink: Sink | None = None,
    sample_every_s: float | None = None,
    isolated: IsolatedTimes | None = None,
    load_profile: Callable[[str], Profile] = load_known_profile,
    front: FrontCosts | None = None,
) -> Totals:
    """Plays the sessions, in the order of their arrival, until the last of them is over.

    `sessions` is read as they arrive, and nothing is kept of those that are over. A brain's only pool is
    `POOL`. `front`: what servers do with a request before their engines have it; nothing, by default. With
    `isolated` given, what it has learned is used, and kept for the next simulation.

    Raises SimulatorError for what cannot be simulated, ConservationError if anything was lost on the way.
    """
    run = _Run(
        iter(sessions),
        fleet,
        make_brain(fleet),
        options or EngineOptions(),
        client or ClientConfig(),
        seed,
        sink or Ignore(),
        sample_every_s,
        isolated,
        load_profile,
        front,
    )
    gc.collect()
    gc.freeze()  # blocks by the hundred thousand, which live as long as the simulation
    try:
        return run.run()
    finally:
        gc.unfreeze()


class _Run:
    """Also the agents' `Audience`."""

    def __init__(
        self,
        sessions: Iterator[Session],
        fleet: FleetSpec,
        brain: Brain,
        options: EngineOptions,
        client: ClientConfig,
        seed: int,
        sink: Sink,
        sample_every_s: float | None,
        isolated: IsolatedTimes | None,
        load_profile: Callable[[str], Profile],
        front: FrontCosts | None,
    ) -> None:
        self._sessions = sessions
        self._sink = sink
        self._sample_every_s = sample_every_s
        self._options = options
        self._totals = Totals()
        self._live = 0
        self._is_exhausted = False
        self._kernel = Kernel()
        is_deaf = isinstance(sink, Ignore) and type(sink).record is Ignore.record
        self._driver = Driver(
            brain, kernel=self._kernel, client=client, on_record=None if is_deaf else sink.record
        )
        specs = _engine_specs(fleet, options, load_profile)
        self._engines = build_engines(specs, options, kernel=self._kernel, listener=self._driver, seed=seed)
        self._driver.engines = {engine.name: engine for engine in self._engines}
        self._connect(fleet)
        if front is not None:
            self._driver.engines = {each.name: Front(each, front, self._kernel) for each in self._engines}
        self._reports = Reports(
            self._engines, block_size=options.block_size, kernel=self._kernel, send=self._driver.send
        )
        self._smallest_kv_blocks = min(spec.kv_blocks for spec in specs) - 1
        self._isolated = isolated or IsolatedTimes(
            specs[0].profile,
            kv_blocks=specs[0].kv_blocks,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
        )
        cores = [group.cores for group in fleet.tool_hosts for _ in range(group.count)]
        self._hosts = [ToolHost(self._kernel, each) for each in cores or [float("inf")]]
        self._next_host = itertools.cycle(self._hosts)
        self._changes = fleet.changes
        probed = [group.has_probe for group in fleet.tool_hosts for _ in range(group.count)]
        self._probes = [
            HostProbe(f"host-{number}", self._hosts[number], self._kernel, self._driver.send)
            for number, is_probed in enumerate(probed)
            if is_probed
        ]
        self._stage = Stage(
            kernel=self._kernel,
            gateway=self._driver,
            content=ContentChain(options.block_size),
            audience=self,
            says_when_over=client.says_when_over,
            dispatches_early=client.dispatches_early,
        )
        self._arrivals: dict[int, float] = {}
        self._sampled = [_Sampled() for _ in self._engines]

    def run(self) -> Totals:
        later = {change.joins for change in self._changes}
        for engine in self._engines:
            if engine.name not in later:
                self._came_up(engine)
        self._reports.begin()
        for probe in self._probes:
            probe.begin()
        for change in self._changes:
            self._kernel.at(change.at_s, self._change, change)
        if self._sample_every_s is not None:
            self._kernel.at(0.0, self._sample)
        self._await_next_session()
        self._kernel.run()
        self._driver.end()
        if self._live:
            raise ConservationError(f"nothing more happens, and {self._live} sessions are not over")
        self._total()
        for engine in self._engines:
            engine.end()
        check_end(self._totals, self._engines, self._driver.brain, len(self._driver))
        return self._totals

    def _came_up(self, engine: "ReplicaEngine") -> None:
        abilities = Abilities(turnpike_hints=engine.plugin is not None)
        self._driver.send(ev.ReplicaCameUp(ReplicaFacts(id=engine.name, pool=POOL, abilities=abilities)))

    def _connect(self, fleet: FleetSpec) -> None:
        """The replicas that hand KV caches over."""
        exchanges = {each.name: each.exchange for each in self._engines if each.exchange is not None}
        cards = {name: group.network_gbit_s * 1e9 / 8 for name, group in fleet.each()}
        network = Network(cards, latency_s=fleet.transfer_latency_s, kernel=self._kernel)
        for exchange in exchanges.values():
            exchange.network = network
        self._driver.legs.exchanges = exchanges
        self._network = network

    # --- arrivals ----------------------------------------------------------------------------------

    def _await_next_session(self) -> None:
        session = next(self._sessions, None)
        if session is None:
            self._is_exhausted = True
            self._stop_if_over()
            return
        if session.arrival_s < self._kernel.now:
            raise SimulatorError(f"session {session.id!r} arrives before the one ahead of it in the workload")
        self._check_fit(session)
        self._kernel.at(session.arrival_s, self._session_arrived, session)

    def _check_fit(self, session: Session) -> None:
        tokens, longest = session.peak_tokens, self._options.max_model_len
        if tokens > longest:
            raise SimulatorError(f"session {session.id!r} reaches {tokens} tokens; a model has {longest}")
        blocks = -(-tokens // self._options.block_size)
        if blocks > self._smallest_kv_blocks:
            raise SimulatorError(f"session {session.id!r} needs {blocks} KV blocks, more than a replica has")

    def _session_arrived(self, session: Session) -> None:
        self._live += 1
        Agent(session, next(self._next_host), self._stage).start()
        self._await_next_session()

    # --- what agents tell --------------------------------------------------------------------------

    def turn_answered(self, call: Call) -> None:
        """As `Audience`."""
        turn = call.session.threads[call.ref.thread].turns[call.ref.turn]
        totals = self._totals
        totals.turns += 1
        totals.prompt_tokens += turn.input_tokens
        totals.cached_tokens += call.cached_tokens
        totals.output_tokens += turn.output_tokens
        totals.preemptions += call.preemptions
        self._sink.turn_done(
            TurnOutcome(
                session=call.session.id,
                thread=call.ref.thread,
                turn=call.ref.turn,
                tenant=call.session.tenant,
                replica=call.replica,
                arrival_s=call.arrived_s,
                waited_s=call.dispatched_s - call.arrived_s,
                began_s=call.began_s,
                first_token_s=call.first_token_s,
                end_s=self._kernel.now,
                prompt_tokens=turn.input_tokens,
                cached_tokens=call.cached_tokens,
                output_tokens=turn.output_tokens,
                preemptions=call.preemptions,
                refusals=call.refusals,
            )
        )

    def session_over(self, agent: Agent) -> None:
        """As `Audience`."""
        session = agent.session
        if agent.must_be_finished and agent.known_as is not None:
            self._driver.send(ev.SessionFinished(agent.known_as))
        if agent.known_as is not None:
            self._driver.session_over(agent.known_as)
        if not agent.failed and agent.turns != session.turns:
            raise ConservationError(f"session {session.id!r} was over after {agent.turns} turns")
        self._totals.sessions += 1
        self._totals.failed_sessions += agent.failed
        self._sink.session_done(
            SessionOutcome(
                id=session.id,
                tenant=session.tenant,
                service_class=session.service_class,
                agent_type=session.agent_type,
                arrival_s=session.arrival_s,
                final_first_token_s=agent.final_first_token_s,
                end_s=agent.end_s,
                isolated_s=self._isolated.of(session),
                deadline_s=session.deadline_s,
                turns=agent.turns,
                failed=agent.failed,
            )
        )
        self._live -= 1
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._is_exhausted and not self._live:
            # The brain's timers, for sessions that nobody will hear of again, need not be awaited.
            self._kernel.stop()

    def _change(self, change: Change) -> None:
        if change.lost is not None:
            self._driver.send(ev.ReplicaWentDown(ReplicaId(change.lost), "was taken away"))
            self._driver.legs.replica_lost(ReplicaId(change.lost))
        for engine in self._engines:
            if engine.name == change.joins:
                self._came_up(engine)
        if change.tool_speed is not None:
            for host in self._hosts:
                host.set_speed(change.tool_speed)

    # --- what the fleet did ------------------------------------------------------------------------

    def _sample(self) -> None:
        samples = []
        for engine, before in zip(self._engines, self._sampled, strict=True):
            engine.settle()
            samples.append(before.since(engine))
        self._sink.sample(self._kernel.now, samples)
        assert self._sample_every_s is not None
        self._kernel.after(self._sample_every_s, self._sample)

    def _total(self) -> None:
        totals = self._totals
        totals.end_s = self._kernel.now
        totals.refusals = self._driver.refusals
        totals.prefill_legs = self._driver.legs.begun
        totals.carried_bytes = self._network.carried_bytes
        for engine in self._engines:
            totals.steps += engine.counts.steps
            totals.scheduled_steps += engine.counts.scheduled_steps
            totals.computed_tokens += engine.counts.computed_tokens
            totals.again_tokens += engine.counts.again_tokens
            totals.moved_tokens += engine.counts.moved_tokens
            totals.busy_s += engine.counts.busy_s


class _Sampled:
    """An engine's counts at the last sample."""

    def __init__(self) -> None:
        self._prompt_tokens = self._cached_tokens = 0
        self._busy_s = 0.0

    def since(self, engine: "ReplicaEngine") -> ReplicaSample:
        counts = engine.counts
        sample = ReplicaSample(
            replica=engine.name,
            running=engine.running,
            waiting=engine.waiting,
            kv_used=engine.kv_used(),
            prompt_tokens=counts.prompt_tokens - self._prompt_tokens,
            cached_tokens=counts.cached_tokens - self._cached_tokens,
            busy_s=counts.busy_s - self._busy_s,
        )
        self._prompt_tokens, self._cached_tokens = counts.prompt_tokens, counts.cached_tokens
        self._busy_s = counts.busy_s
        return sample


def _engine_specs(
    fleet: FleetSpec, options: EngineOptions, load_profile: Callable[[str], Profile]
) -> list[EngineSpec]:
    specs = []
    for name, group in fleet.each():
        profile = load_profile(group.profile)
        specs.append(
            EngineSpec(
                name=name,
                profile=profile,
                kv_blocks=group.kv_blocks or profile.kv_tokens // options.block_size,
                offload_bytes=group.offload_gb * 1e9,
                network_bytes_per_s=group.network_gbit_s * 1e9 / 8,
                noise=fleet.noise,
            )
        )
    return specs
