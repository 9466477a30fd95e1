"""One decision, explained: what was known, what was decided, why, and what else there was.

`explanation_of` makes it of the `Evidence`, which comes from the stream or from the history. Give an
`Explainer` the stream, the newest record first: it is read backwards from now. How much ran on a replica then
is what runs there now, less what was sent there since, and with what ended since.

Deviations: what an alternative would have cost is an estimate: what the nearest turn before was expected to
take there for each token that had to be computed, times the tokens of this one, none of them cached there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from gateway.dashboard import sentences
from gateway.domain import records as rec
from gateway.domain.admission_records import SessionHeld, WindowUpdated
from gateway.domain.ids import ReplicaId, RequestId

_MAX_RECORDS: Final = 200
_FAILED: Final = {"failed": "was tried, and failed", "cut": "broke its answer off"}
_DOWN: Final = ("down", "ejected", "draining")
_DECIDES: Final = (rec.Routed, rec.Refused, rec.TurnWaited, rec.TurnLeft)
_R = TypeVar("_R")


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    outcome: str
    """`waiting`, `dispatched`, `refused`, or `left`: its client did not wait any longer."""
    replica: ReplicaId | None = None
    reason: str | None = None
    refusal: str | None = None
    queue_ms: float = 0.0
    attempts: int = 0


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    replica: ReplicaId
    running: int
    first_token_ms: float | None
    completion_ms: float | None
    why_not: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    turn: RequestId
    known: rec.TurnArrived | None
    decided: Decided
    expected: rec.Expected | None
    became: rec.GpuEnd | None
    why: list[str]
    alternatives: list[Alternative]
    window: WindowUpdated | None
    records: list[rec.Record]


class Evidence(NamedTuple):
    """What is known of a turn and of what was around it."""

    turn: RequestId
    records: Sequence[rec.Record]
    """Its own, oldest first."""
    loads: Mapping[ReplicaId, int]
    """How many turns each replica ran that was up when it was routed."""
    paces: Mapping[ReplicaId, "Pace"]
    window: WindowUpdated | None
    """What moved it last before the turn was decided."""
    held_by: SessionHeld | None
    """What kept the turn's session out when the turn began to wait."""
    down: Mapping[ReplicaId, str]
    """Why replicas could not be used when it was decided, as far as that is known."""


class Pace(NamedTuple):
    """Of a replica, as it was expected to be."""

    token_ms: float
    """For each token of a prompt that has to be computed."""
    rest_ms: float
    """From the first token to the end."""

    @classmethod
    def of(cls, submit: rec.GpuSubmit) -> "Pace | None":
        expected = submit.expected
        if expected is None or (new := expected.prompt_tokens - expected.cached_tokens) <= 0:
            return None
        rest_ms = max(0.0, expected.completion_ms - expected.first_token_ms)
        return cls(expected.first_token_ms / new, rest_ms)


class Explainer:
    def __init__(self, turn: RequestId, running: Mapping[ReplicaId, int] | None = None) -> None:
        """`running`: how many turns each replica that is up runs now."""
        self._turn = turn
        self._running = dict(running or {})
        self._records: list[rec.Record] = []
        self._loads: dict[ReplicaId, int] = {}
        self._paces: dict[ReplicaId, Pace] = {}
        self._window: WindowUpdated | None = None
        self._is_decided = False
        self._waited: rec.TurnWaited | None = None
        # What kept the turn's session out when the turn began to wait.
        self._held_by: SessionHeld | None = None
        # Each replica's last before the turn was decided.
        self._changes: dict[ReplicaId, rec.ReplicaChanged] = {}

    def read(self, newest_first: Iterable[rec.Record]) -> None:
        for record in newest_first:
            if getattr(record, "turn", None) == self._turn and len(self._records) < _MAX_RECORDS:
                self._records.append(record)
                self._is_decided |= isinstance(record, _DECIDES)
                if isinstance(record, rec.TurnWaited):
                    self._waited = record
                if isinstance(record, rec.Routed) and not self._loads:
                    self._loads = dict(self._running)
            if isinstance(record, rec.GpuSubmit):
                self._running[record.replica] = max(0, self._running.get(record.replica, 0) - 1)
                if self._loads and record.turn != self._turn and record.replica not in self._paces:
                    if (pace := Pace.of(record)) is not None:
                        self._paces[record.replica] = pace
            elif isinstance(record, SessionHeld):
                waited = self._waited
                if waited and (waited.session, waited.at_s) == (record.session, record.at_s):
                    self._held_by = record
            elif isinstance(record, rec.GpuEnd):
                self._running[record.replica] = self._running.get(record.replica, 0) + 1
            elif isinstance(record, WindowUpdated) and self._is_decided and self._window is None:
                self._window = record
            elif isinstance(record, rec.ReplicaChanged) and self._is_decided:
                self._changes.setdefault(record.replica, record)

    def explanation(self) -> Explanation | None:
        down = {
            name: f"{each.state}, {each.why}" for name, each in self._changes.items() if each.state in _DOWN
        }
        for name in down:
            self._loads.pop(name, None)
        own = self._records[::-1]
        return explanation_of(
            Evidence(self._turn, own, self._loads, self._paces, self._window, self._held_by, down)
        )


