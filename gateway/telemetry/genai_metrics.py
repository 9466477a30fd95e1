"""OpenTelemetry's metrics for generative AI, counted from the information stream (pure).

Source: semantic conventions for generative AI, v1.41 (`gen-ai-metrics.md`): names, units, attributes and
buckets.

Deviations: what is measured is what a client of the gateway sees, from a turn's arrival to its last byte, so
time in the queue counts. An answer that is not streamed has no first token of its own, nor a time for each.
`server.address` is not told: which replica it was is a span's to say.

Invariants: at most `MAX_SERIES` sets of attributes are told apart of each metric, what is beyond them is
counted under `otel.metric.overflow`, as OpenTelemetry's SDKs do; a model has a name here once an answer was
good, so that names which clients make up take no room; `MAX_OPEN` turns are followed, the newest.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from gateway.domain import records as rec
from gateway.domain.ids import RequestId
from gateway.telemetry.genai_names import operation_of, problem_of, provider_of
from gateway.telemetry.otlp import Attributes
from gateway.telemetry.spreads import Spread

MAX_SERIES: Final = 1000
"""Of a metric. OpenTelemetry's SDKs stop at 2,000."""
MAX_OPEN: Final = 20_000
_MAX_TEXT: Final = 256
_OVERFLOW: Final[Attributes] = (("otel.metric.overflow", True),)
_DURATIONS_S: Final = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12),
    *(10.24, 20.48, 40.96, 81.92),
)
_FIRST_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(float(4**power) for power in range(14))


class Instrument(NamedTuple):
    """A histogram."""

    name: str
    description: str
    unit: str
    bounds: tuple[float, ...]


DURATION: Final = Instrument(
    "gen_ai.server.request.duration",
    "Generative AI server request duration such as time-to-last byte or last output token.",
    "s",
    _DURATIONS_S,
)
FIRST_TOKEN: Final = Instrument(
    "gen_ai.server.time_to_first_token",
    "Time to generate first token for successful responses.",
    "s",
    _FIRST_S,
)
TOKEN: Final = Instrument(
    "gen_ai.server.time_per_output_token",
    "Time per output token generated after the first token for successful responses.",
    "s",
    _TOKEN_S,
)
USAGE: Final = Instrument(
    "gen_ai.client.token.usage", "Number of input and output tokens used.", "{token}", _TOKENS
)
INSTRUMENTS: Final = (DURATION, FIRST_TOKEN, TOKEN, USAGE)


class _Turn(msgspec.Struct, gc=False):
    arrived: rec.TurnArrived
    first_s: float | None = None


class GenAiMetrics:
    """`take` is for the driver."""

    def __init__(self) -> None:
        self._turns: OrderedDict[RequestId, _Turn] = OrderedDict()
        self._series: dict[Instrument, dict[Attributes, Spread]] = {each: {} for each in INSTRUMENTS}
        self._models: set[str] = set()
        """That have answered."""

    def take(self, records: Iterable[rec.Record]) -> None:
        turns = self._turns
        record: Any
        for record in records:
            kind = type(record)
            if kind is rec.TurnArrived:
                turns[record.turn] = _Turn(record)
                if len(turns) > MAX_OPEN:
                    turns.popitem(last=False)
            elif kind is rec.GpuFirstToken:
                if (turn := turns.get(record.turn)) is not None:
                    turn.first_s = record.at_s
            elif kind is rec.GpuEnd:
                if record.outcome == "failed":
                    continue  # no answer began: it goes elsewhere, or is refused
                if (turn := turns.pop(record.turn, None)) is not None:
                    self._ended(turn, record)
            elif kind is rec.Refused or kind is rec.TurnLeft:
                if (turn := turns.pop(record.turn, None)) is not None:
                    why = record.reason.value if kind is rec.Refused else "client_left"
                    self._count(DURATION, self._of(turn, None, why), record.at_s - turn.arrived.at_s)

    def series(self, instrument: Instrument) -> Iterator[tuple[Attributes, Spread]]:
        """Since it began."""
        yield from self._series[instrument].items()

    def _ended(self, turn: _Turn, end: rec.GpuEnd) -> None:
        arrived_s, first_s, usage = turn.arrived.at_s, turn.first_s, end.usage
        problem = problem_of(end.outcome, end)
        if not problem and len(self._models) < MAX_SERIES:
            self._models.add(turn.arrived.model or "")
        self._count(DURATION, self._of(turn, end, problem), end.at_s - arrived_s)
        of = self._of(turn, end, "")
        for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.output_tokens)):
            if tokens is not None:
                self._count(USAGE, (*of, ("gen_ai.token.type", kind)), tokens)
        if problem or first_s is None or not turn.arrived.is_streamed:
            return
        self._count(FIRST_TOKEN, of, first_s - arrived_s)
        if usage.output_tokens is not None and usage.output_tokens > 1 and end.at_s > first_s:
            self._count(TOKEN, of, (end.at_s - first_s) / (usage.output_tokens - 1))

    def _of(self, turn: _Turn, end: rec.GpuEnd | None, problem: str) -> Attributes:
        arrived, model = turn.arrived, turn.arrived.model or ""
        answered = end.response_model or "" if end is not None else ""
        said = (
            ("gen_ai.operation.name", operation_of(arrived.protocol)),
            ("gen_ai.provider.name", provider_of(arrived.protocol)),
            ("gen_ai.request.model", model[:_MAX_TEXT] if model in self._models else ""),
            ("gen_ai.response.model", answered[:_MAX_TEXT]),
            ("error.type", problem),
        )
        return tuple((name, value) for name, value in said if value)

    def _count(self, instrument: Instrument, of: Attributes, value: float) -> None:
        series = self._series[instrument]
        spread = series.get(of)
        if spread is None:
            if len(series) >= MAX_SERIES:
                of = _OVERFLOW
            spread = series.setdefault(of, Spread(instrument.bounds))
        spread.add(max(0.0, value))
