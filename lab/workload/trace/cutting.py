"""Cuts sessions short so that what is left is still one: references and sub-agents follow.

Where a turn is cut away that another one shares its beginning with, that one refers to what the cut turn
shared its own beginning with. Where the turn is cut away that starts a thread, the thread goes with it. A
turn that has become the last of its thread asks for no tool but those that start threads: nobody would wait
for them.
"""

from collections.abc import Sequence

import msgspec

from lab.workload.trace.format import Session, Turn, TurnRef


def cut(session: Session, lengths: Sequence[int]) -> Session | None:
    """The first `lengths[n]` turns of each thread n; None if nothing is left of the main one."""
    kept = _kept_threads(session, lengths)
    if 0 not in kept:
        return None
    number_of = {number: at for at, number in enumerate(kept)}
    threads = []
    for number in kept:
        thread = session.threads[number]
        turns = [
            _moved(session, turn, lengths, number_of, is_last=at == lengths[number] - 1)
            for at, turn in enumerate(thread.turns[: lengths[number]])
        ]
        threads.append(msgspec.structs.replace(thread, turns=tuple(turns)))
    return msgspec.structs.replace(session, threads=tuple(threads))


def _kept_threads(session: Session, lengths: Sequence[int]) -> list[int]:
    """Those that have turns left and are started by a turn that is."""
    reached = {0}
    kept = []
    for number, thread in enumerate(session.threads):
        if number not in reached or not lengths[number]:
            continue
        kept.append(number)
        for turn in thread.turns[: lengths[number]]:
            reached.update(tool.starts_thread for tool in turn.tools if tool.starts_thread is not None)
    return kept


def _moved(
    session: Session, turn: Turn, lengths: Sequence[int], number_of: dict[int, int], *, is_last: bool
) -> Turn:
    """The turn as it stands in the shorter session."""
    ref, tokens = _nearest_kept(session, turn, lengths, number_of)
    tools = []
    for tool in turn.tools:
        if tool.starts_thread is None:
            if not is_last:
                tools.append(tool)
        elif tool.starts_thread in number_of:
            tools.append(msgspec.structs.replace(tool, starts_thread=number_of[tool.starts_thread]))
        elif not is_last:
            tools.append(msgspec.structs.replace(tool, starts_thread=None, is_detached=False))
    return msgspec.structs.replace(turn, prefix_of=ref, prefix_tokens=tokens, tools=tuple(tools))


def _nearest_kept(
    session: Session, turn: Turn, lengths: Sequence[int], number_of: dict[int, int]
) -> tuple[TurnRef | None, int]:
    """What the turn shares its beginning with, among the turns that are kept, and how much of it."""
    ref, tokens = turn.prefix_of, turn.prefix_tokens
    while ref is not None:
        if ref.thread in number_of and ref.turn < lengths[ref.thread]:
            return TurnRef(number_of[ref.thread], ref.turn), tokens
        base = session.threads[ref.thread].turns[ref.turn]
        ref, tokens = base.prefix_of, min(tokens, base.prefix_tokens)
    return None, 0
