"""A session from what was observed of its turns: which came when, followed from which, with how many tokens.

The rules are told in `gateway_stream`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.domain.decision import Edge
from gateway.domain.ids import RequestId, SessionId, ThreadId
from gateway.domain.records import GpuEnd, TurnArrived
from lab.workload.trace.format import Session, Thread, Tool, Turn, TurnRef

_GOES_ON: Final = frozenset({Edge.CONTINUES, Edge.FORKS, Edge.REWINDS})
_BEGINS_ANEW: Final = frozenset({Edge.COMPACTS, Edge.SERVES})
_BREAKS: Final = frozenset(Edge) - _GOES_ON - {Edge.RETRIES}


class ObservedTurn(msgspec.Struct, kw_only=True):
    arrived: TurnArrived
    ended: GpuEnd | None = None
    """Where it was answered."""
    tools: tuple[str, ...] = ()
    """What the answer asked for."""

    @property
    def is_counted(self) -> bool:
        """Whether it was answered, and its tokens are known."""
        return self.ended is not None and self.prompt >= 1 and self.ended.usage.output_tokens is not None

    @property
    def prompt(self) -> int:
        return (self.ended.usage.prompt_tokens or 0) if self.ended is not None else 0

    @property
    def output(self) -> int:
        return max(1, self.ended.usage.output_tokens or 0) if self.ended is not None else 1

    @property
    def cached(self) -> int:
        return (self.ended.usage.cached_tokens or 0) if self.ended is not None else 0

    @property
    def ended_s(self) -> float:
        return self.ended.at_s if self.ended is not None else self.arrived.at_s


def session_of(
    name: SessionId, turns: Mapping[RequestId, ObservedTurn], *, arrival_s: float
) -> Session | None:
    """None if no turn is counted."""
    build = _Build(turns)
    if not build.threads:
        return None
    threads = tuple(build.thread(number) for number in range(len(build.threads)))
    tenant = build.threads[0][0].arrived.tenant
    return Session(id=name, tenant=tenant, arrival_s=arrival_s, agent_type="observed", threads=threads)


class _Build:
    def __init__(self, turns: Mapping[RequestId, ObservedTurn]) -> None:
        self._turns = turns
        self._place: dict[RequestId, TurnRef] = {}
        self.threads: list[list[ObservedTurn]] = []
        numbers: dict[ThreadId | None, int] = {}
        for turn in turns.values():
            if not turn.is_counted:
                continue
            number = numbers.setdefault(turn.arrived.thread, len(numbers))
            if number == len(self.threads):
                self.threads.append([])
            self._place[turn.arrived.turn] = TurnRef(number, len(self.threads[number]))
            self.threads[number].append(turn)
        self._children: dict[TurnRef, list[int]] = {}
        for number in range(1, len(self.threads)):
            self._children.setdefault(self._starter(number), []).append(number)

    def thread(self, number: int) -> Thread:
        return Thread(turns=tuple(self._turn(number, at) for at in range(len(self.threads[number]))))

    def _starter(self, number: int) -> TurnRef:
        """The turn that starts the thread."""
        first = self.threads[number][0].arrived
        parent = self._place.get(first.parent) if first.parent is not None else None
        if parent is not None and parent.thread < number:
            return parent
        earlier = sum(turn.arrived.at_s <= first.at_s for turn in self.threads[0])
        return TurnRef(0, max(0, earlier - 1))

    def _turn(self, number: int, at: int) -> Turn:
        turn = self.threads[number][at]
        base, tokens = self._prefix(turn, TurnRef(number, at))
        pause_s, is_human = 0.0, False
        if at:
            before = self.threads[number][at - 1]
            if not before.tools and not self._awaited(TurnRef(number, at - 1)):
                pause_s, is_human = self._gap_s(number, at - 1), True
        elif number:
            starter = self._starter(number)
            pause_s = turn.arrived.at_s - self.threads[starter.thread][starter.turn].ended_s
        return Turn(
            input_tokens=turn.prompt,
            output_tokens=turn.output,
            prefix_of=base,
            prefix_tokens=tokens,
            pause_s=round(max(0.0, pause_s), 6),
            is_pause_human=is_human,
            tools=self._tools(TurnRef(number, at)),
        )

    def _gap_s(self, number: int, at: int) -> float:
        """From the turn's end to the next one's arrival; 0 after the last."""
        turns = self.threads[number]
        if at + 1 == len(turns):
            return 0.0
        return round(max(0.0, turns[at + 1].arrived.at_s - turns[at].ended_s), 6)

    def _awaited(self, ref: TurnRef) -> list[int]:
        """Threads that the turn starts and that end before the thread goes on."""
        turns = self.threads[ref.thread]
        children = self._children.get(ref, [])
        if ref.turn + 1 == len(turns):
            return children
        next_s = turns[ref.turn + 1].arrived.at_s
        return [child for child in children if self.threads[child][-1].ended_s <= next_s]

    def _tools(self, ref: TurnRef) -> tuple[Tool, ...]:
        names: Sequence[str] = self.threads[ref.thread][ref.turn].tools
        children, awaited = self._children.get(ref, []), self._awaited(ref)
        gap_s = self._gap_s(ref.thread, ref.turn)
        tools = []
        if awaited:
            begun_s = self.threads[ref.thread][ref.turn].ended_s
            last = max(awaited, key=lambda child: self.threads[child][-1].ended_s)
            rest_s = max(0.0, gap_s - (self.threads[last][-1].ended_s - begun_s))
        else:
            last, rest_s = -1, 0.0
        for at, child in enumerate(children):
            tools.append(
                Tool(
                    name=names[at] if at < len(names) else "thread",
                    duration_s=round(rest_s, 6) if child == last else 0.0,
                    starts_thread=child,
                    is_detached=child not in awaited,
                )
            )
        is_last = ref.turn + 1 == len(self.threads[ref.thread])
        others = () if is_last else names[len(children) :]
        return *tools, *(Tool(name=name, duration_s=0.0 if awaited else gap_s) for name in others)

    def _prefix(self, turn: ObservedTurn, ref: TurnRef) -> tuple[TurnRef | None, int]:
        """The turn that this one shares its beginning with, and how much."""
        edge, parent = turn.arrived.edge, turn.arrived.parent
        while parent is not None and parent in self._turns:
            base = self._turns[parent]
            place = self._place.get(parent)
            if place is None:
                # It was not counted: what it followed from, this one does.
                if edge is Edge.RETRIES or base.arrived.edge in _BREAKS:
                    edge = base.arrived.edge
                parent = base.arrived.parent
                continue
            shared = base.prompt if edge is Edge.RETRIES else base.prompt + base.output
            if edge in _BEGINS_ANEW:
                shared = min(shared, turn.cached)
            elif edge not in _GOES_ON and edge is not Edge.RETRIES:
                return None, 0
            if place.thread > ref.thread or (place.thread == ref.thread and place.turn >= ref.turn):
                return None, 0
            return place, min(shared, turn.prompt)
        return None, 0
