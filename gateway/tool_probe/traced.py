"""What calls really took: agents' own spans, against the gaps in which the calls were seen.

Source: MARS (§4.1) instruments the agent; OpenTelemetry's conventions for generative AI (`execute_tool`) and
OpenInference (`TOOL`) are how agents instrument themselves.

Deviations: spans explain calls that were seen in the traffic, and make none of their own: so nothing counts
twice. They are found by the call's id; where either has none, by the trace that the asking request was in and
the tool's name, the oldest first. Exporters send every few seconds, mostly after the results: so of an agent
type that lately sent spans, a phase teaches `wait_s` later, by its spans, or as it was seen from outside if
none came. A phase of which a span came teaches what its spans say and no more: who was slow in it is known
then.

What the MCP proxy saw pass is told in the same way, and at once: a span that names its session is the
gateway's own, and its agent is not waited for.

Invariants: a call is explained at most once; no span makes a call longer than the time since the request that
asked for it; a tenant's span explains that tenant's calls, an operator's never one of two sessions' that
cannot be told apart; calls and spans are kept tenant by tenant, so that none's keep another's from being
matched; nothing is kept before the first span comes, and then at most `max_calls` calls and as many
phases; times of day are never compared.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.domain.ids import TenantId
from gateway.domain.tenant_lru import TenantLru
from gateway.domain.tool_span import ToolSpan
from gateway.domain.words import Word
from gateway.tool_probe.calls import OpenCall, Phase, ToolRun

_REPORTS_S: Final = 600.0
"""An agent type that sent no span for so long is not waited for."""
_MAX_AGENTS: Final = 4096
_MAX_SPANS: Final = 16_384
_MAX_ALIKE: Final = 64
"""Calls of one tenant that have one id, or one name in one trace."""
_MAX_TENANTS: Final = 64
"""Tenants among whose calls an operator's span is looked for."""
_SLACK_S: Final = 0.1
_SLACK: Final = 1.01
"""Clocks do not run alike, either."""


class TracedCallsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    wait_s: Annotated[float, Meta(ge=0, le=300)] = 15.0
    """How long after a call's results its span may come: exporters send every few seconds."""
    max_calls: Annotated[int, Meta(ge=1)] = 50_000
    """Calls that may be explained by a span."""


_Key = str | tuple[str, str]
"""A call's id; or its trace and its tool."""


class Verdict(Word):
    """What became of a span."""

    TAKEN = "taken"
    REPEATED = "repeated"
    UNKNOWN = "unknown"
    """No call that it could be; or it came too late, or the call was told of before."""
    AMBIGUOUS = "ambiguous"
    """Several sessions have such a call."""
    TOO_LONG = "too_long"
    """Longer than the call can have taken."""


