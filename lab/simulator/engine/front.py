"""The front of a simulated server: it reads requests, one after the other, before its engine gets them.

vLLM's API server is one process: it parses, applies templates and tokenizes while the engine computes. A turn
holds its place on the replica meanwhile.

Invariant: turns reach the engine in the order in which they were sent.
"""

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Alarm, Kernel


class FrontCosts(msgspec.Struct, frozen=True, kw_only=True):
    request_s: Annotated[float, Meta(ge=0)] = 0.0
    prompt_token_s: Annotated[float, Meta(ge=0)] = 0.0
    idle_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """What part of that it takes when the engine has no turn to compute: both may share a core."""


class _Engine(Protocol):
    @property
    def turns(self) -> int: ...

    def submit(self, turn: EngineTurn) -> None: ...

    def abort(self, number: int) -> None: ...

    def hint(self, text: str) -> None: ...


class Front:
    def __init__(self, engine: _Engine, costs: FrontCosts, kernel: Kernel) -> None:
        self._engine = engine
        self._costs = costs
        self._kernel = kernel
        self._free_s = 0.0
        self._here: dict[int, Alarm] = {}
        """Turns that the engine does not have yet."""

    def submit(self, turn: EngineTurn) -> None:
        cost_s = self._costs.request_s + self._costs.prompt_token_s * turn.input_tokens
        if not self._engine.turns:
            cost_s *= self._costs.idle_share
        self._free_s = max(self._kernel.now, self._free_s) + cost_s
        self._here[turn.number] = self._kernel.at(self._free_s, self._hand_on, turn)

    def abort(self, number: int) -> None:
        alarm = self._here.pop(number, None)
        if alarm is not None:
            alarm.call_off()
        else:
            self._engine.abort(number)

    def _hand_on(self, turn: EngineTurn) -> None:
        del self._here[turn.number]
        self._engine.submit(turn)

    def hint(self, text: str) -> None:
        self._engine.hint(text)
