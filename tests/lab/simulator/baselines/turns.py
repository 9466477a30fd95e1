"""Turns as an engine gets them."""

from lab.simulator.engine.turn import EngineTurn
from lab.workload.trace.format import Session, TurnRef

_numbers = iter(range(1, 1_000_000))


def engine_turn(session: Session, turn: int = 0, *, at_s: float = 0.0) -> EngineTurn:
    number = next(_numbers)
    return EngineTurn(number=number, session=session, ref=TurnRef(0, turn), keys=[], submitted_s=at_s)
