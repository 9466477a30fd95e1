"""What is counted from the information stream, for Prometheus (pure).

Counting is a plain addition, of many records at once: one by one it takes twice as long.

Invariants: labels are small closed sets (reasons, outcomes, sources, pools, replicas), never a session; of
tenants and the models that answered them, `MAX_USERS` pairs have series of their own, the others are counted
together; a record of a type that is unknown here counts as a record of its type and no more; nothing is kept
of a replica that left.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.request import Protocol
from gateway.telemetry.label_slots import LabelSlots
from gateway.telemetry.spreads import Spread, histogram

_SHARES: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
_MANY: Final = 256
MAX_USERS: Final = 200
OTHER: Final = "other"


class Counts:
    def __init__(self, beside: Iterable[Callable[[list[rec.Record]], None]] = ()) -> None:
        """`beside`: who takes the same records, many at once."""
        self._beside = tuple(beside)
        self._fresh: list[rec.Record] = []
        self._records: Counter[str] = Counter()
        self._turns: Counter[tuple[Protocol, SessionSource]] = Counter()
        self._waits: Counter[WaitReason] = Counter()
        self._would_wait: Counter[WaitReason] = Counter()
        self._placements: Counter[tuple[ReplicaId, PlacementReason]] = Counter()
        self._models: Counter[tuple[str, str, str]] = Counter()
        self._ends: Counter[tuple[ReplicaId, str, str]] = Counter()
        self._refusals: Counter[RefusalReason] = Counter()
        self._bounds: Counter[tuple[str, str, str]] = Counter()
        self._stops = 0
        self._malformed: Counter[str] = Counter()
        self._tokens: Counter[tuple[ReplicaId, str]] = Counter()
        self._used: Counter[tuple[str, str, str]] = Counter()
        self._users: LabelSlots[tuple[str, str]] = LabelSlots(MAX_USERS, self._forget_user)
        self._session_ends: Counter[str] = Counter()
        self._window_updates: Counter[tuple[PoolId, str]] = Counter()
        self._replica_changes: Counter[tuple[ReplicaId, str]] = Counter()
        self._ahead: Counter[str] = Counter()
        self._legs: Counter[tuple[ReplicaId, str]] = Counter()
        self._ahead_tokens: Counter[str] = Counter()
        self._queue, self._tools, self._calls, self._ready, self._confidence = (
            Spread(),
            Spread(),
            Spread(),
            Spread(),
            Spread(_SHARES),
        )
        self._first_token: dict[ReplicaId, Spread] = defaultdict(Spread)
        self._durations: dict[ReplicaId, Spread] = defaultdict(Spread)
        self._counters: dict[type, Callable[[list[Any]], None]] = {
            rec.SessionEnded: lambda each: self._session_ends.update([record.reason for record in each]),
            rec.TurnArrived: self._count_turns,
            rec.TurnWaited: lambda each: self._waits.update([record.reason for record in each]),
            rec.TurnWouldWait: lambda each: self._would_wait.update([record.reason for record in each]),
            rec.Routed: self._count_placements,
            rec.ModelChosen: self._count_models,
            rec.GpuFirstToken: self._count_first_tokens,
            rec.GpuEnd: self._count_ends,
            rec.ToolStart: lambda each: self._ready.add_ms([ms for record in each for ms in record.ready_ms]),
            rec.ToolEnd: lambda each: self._tools.add_ms([record.duration_ms for record in each]),
            rec.ToolTimed: lambda each: self._calls.add_ms([record.duration_ms for record in each]),
            rec.PrefilledAhead: self._count_ahead,
            rec.PrefillLegEnded: lambda each: self._legs.update([(r.replica, r.outcome) for r in each]),
            rec.Refused: lambda each: self._refusals.update([record.reason for record in each]),
            rec.BoundReached: lambda each: self._bounds.update([(r.bound, r.limit, r.action) for r in each]),
            rec.SessionStopped: self._count_stops,
            WindowUpdated: lambda each: self._window_updates.update([(r.pool, r.reason) for r in each]),
            rec.ReplicaChanged: self._count_replica_changes,
        }
        self._left: list[ReplicaId] = []

    def take(self, records: list[rec.Record]) -> None:
        self._fresh += records
        if len(self._fresh) > _MANY:
            self.flush()

    def families(self) -> Iterator[Metric]:
        self.flush()
        counts: tuple[tuple[str, str, str, Counter[Any]], ...] = (
            ("records", "Records of the information stream", "type", self._records),
            ("turns", "Turns that arrived", "protocol source", self._turns),
            ("waits", "Turns that were told to wait", "reason", self._waits),
            ("would_wait", "Turns that would have waited, in shadow mode", "reason", self._would_wait),
            ("placements", "Turns that were sent", "replica reason", self._placements),
            ("models", "Turns under a name of the operator's", "asked model fallback", self._models),
            ("attempts", "Requests sent to a replica, as they ended", "replica outcome code", self._ends),
            ("refusals", "Requests the gateway refused", "reason", self._refusals),
            ("bounds", "Turns beyond a bound, by what was done", "bound limit action", self._bounds),
            ("tokens", "Tokens as backends reported them", "replica kind", self._tokens),
            ("tenant_tokens", "The same, by who used them", "tenant model kind", self._used),
            ("malformed_claims", "Stated claims that could not be read", "claim", self._malformed),
            ("sessions_ended", "Sessions that ended", "reason", self._session_ends),
            ("window_updates", "Changes of the window, by why", "pool reason", self._window_updates),
            ("replica_changes", "Changes of replicas' states", "replica state", self._replica_changes),
            ("prefill_ahead", "Next prompts, computed while tools ran", "outcome", self._ahead),
            ("prefill_ahead_tokens", "Tokens of them, computed and found", "what", self._ahead_tokens),
            ("prefill_legs", "Prompts computed for another replica", "replica outcome", self._legs),
        )
        for name, what, labels, counted in counts:
            yield counter(name, what, labels.split(), counted)
        yield CounterMetricFamily("turnpike_sessions_stopped", "Sessions that operators stopped", self._stops)
        for name, what, spread in (
            ("queue_seconds", "Time in the waiting room", self._queue),
            ("tool_phase_seconds", "Duration of tool phases", self._tools),
            ("tool_call_seconds", "Duration of tool calls, as agents' own spans tell", self._calls),
            ("decode_after_call_seconds", "From the end of a tool call to that of its answer", self._ready),
            ("session_confidence", "How sure a turn's session is", self._confidence),
        ):
            yield histogram(name, what, {(): spread})
        for name, what, spreads in (
            ("launch_delay_seconds", "From submission to the first token", self._first_token),
            ("turn_seconds", "From submission to the end of the answer", self._durations),
        ):
            yield histogram(name, what, {(each,): spread for each, spread in spreads.items()}, ["replica"])

    def flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        for take in self._beside:
            take(fresh)
        kinds: dict[type[rec.Record], list[rec.Record]] = defaultdict(list)
        for record in fresh:
            kinds[type(record)].append(record)
        for kind, records in kinds.items():
            self._records[str(kind.__struct_config__.tag)] += len(records)
            counter = self._counters.get(kind)
            if counter is not None:
                counter(records)
        for replica in self._left:
            self._forget(replica)
        self._left.clear()

    def _forget(self, replica: ReplicaId) -> None:
        tables: tuple[Counter[Any], ...] = (
            self._placements,
            self._ends,
            self._tokens,
            self._replica_changes,
            self._legs,
        )
        for table in tables:
            for key in [key for key in table if key[0] == replica]:
                del table[key]
        self._first_token.pop(replica, None)
        self._durations.pop(replica, None)

    def _forget_user(self, user: tuple[str, str]) -> None:
        for kind in ("prompt", "cached", "output"):
            del self._used[*user, kind]

    def _count_stops(self, records: list[rec.SessionStopped]) -> None:
        self._stops += len(records)

    def _count_ahead(self, records: list[rec.PrefilledAhead]) -> None:
        self._ahead.update([record.outcome for record in records])
        for record in records:
            usage = record.usage
            self._ahead_tokens["computed"] += (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
            self._ahead_tokens["used"] += record.used_tokens

    def _count_replica_changes(self, records: list[rec.ReplicaChanged]) -> None:
        self._replica_changes.update([(record.replica, record.state) for record in records])
        self._left += [record.replica for record in records if record.state == "left"]

    def _count_turns(self, records: list[rec.TurnArrived]) -> None:
        self._turns.update([(record.protocol, record.source) for record in records])
        self._confidence.add_all([record.confidence for record in records])
        for record in records:
            if record.claims is not None:
                self._malformed.update(record.claims.malformed)

    def _count_placements(self, records: list[rec.Routed]) -> None:
        self._queue.add_ms([record.waited_ms for record in records])
        self._placements.update([(record.replica, record.reason) for record in records])

    def _count_models(self, records: list[rec.ModelChosen]) -> None:
        self._models.update([(r.asked, r.model, r.fallback.value if r.fallback else "") for r in records])

    def _count_first_tokens(self, records: list[rec.GpuFirstToken]) -> None:
        for record in records:
            self._first_token[record.replica].add(record.launch_delay_ms / 1e3)

    def _count_ends(self, records: list[rec.GpuEnd]) -> None:
        self._ends.update(
            [(record.replica, _outcome(record), str(record.status or "")) for record in records]
        )
        tokens, used = self._tokens, self._used
        for record in records:
            usage, replica = record.usage, record.replica
            if usage.prompt_tokens is not None:
                tokens[replica, "prompt"] += usage.prompt_tokens
                tokens[replica, "cached"] += usage.cached_tokens or 0
                tokens[replica, "output"] += usage.output_tokens or 0
                user = (record.tenant or OTHER, record.model or "")
                user = user if self._users.take(user, now=record.at_s) else (OTHER, OTHER)
                used[*user, "prompt"] += usage.prompt_tokens
                used[*user, "cached"] += usage.cached_tokens or 0
                used[*user, "output"] += usage.output_tokens or 0
            self._durations[replica].add(record.duration_ms / 1e3)


def _outcome(record: rec.GpuEnd) -> str:
    if record.outcome != "finished" or (record.status or 0) < 400:
        return record.failure if record.outcome == "finished" and record.failure else record.outcome
    return "error" if (record.status or 0) >= 500 else "rejected"


def counter(name: str, help_text: str, labels: list[str], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"turnpike_{name}", help_text, labels=labels)
    for key, count in counts.items():
        parts = key if isinstance(key, tuple) else (key,)
        family.add_metric([part if isinstance(part, str) else str(part.value) for part in parts], count)
    return family
