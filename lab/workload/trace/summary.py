"""What is in a workload, on one screen."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lab.workload.trace.format import Header, Session

_TOP: Final = 8
_HOW_CHARS: Final = 300
"""Of what the header says; the file has all of it."""


class Summary:
    """Takes sessions one by one; holds a few numbers for each turn."""

    def __init__(self) -> None:
        self.sessions = 0
        self._classes: Counter[str] = Counter()
        self._types: Counter[str] = Counter()
        self._tenants: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._turns, self._peaks = array("q"), array("q")
        self._prompts, self._outputs, self._shared = array("q"), array("q"), array("q")
        self._gaps, self._persons, self._calls = array("d"), array("d"), array("q")
        self._tools: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        self._with_sub_agents = 0
        self._threads = 0
        self._openings: set[str] = set()
        self._first_s, self._last_s = 0.0, 0.0

    def add(self, session: Session) -> None:
        if not self.sessions:
            self._first_s = session.arrival_s
        self._last_s = session.arrival_s
        self.sessions += 1
        self._classes[session.service_class.value] += 1
        self._types[session.agent_type or "unknown"] += 1
        self._turns.append(session.turns)
        self._peaks.append(session.peak_tokens)
        self._with_sub_agents += len(session.threads) > 1
        self._threads += len(session.threads)
        tenant = self._tenants[session.tenant]
        tenant[0] += 1
        tenant[1] += session.turns
        for thread in session.threads:
            if thread.shared_key is not None:
                self._openings.add(thread.shared_key)
            for at, turn in enumerate(thread.turns):
                tenant[2] += turn.input_tokens
                self._prompts.append(turn.input_tokens)
                self._outputs.append(turn.output_tokens)
                self._shared.append(turn.prefix_tokens or (thread.shared_tokens if at == 0 else 0))
                if turn.is_pause_human:
                    self._persons.append(turn.pause_s)
                if turn.tools:
                    self._gaps.append(max(tool.duration_s for tool in turn.tools))
                    self._calls.append(len(turn.tools))
                for tool in turn.tools:
                    self._tools[tool.name][0] += 1
                    self._tools[tool.name][1] += tool.duration_s

    def lines(self, header: Header) -> Iterator[str]:
        yield f"workload {header.name}" + (f", seed {header.seed}" if header.seed is not None else "")
        for source in header.sources:
            how = source.how if len(source.how) <= _HOW_CHARS else f"{source.how[:_HOW_CHARS]}…"
            yield f"  {source.what}: {source.origin}" + (f" ({how})" if how else "")
        if not self.sessions:
            yield "no sessions"
            return
        yield from self._about_sessions()
        yield from self._about_turns()
        yield from self._about_tools()
        yield from self._about_tenants()

    def _about_sessions(self) -> Iterator[str]:
        yield f"sessions  {self.sessions}: {_named(self._types)}; {_named(self._classes)}"
        span_s = self._last_s - self._first_s
        rate = f"{(self.sessions - 1) / span_s * 3600:.1f}/h over {span_s:.0f} s" if span_s else "all at once"
        yield f"arrivals  {rate}"
        yield f"turns     {sum(self._turns)}; per session {_spread(self._turns)}"
        if self._with_sub_agents:
            yield f"threads   {self._threads}; {self._with_sub_agents} session(s) with sub-agents"

    def _about_turns(self) -> Iterator[str]:
        prompts, shared = sum(self._prompts), sum(self._shared)
        yield f"prompt    {_spread(self._prompts)} tokens"
        yield f"output    {_spread(self._outputs)} tokens"
        yield f"context   {_spread(self._peaks)} tokens at a session's longest"
        yield f"shared    {shared / prompts:.3f} of all prompt tokens; {len(self._openings)} opening text(s)"

    def _about_tools(self) -> Iterator[str]:
        gaps = sum(self._gaps) + sum(self._persons)
        yield f"gaps      {gaps / len(self._prompts):.1f} s per turn on average"
        if self._gaps:
            yield f"tools     after {len(self._gaps)} turn(s), {_spread(self._gaps, 2)} s"
            yield f"calls     {_spread(self._calls)} at once"
        for name, (count, total_s) in sorted(self._tools.items(), key=lambda item: -item[1][0])[:_TOP]:
            yield f"            {name}: {count:.0f} of {total_s / count:.2f} s"
        if self._persons:
            yield f"persons   after {len(self._persons)} turn(s), {_spread(self._persons, 1)} s"

    def _about_tenants(self) -> Iterator[str]:
        ranked = sorted(self._tenants.items(), key=lambda item: -item[1][2])
        yield f"tenants   {len(ranked)}"
        for name, (sessions, turns, tokens) in ranked[:_TOP]:
            yield f"            {name}: {sessions} session(s), {turns} turn(s), {tokens} prompt tokens"


def summary_of(header: Header, sessions: Iterable[Session]) -> Iterator[str]:
    """Lines of text."""
    summary = Summary()
    for session in sessions:
        summary.add(session)
    return summary.lines(header)


def _spread(values: Sequence[float], digits: int = 0) -> str:
    ranked = sorted(values)
    mean = sum(ranked) / len(ranked)

    def at(part: float) -> str:
        return f"{ranked[min(len(ranked) - 1, int(part * len(ranked)))]:.{digits}f}"

    return f"mean {mean:.{max(1, digits)}f}, p50 {at(0.5)}, p90 {at(0.9)}, max {at(1)}"


def _named(counts: Counter[str]) -> str:
    shown = ", ".join(f"{count} {name}" for name, count in counts.most_common(_TOP))
    return shown if len(counts) <= _TOP else f"{shown}, …"
