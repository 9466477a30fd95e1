"""What is counted from the information stream, for Prometheus (pure).

Counting is a plain addition, of many records at once: one by one it takes twice as long.

Invariants: labels are small closed sets (reasons, outcomes, sources, pools, replicas; `usage.py`: tenants,
keys and models), never a session; a record of a type that is unknown here counts as a record of its type and
no more; nothing is kept of a replica that left.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.ids import ReplicaId
from gateway.telemetry.histograms import Histogram, histogram
from gateway.telemetry.usage import KINDS, WHOSE, Usages, outcome_of

_SHARES: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
_MANY: Final = 256
# Name, what it is, and labels. With a type of records, these are counted by their fields of those names.
_COUNTERS: Final[tuple[tuple[type | None, str, str, str], ...]] = (
    (None, "records", "Records of the information stream", "type"),
    (rec.TurnArrived, "turns", "Turns that arrived", "protocol source"),
    (rec.TurnWaited, "waits", "Turns that waited, by reason", "reason"),
    (rec.TurnWouldWait, "would_wait", "Turns that would have waited, in shadow mode", "reason"),
    (rec.Routed, "placements", "Turns sent to a replica, by reason of the placement", "replica reason"),
    (None, "models", "Turns under a model name of `[[models]]`", "requested model fallback"),
    (None, "attempts", "Requests sent to a replica, by their end", "replica outcome code"),
    (rec.Refused, "refusals", "Refused requests, by reason", "reason"),
    (rec.BoundReached, "bounds", "Turns beyond a bound, by the action taken", "bound limit action"),
    (None, "tokens", "Tokens as backends reported them", "replica kind"),
    (None, "malformed_claims", "Malformed claims of clients on urgency and retention", "claim"),
    (rec.SessionEnded, "sessions_ended", "Ended sessions, by reason", "reason"),
    (WindowUpdated, "window_updates", "Changes of the admission limits, by reason", "pool reason"),
    (rec.ReplicaChanged, "replica_changes", "Changes of a replica's state", "replica state"),
    (
        rec.PrefilledAhead,
        "prefill_ahead",
        "Prefills of the next prompt during tool calls, by outcome",
        "outcome",
    ),
    (None, "prefill_ahead_tokens", "Tokens of prefills during tool calls, computed and used", "what"),
    (rec.PrefillLegEnded, "remote_prefills", "Prompts computed for another replica", "replica outcome"),
)
_OF_REPLICAS: Final = tuple(name for _, name, _, labels in _COUNTERS if labels.startswith("replica "))
_SPREADS: Final = {
    "queue_seconds": "Time in the waiting room",
    "tool_phase_seconds": "Duration of tool phases",
    "decode_after_call_seconds": "Time from a complete tool call to the end of its answer",
    "session_confidence": "Confidence of the session of a turn",
}


class Counts:
    def __init__(
        self, beside: Iterable[Callable[[list[rec.Record]], None]] = (), usages: Usages | None = None
    ) -> None:
        """`beside`: who takes the same records, many at once."""
        self._beside = tuple(beside)
        self._fresh: list[rec.Record] = []
        self._counts: dict[str, Counter[Any]] = {name: Counter() for _, name, _, _ in _COUNTERS}
        self._spreads = {name: Histogram() for name in _SPREADS} | {"session_confidence": Histogram(_SHARES)}
        self.usages = usages or Usages()
        self._first_token: dict[ReplicaId, Histogram] = defaultdict(Histogram)
        self._durations: dict[ReplicaId, Histogram] = defaultdict(Histogram)
        self._keys = {
            kind: (self._counts[name], attrgetter(*labels.split()))
            for kind, name, _, labels in _COUNTERS
            if kind is not None
        }
        add_ms = {name: spread.add_ms for name, spread in self._spreads.items()}
        # What else is counted of them.
        self._takes: dict[type, Callable[[list[Any]], None]] = {
            rec.TurnArrived: self._take_turns,
            rec.Routed: lambda each: add_ms["queue_seconds"]([record.waited_ms for record in each]),
            rec.ModelChosen: lambda each: self._counts["models"].update(
                [(r.requested, r.model, r.fallback.value if r.fallback else "") for r in each]
            ),
            rec.GpuFirstToken: self._take_first_tokens,
            rec.GpuEnd: self._take_ends,
            rec.Refused: partial(self.usages.over, "refused"),
            rec.TurnLeft: partial(self.usages.over, "client_left"),
            rec.ToolStart: lambda each: add_ms["decode_after_call_seconds"](
                [ms for record in each for ms in record.ready_ms]
            ),
            rec.ToolEnd: lambda each: add_ms["tool_phase_seconds"]([record.duration_ms for record in each]),
            rec.PrefilledAhead: self._take_prefills,
            rec.ReplicaChanged: lambda each: self._left.extend(
                [record.replica for record in each if record.state == "left"]
            ),
        }
        self._left: list[ReplicaId] = []

    def take(self, records: list[rec.Record]) -> None:
        self._fresh += records
        if len(self._fresh) > _MANY:
            self.flush()

    def families(self) -> Iterator[Metric]:
        self.flush()
        for _, name, what, labels in _COUNTERS:
            yield counter(name, what, labels.split(), self._counts[name])
        for name, what, label, values in self.usages.families():
            yield counter(name, what, [*WHOSE, *label.split()], values)
        stops = self._counts["records"]["session_stop"]
        yield CounterMetricFamily("turnpike_sessions_stopped", "Sessions stopped by an operator", stops)
        for name, what in _SPREADS.items():
            yield histogram(name, what, {(): self._spreads[name]})
        for name, what, spreads in (
            ("engine_ttft_seconds", "Time from submission to the first token", self._first_token),
            ("turn_seconds", "Time from submission to the end of the answer", self._durations),
        ):
            yield histogram(name, what, {(each,): spread for each, spread in spreads.items()}, ["replica"])

    def flush(self) -> None:
        """Counts what was taken and not looked at yet."""
        fresh, self._fresh = self._fresh, []
        for take in self._beside:
            take(fresh)
        kinds: dict[type[rec.Record], list[rec.Record]] = defaultdict(list)
        for record in fresh:
            kinds[type(record)].append(record)
        for kind, records in kinds.items():
            self._counts["records"][str(kind.__struct_config__.tag)] += len(records)
            if (counted := self._keys.get(kind)) is not None:
                counted[0].update(map(counted[1], records))
            if (take_all := self._takes.get(kind)) is not None:
                take_all(records)
        for replica in self._left:
            self._forget(replica)
        self._left.clear()

    def _forget(self, replica: ReplicaId) -> None:
        for table in (self._counts[name] for name in _OF_REPLICAS):
            for key in [key for key in table if key[0] == replica]:
                del table[key]
        self._first_token.pop(replica, None)
        self._durations.pop(replica, None)

    def _take_prefills(self, records: list[rec.PrefilledAhead]) -> None:
        tokens = self._counts["prefill_ahead_tokens"]
        for record in records:
            usage = record.usage
            tokens["computed"] += (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
            tokens["used"] += record.used_tokens

    def _take_turns(self, records: list[rec.TurnArrived]) -> None:
        self._spreads["session_confidence"].add_all([record.confidence for record in records])
        for record in records:
            if record.claims is not None:
                self._counts["malformed_claims"].update(record.claims.malformed)

    def _take_first_tokens(self, records: list[rec.GpuFirstToken]) -> None:
        for record in records:
            self._first_token[record.replica].add(record.launch_delay_ms / 1e3)

    def _take_ends(self, records: list[rec.GpuEnd]) -> None:
        self._counts["attempts"].update(
            [(r.replica, outcome_of(r.outcome, r.status, r.failure), str(r.status or "")) for r in records]
        )
        self.usages.ended(records)
        tokens = self._counts["tokens"]
        for record in records:
            usage, replica = record.usage, record.replica
            if usage.prompt_tokens is not None:
                counts = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
                for kind, count in zip(KINDS, counts, strict=True):
                    tokens[replica, kind] += count or 0
            self._durations[replica].add(record.duration_ms / 1e3)


def counter(name: str, help_text: str, labels: list[str], counts: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(f"turnpike_{name}", help_text, labels=labels), counts)


def gauge(name: str, help_text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"turnpike_{name}", help_text, labels=labels), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, counts: Mapping[Any, float]) -> Metric:
    for key, count in counts.items():
        parts = key if isinstance(key, tuple) else (key,)
        family.add_metric([part if isinstance(part, str) else str(part.value) for part in parts], count)
    return family
