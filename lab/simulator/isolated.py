"""How long does a session take if it has a replica to itself?

For a session of one conversation that is arithmetic: its prompts hit what its own earlier turns left in the
cache, nothing is ever evicted, and the steps are those of the roofline. Where sub-agents may run beside one
another it is played, alone, on an engine of its own.

Both ways nothing is cached at first, tools have all the cores that they want, and steps have no noise.
"""

from collections import OrderedDict
from typing import Final

from gateway.cost.profile import Profile
from gateway.domain.ids import ReplicaId
from lab.simulator.agents import Agent, Stage
from lab.simulator.driver import Call
from lab.simulator.engine import build_engines
from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.engine.roofline import Turn as CostTurn
from lab.simulator.engine.roofline import isolated_turn_s
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.hosts import ToolHost
from lab.simulator.kernel import Kernel
from lab.workload.trace.content import ContentChain
from lab.workload.trace.format import Session, Thread

_REMEMBERED: Final = 4096


class IsolatedTimes:
    """By session, remembered for those seen last. May be shared by simulations of one kind of replica."""

    def __init__(self, profile: Profile, *, kv_blocks: int, block_size: int, max_model_len: int) -> None:
        self._profile = profile
        self._block_size = block_size
        self._spec = EngineSpec(name=ReplicaId("alone"), profile=profile, kv_blocks=kv_blocks)
        self._options = EngineOptions(block_size=block_size, max_model_len=max_model_len)
        self._known: OrderedDict[tuple[Thread, ...], float] = OrderedDict()

    def of(self, session: Session) -> float:
        """Seconds from its arrival to the main conversation's final answer."""
        known = self._known.get(session.threads)
        if known is None:
            known = self._computed(session.threads[0]) if len(session.threads) == 1 else self.played(session)
            self._known[session.threads] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _computed(self, thread: Thread) -> float:
        total_s = 0.0
        for at, turn in enumerate(thread.turns):
            cached = 0
            if turn.prefix_of is not None:
                base = thread.turns[turn.prefix_of.turn]
                # The last token of an output is sampled, never computed; of a prompt it is always computed.
                in_cache = min(turn.prefix_tokens, base.input_tokens + base.output_tokens - 1)
                cached = min(in_cache, turn.input_tokens - 1) // self._block_size * self._block_size
            cost = CostTurn(
                new_tokens=turn.input_tokens - cached, cached_tokens=cached, output_tokens=turn.output_tokens
            )
            total_s += turn.pause_s + isolated_turn_s(self._profile, cost)
            if at < len(thread.turns) - 1:
                total_s += max((tool.duration_s for tool in turn.tools), default=0.0)
        return total_s

    def played(self, session: Session) -> float:
        """The same of any session, by playing it."""
        alone = _Alone(self._spec, self._options)
        alone.play(session)
        return alone.end_s


class _Alone:
    """A replica with no gateway before it and one session on it."""

    def __init__(self, spec: EngineSpec, options: EngineOptions) -> None:
        self.end_s = 0.0
        self._kernel = Kernel()
        (self._engine,) = build_engines([spec], options, kernel=self._kernel, listener=self, seed=0)
        self._content = ContentChain(options.block_size)
        self._calls: dict[int, Call] = {}
        self._number = 0

    def play(self, session: Session) -> None:
        stage = Stage(kernel=self._kernel, gateway=self, content=self._content, audience=self)
        Agent(session, ToolHost(self._kernel, cores=float("inf")), stage).start()
        self._kernel.run()

    def call(self, call: Call) -> None:
        """As `Gateway`."""
        self._number += 1
        self._calls[self._number] = call
        now = self._kernel.now
        turn = EngineTurn(
            number=self._number, session=call.session, ref=call.ref, keys=call.keys(), submitted_s=now
        )
        self._engine.submit(turn)

    def first_token(self, turn: EngineTurn) -> None:
        """As `TurnListener`."""

    def reached(self, turn: EngineTurn, tokens: int) -> None:
        """As `TurnListener`."""

    def finished(self, turn: EngineTurn, *, cached_tokens: int, preemptions: int) -> None:
        """As `TurnListener`."""
        call = self._calls.pop(turn.number)
        call.caller.answered(call)

    def turn_answered(self, call: Call) -> None:
        """As `Audience`."""

    def session_over(self, agent: Agent) -> None:
        """As `Audience`."""
        self.end_s = agent.end_s
