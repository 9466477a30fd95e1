"""What tests of engines alone share: turns without sessions, and a listener that writes everything down."""

from typing import Any

from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Kernel
from lab.workload.trace.content import ContentChain
from lab.workload.trace.format import Session, Thread, Turn, TurnRef


class Log:
    """As `TurnListener`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.events: list[Any] = []

    @property
    def ends(self) -> list[Any]:
        return [event for event in self.events if event[1] == "finished"]

    def first_token(self, turn: EngineTurn) -> None:
        self.events.append((self._kernel.now, "first token", turn.number))

    def reached(self, turn: EngineTurn, tokens: int) -> None:
        self.events.append((self._kernel.now, "reached", turn.number, tokens))

    def finished(self, turn: EngineTurn, *, cached_tokens: int, preemptions: int) -> None:
        self.events.append((self._kernel.now, "finished", turn.number, cached_tokens, preemptions))


def make_turn(
    number: int, prompt: int, output: int, shared: int, *, block_size: int, now: float, key: str = "k"
) -> EngineTurn:
    """The only turn of a session; the first `shared` tokens are those of all with the same key."""
    turn = Turn(input_tokens=prompt, output_tokens=output)
    thread = Thread(turns=(turn,), shared_key=key, shared_tokens=min(prompt, shared))
    session = Session(id=f"s{number}", threads=(thread,))
    content = ContentChain(block_size).begin(session, TurnRef(0, 0))
    content.extend(output)
    return EngineTurn(number=number, session=session, ref=TurnRef(0, 0), keys=content.keys, submitted_s=now)
