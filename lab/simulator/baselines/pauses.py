"""When does a conversation come back? What the workload says, for policies that may know it."""

from lab.simulator.engine.turn import EngineTurn
from lab.workload.trace.format import Session, Tool, TurnRef


def gap_s(session: Session, ref: TurnRef) -> float | None:
    """From a turn's end to the conversation's next one, with nothing in the way; None if none comes.

    A sub-agent that is waited for counts with its tools and pauses, not with what its own turns take.
    """
    turns = session.threads[ref.thread].turns
    if ref.turn == len(turns) - 1:
        return None
    tools_s = max((_tool_s(session, tool) for tool in turns[ref.turn].tools), default=0.0)
    return tools_s + turns[ref.turn + 1].pause_s


def tool_name(turn: EngineTurn) -> str:
    """Of the tool that the conversation waits for: the longest that the turn called."""
    tools = turn.turn.tools
    return max(tools, key=lambda tool: tool.duration_s).name if tools else ""


def steps_to_next(session: Session, ref: TurnRef) -> int | None:
    """LLM calls up to and including the conversation's next one; None if none comes."""
    turns = session.threads[ref.thread].turns
    if ref.turn == len(turns) - 1:
        return None
    awaited = [len(session.threads[thread].turns) for thread in _awaited(turns[ref.turn].tools)]
    return 1 + max(awaited, default=0)


def _tool_s(session: Session, tool: Tool) -> float:
    if tool.starts_thread is None or tool.is_detached:
        return tool.duration_s
    turns = session.threads[tool.starts_thread].turns
    gaps = (gap_s(session, TurnRef(tool.starts_thread, at)) or 0.0 for at in range(len(turns)))
    return tool.duration_s + turns[0].pause_s + sum(gaps)


def _awaited(tools: tuple[Tool, ...]) -> list[int]:
    return [tool.starts_thread for tool in tools if tool.starts_thread is not None and not tool.is_detached]