def explanation_of(evidence: Evidence) -> Explanation | None:
    """None if there is nothing of it."""
    records = evidence.records
    if not records:
        return None
    routed = _last(records, rec.Routed)
    refused = _last(records, rec.Refused)
    submitted = _last(records, rec.GpuSubmit)
    left = _last(records, rec.TurnLeft)
    decided = Decided(
        outcome="refused" if refused else "left" if left else "dispatched" if routed else "waiting",
        replica=routed.replica if routed else None,
        reason=routed.reason.value if routed else None,
        refusal=refused.reason.value if refused else None,
        queue_ms=waited.waited_ms if (waited := refused or left or routed) else 0.0,
        attempts=sum(isinstance(record, rec.Routed) for record in records),
    )
    expected = submitted.expected if submitted else None
    return Explanation(
        turn=evidence.turn,
        known=_last(records, rec.TurnArrived),
        decided=decided,
        expected=expected,
        became=_last(records, rec.GpuEnd),
        why=_why(evidence, routed, refused, left),
        alternatives=_alternatives(evidence, routed, expected) if routed else [],
        window=evidence.window,
        records=list(records),
    )


def held_when_it_waited(records: Iterable[rec.Record]) -> SessionHeld | None:
    began = {record.at_s for record in records if isinstance(record, rec.TurnWaited)}
    return next((each for each in records if isinstance(each, SessionHeld) and each.at_s in began), None)


def _why(
    evidence: Evidence, routed: rec.Routed | None, refused: rec.Refused | None, left: rec.TurnLeft | None
) -> list[str]:
    records, held_by = evidence.records, evidence.held_by
    waits = [record for record in records if isinstance(record, rec.TurnWaited)]
    waited_ms = waited.waited_ms if (waited := refused or left or routed) else None
    lines = [sentences.why_waited(waits, waited_ms, evidence.window)] if waits or refused is None else []
    if held_by is not None:
        lines.append(sentences.why_held(held_by))
    reasons = [each.reason.value for each in waits] + ([refused.reason.value] if refused else [])
    if evidence.down and "no_replica" in reasons:
        lines.append(f"Not usable then: {'; '.join(map(': '.join, evidence.down.items()))}.")
    lines += [
        f"{record.replica} {_FAILED[record.outcome]} after {record.duration_ms:.0f} ms."
        for record in records
        if isinstance(record, rec.GpuEnd) and record.outcome in _FAILED
    ]
    if routed is not None:
        lines.append(sentences.why_there(routed, evidence.loads))
    if (arrived := _last(records, rec.TurnArrived)) and arrived.changed is not None:
        lines.append(sentences.why_uncached(arrived.changed))
    if (submitted := _last(records, rec.GpuSubmit)) and submitted.engine_class == "proactive":
        lines.append(sentences.BEHIND)
    lines += [sentences.why_bound(record) for record in records if isinstance(record, rec.BoundReached)]
    if refused is not None:
        lines.append(sentences.why_refused(refused))
    if left is not None:
        lines.append("Its client went away while it waited.")
    return lines


def _alternatives(evidence: Evidence, routed: rec.Routed, expected: rec.Expected | None) -> list[Alternative]:
    found = []
    for replica, running in evidence.loads.items():
        if replica == routed.replica:
            continue
        pace = evidence.paces.get(replica)
        first_ms = pace.token_ms * expected.prompt_tokens if pace and expected else None
        end_ms = first_ms + pace.rest_ms if pace and first_ms is not None else None
        found.append(
            Alternative(
                replica=replica,
                running=running,
                first_token_ms=first_ms,
                completion_ms=end_ms,
                why_not=_why_not(running, evidence.loads.get(routed.replica, 0), first_ms, expected),
            )
        )
    return sorted(found, key=lambda each: (each.completion_ms or float("inf"), each.running))


def _why_not(running: int, running_there: int, first_ms: float | None, expected: rec.Expected | None) -> str:
    drawbacks = []
    if expected is not None and expected.cached_tokens:
        drawbacks.append(f"{expected.cached_tokens} tokens would have to be computed again")
    if first_ms is not None and expected is not None and first_ms >= expected.first_token_ms + 1.0:
        drawbacks.append(f"the first token is expected {first_ms - expected.first_token_ms:.0f} ms later")
    if running > running_there:
        drawbacks.append(f"{running} turns ran there, {running_there} where it went")
    return "; ".join(drawbacks) or "as good; one had to be chosen"


def _last(records: Sequence[rec.Record], kind: type[_R]) -> _R | None:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)
