"""Turns as an engine gets them, and sessions for them."""

from lab.simulator.engine.turn import EngineTurn
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef


def chat(
    name: str,
    *prompts: int,
    arrival_s: float = 0.0,
    output: int = 10,
    tool_s: float = 1.0,
    tool: str = "bash",
) -> Session:
    """One conversation; every prompt but the first begins with the one before it and its answer."""
    turns: list[Turn] = []
    for at, tokens in enumerate(prompts):
        before = turns[-1].input_tokens + output if turns else 0
        turns.append(
            Turn(
                input_tokens=tokens,
                output_tokens=output,
                prefix_of=TurnRef(0, at - 1) if turns else None,
                prefix_tokens=min(before, tokens),
                tools=(Tool(name=tool, duration_s=tool_s),) if at < len(prompts) - 1 else (),
            )
        )
    return Session(id=name, threads=(Thread(turns=tuple(turns)),), arrival_s=arrival_s)


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