class TracedCalls:
    def __init__(self, config: TracedCallsConfig) -> None:
        self._config = config
        self.is_on = False
        """A span has come: calls are remembered for the next ones."""
        self.verdicts: Counter[Verdict] = Counter()
        self._calls: TenantLru[TenantId, OpenCall, OpenCall] = TenantLru(config.max_calls)
        """Those without a span."""
        self._by: dict[_Key, dict[TenantId, list[OpenCall]]] = {}
        self._waiting: deque[Phase] = deque()
        self._reporting: OrderedDict[int, float] = OrderedDict()
        """Agent types, and when a span of theirs came last."""
        self._spans: TenantLru[TenantId | None, tuple[str, str], bool] = TenantLru(_MAX_SPANS)
        """The newest that were taken, by who sent them."""

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[OpenCall]:
        return (call for _, call, _ in self._calls.items())

    def opened(self, call: OpenCall) -> None:
        for key in _keys(call):
            alike = self._by.setdefault(key, {}).setdefault(call.asking.tenant, [])
            if len(alike) < _MAX_ALIKE:
                alike.append(call)
        for _, dropped, _ in self._calls.put(call.asking.tenant, call, call):
            self._unindex(dropped)

    def closed(self, calls: tuple[OpenCall, ...], run: ToolRun, *, now: float) -> list[ToolRun]:
        if not self.is_on:
            return [run]
        runs = self._overdue(now=now)
        phase = Phase(run, now, calls)
        for call in calls:
            call.phase = phase
        told = [call for call in calls if call.took_s is not None]
        if told:
            if not all(call.is_seen for call in told):
                self._reports(run.agent, now=now)
            runs += [phase.run_of(call) for call in told]
        elif not self._is_reporting(run.agent, now=now):
            phase.is_learned = True
            runs.append(run)
        if len(told) < len(calls):
            self._waiting.append(phase)
            if len(self._waiting) > self._config.max_calls:
                runs += self._give_up(self._waiting.popleft())
        return runs

    def forget(self, call: OpenCall) -> None:
        """No span will be taken for it. An unknown one is no error."""
        if self._calls.pop(call.asking.tenant, call) is not None:
            self._unindex(call)

    def _unindex(self, call: OpenCall) -> None:
        for key in _keys(call):
            tenants = self._by.get(key, {})
            alike = tenants.get(call.asking.tenant, [])
            if call in alike:
                alike.remove(call)
            if not alike:
                tenants.pop(call.asking.tenant, None)
            if not tenants:
                self._by.pop(key, None)

    def told(
        self, spans: Iterable[ToolSpan], tenant: TenantId | None, *, now: float
    ) -> tuple[list[OpenCall], list[ToolRun]]:
        """The calls that these explain, and what is to be learned. `tenant`: whose they are; None if an
        operator's."""
        runs = self._overdue(now=now)
        found: list[OpenCall] = []
        for span in spans:
            call = self._find(span, tenant, now=now)
            if isinstance(call, Verdict):
                self.verdicts[call] += 1
                continue
            self.verdicts[Verdict.TAKEN] += 1
            if span.span:
                self._spans.put(tenant, (span.trace, span.span), True)
            self.forget(call)
            call.took_s, call.has_failed = span.duration_s, span.has_failed
            call.is_seen = span.session is not None
            found.append(call)
            phase = call.phase
            if phase is not None:
                if not call.is_seen:
                    self._reports(phase.run.agent, now=now)
                if not phase.is_learned:
                    runs.append(phase.run_of(call))
        return found, runs

    def _find(self, span: ToolSpan, tenant: TenantId | None, *, now: float) -> OpenCall | Verdict:
        if span.span and self._spans.get(tenant, (span.trace, span.span)):
            return Verdict.REPEATED
        known = self._alike(span.call, tenant) if span.call is not None else []
        if not known and span.trace:
            known = self._alike((span.trace, span.name), tenant)
            if span.call is not None:  # of a call with another id it is not; of one in a text it may be
                known = [call for call in known if call.is_in_text]
        if span.session is not None:
            known = [call for call in known if call.session == span.session]
        elif _are_of_several(known):
            known = [call for call in known if span.trace and call.asking.trace == span.trace]
            if not known or _are_of_several(known):
                return Verdict.AMBIGUOUS
        if not known:
            return Verdict.UNKNOWN
        fits = (call for call in known if span.duration_s <= _longest_s(call, now=now))
        return next(fits, Verdict.TOO_LONG)

    def _alike(self, key: _Key, tenant: TenantId | None) -> list[OpenCall]:
        tenants = self._by.get(key, {})
        if tenant is not None:
            return tenants.get(tenant, [])
        return [call for alike in islice(tenants.values(), _MAX_TENANTS) for call in alike]

    def _reports(self, agent: int, *, now: float) -> None:
        self._reporting[agent] = now
        self._reporting.move_to_end(agent)
        if len(self._reporting) > _MAX_AGENTS:
            self._reporting.popitem(last=False)

    def _is_reporting(self, agent: int, *, now: float) -> bool:
        return now - self._reporting.get(agent, -_REPORTS_S) < _REPORTS_S

    def _overdue(self, *, now: float) -> list[ToolRun]:
        runs: list[ToolRun] = []
        while self._waiting and self._waiting[0].closed_s + self._config.wait_s <= now:
            runs += self._give_up(self._waiting.popleft())
        return runs

    def _give_up(self, phase: Phase) -> list[ToolRun]:
        for call in phase.calls:
            self.forget(call)
        return [] if phase.is_learned or phase.is_told else [phase.run]


def _keys(call: OpenCall) -> tuple[_Key, ...]:
    return (call.id, (call.asking.trace, call.name)) if call.asking.trace else (call.id,)


def _are_of_several(calls: list[OpenCall]) -> bool:
    return len(calls) > 1 and len({call.session for call in calls}) > 1


def _longest_s(call: OpenCall, *, now: float) -> float:
    over_s = call.phase.closed_s if call.phase is not None else now
    return (over_s - call.asking.arrived_s) * _SLACK + _SLACK_S
