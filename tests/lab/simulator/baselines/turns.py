"""Turns as an engine gets them."""

from lab.simulator.engine.turn import EngineTurn
from lab.workload.trace.format import Session, TurnRef

_numbers = iter(range(1, 1_000_000))


def engine_turn(
    session: Session, turn: int = 0, *, at_s: float = 0.0, thread: int = 0, began_s: float | None = None
) -> EngineTurn:
    return EngineTurn(
        number=next(_numbers),
        session=session,
        ref=TurnRef(thread, turn),
        keys=[],
        submitted_s=at_s,
        began_s=began_s,
    )
