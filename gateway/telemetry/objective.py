"""How sessions fare: how long they take and with what, and how many end in time (pure).

Source: MARS (§2.1, Eq. 1-2): goodput is what ends within α × its isolated time.

Symbols: α → `ObjectiveConfig.slowdown_target`; the isolated time of a turn → `gpu_end.alone_ms`, as predicted
from what its replica was seen to do.

Deviations: an isolated time is the sum of a session's turns, each alone, and of its tool phases as they were.
What is held against it is the sum of its turns as they were and of the same tool phases: so conversations of
a session that run beside one another count as if they had run one after another, on both sides. When somebody
thinks between an answer and the next question, nothing counts.

Invariants: at most `MAX_LABELS` sets of labels have histograms of their own (`label_slots.py`), those of
others are added up under `other`; a tenant or an agent type has a label from its `EARNED`th session on, so
that names which come once take no room; memory is bounded by `max_sessions` and `MAX_OPEN`.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from prometheus_client.core import Metric

from gateway.config.telemetry import ObjectiveConfig
from gateway.domain import records as rec
from gateway.domain.ids import RequestId, SessionId
from gateway.telemetry.counts import counter
from gateway.telemetry.histograms import HistogramFamily, growing
from gateway.telemetry.label_slots import LabelSlots

MAX_LABELS: Final = 24
MAX_OPEN: Final = 20_000
EARNED: Final = 3
_REMEMBERED: Final = 4096
OTHER: Final = "other"
_MET: Final = ("yes", "no", "unknown")
PARTS: Final = ("queue", "prefill", "decode", "tools")
_SESSION_S: Final = growing(0.1, 20_000)
_FIRST_S: Final = growing(0.005, 300)
_TOKEN_S: Final = growing(0.001, 2)
_TURNS: Final = growing(1, 1000, ratio=1.5)
_SLOWDOWNS: Final = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0)
# So that a turn of which a wrong time is expected does not decide the mean of all.
_MOST_SLOWDOWN: Final = 1000.0


class OutcomeView(msgspec.Struct, frozen=True, kw_only=True):
    """Since the start of the gateway; sums over gateways are valid."""

    sessions: int
    """Ended sessions."""
    in_time: int
    judged: int
    """Of these, the ones known to be in time or late."""
    turns_in_time: int
    turns_judged: int
    cached_tokens: int
    """Cached prompt tokens, as engines report them."""


class Labels(NamedTuple):
    pool: str
    tenant: str
    service_class: str
    agent: str


LABELS: Final = ["pool", "tenant", "class", "agent"]
_Of = tuple[str, ...]


class _Turn(msgspec.Struct, gc=False):
    session: SessionId
    arrived_s: float
    submitted_s: float | None = None
    first_s: float | None = None
    pool: str = ""
    service_class: str = "none"


class _Session(msgspec.Struct, gc=False):
    tenant: str
    agent: str
    started_s: float
    last_s: float
    pool: str = ""
    service_class: str = "none"
    running: int = 0
    turns: int = 0
    idle_s: float = 0.0
    """When none of its turns ran and no tool did."""
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tools_s: float = 0.0
    alone_s: float = 0.0
    unknown: int = 0
    end: str = ""
    """How its last turn ended: `good`, `bad`, `left`."""


class _Names:
    """Of tenants, or of agent types: who has a label."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, int] = OrderedDict()

    def label(self, name: str) -> str:
        count = self._seen.pop(name, 0) + 1
        self._seen[name] = count
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return name if count >= EARNED else OTHER


class Objective:
    def __init__(self, config: ObjectiveConfig, *, max_sessions: int) -> None:
        self._alpha = config.slowdown_target
        self._max_sessions = max_sessions
        self._turns: OrderedDict[RequestId, _Turn] = OrderedDict()
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()
        self._tenants, self._agents = _Names(), _Names()
        self._slots: LabelSlots[Labels] = LabelSlots(MAX_LABELS, self._forget)
        # Sessions by whether they were in time, of labels that gave way.
        self._forgotten: Counter[_Of] = Counter()
        what = "Time from the first turn of a finished session to its last answer, without its idle time"
        self._session_s = HistogramFamily("session_seconds", what, LABELS, _SESSION_S)
        what = "Time of finished sessions in the queue, in prefill, in decode and in tools"
        self._part_s = HistogramFamily("session_part_seconds", what, ["part", *LABELS], _SESSION_S)
        self._session_turns = HistogramFamily("session_turns", "Turns of finished sessions", LABELS, _TURNS)
        what = "Time from the arrival of a turn to its first token; to its answer without streaming"
        self._first_s = HistogramFamily("ttft_seconds", what, ["pool", "class"], _FIRST_S)
        what = "Time per output token after the first one, of streamed answers"
        self._token_s = HistogramFamily("tpot_seconds", what, ["pool", "class"], _TOKEN_S)
        what = "Time of finished sessions and turns, divided by their isolated time"
        self._slowdown = HistogramFamily("slowdown", what, ["of", "pool", "class"], _SLOWDOWNS)
        # By labels and whether they were in time: `yes`, `no`, or `unknown`.
        self.sessions: Counter[_Of] = Counter()
        # The same, by pool and class.
        self.turns: Counter[_Of] = Counter()
        self.cached_tokens = 0
        self._judges = False
        self._takes: dict[type, Callable[[Any], None]] = {
            rec.TurnArrived: self._arrived,
            rec.GpuSubmit: self._submitted,
            rec.GpuFirstToken: self._first_token,
            rec.GpuEnd: self._ended,
            rec.Refused: self._refused,
            rec.TurnLeft: self._left,
            rec.ToolEnd: self._tools_ended,
            rec.SessionEnded: self._session_ended,
        }

    def take(self, records: Iterable[rec.Record]) -> None:
        takes = self._takes
        for record in records:
            if (take := takes.get(type(record))) is not None:
                take(record)

    def view(self) -> OutcomeView:
        sessions, turns = self.sessions + self._forgotten, self.turns
        (in_time, judged), (turns_in_time, turns_judged) = _judged(sessions), _judged(turns)
        return OutcomeView(
            sessions=sessions.total(),
            in_time=in_time,
            judged=judged,
            turns_in_time=turns_in_time,
            turns_judged=turns_judged,
            cached_tokens=self.cached_tokens,
        )

    def text(self) -> str:
        return "".join(each.text() for each in self.histograms())

    def histograms(self) -> tuple[HistogramFamily, ...]:
        of_sessions = self._session_s, self._part_s, self._session_turns
        return *of_sessions, self._first_s, self._token_s, self._slowdown

    def families(self) -> Iterator[Metric]:
        for name, what, labels, counts in (
            ("slo_sessions", "Ended sessions, by whether they were in time", LABELS, self.sessions),
            ("slo_turns", "Ended turns, by whether they were in time", ["pool", "class"], self.turns),
        ):
            yield counter(name, what, [*labels, "met"], counts)

    # --- turns -----------------------------------------------------------------------------------

    def _arrived(self, record: rec.TurnArrived) -> None:
        if record.session is None:
            return
        self._turns[record.turn] = _Turn(record.session, record.at_s)
        if len(self._turns) > MAX_OPEN:
            self._over(next(iter(self._turns)), at_s=0.0, end="left")
        session = self._sessions.get(record.session)
        if session is None:
            session = self._sessions[record.session] = _Session(
                record.tenant, record.agent, record.at_s, record.at_s
            )
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        elif not session.running:
            gap_s = max(0.0, record.at_s - session.last_s)
            if session.end == "bad":  # its client waited to retry
                session.queue_s += gap_s
            else:
                session.idle_s += gap_s
        self._sessions.move_to_end(record.session)
        session.running += 1

    def _submitted(self, record: rec.GpuSubmit) -> None:
        if (turn := self._turns.get(record.turn)) is not None:
            turn.submitted_s, turn.first_s = record.at_s, None
            turn.pool, turn.service_class = record.pool or "", record.service_class or "none"

    def _first_token(self, record: rec.GpuFirstToken) -> None:
        if (turn := self._turns.get(record.turn)) is not None:
            turn.first_s = record.at_s

    def _ended(self, record: rec.GpuEnd) -> None:
        if record.outcome == "failed":  # it goes elsewhere, or is refused
            return
        self.cached_tokens += record.usage.cached_tokens or 0
        turn = self._turns.get(record.turn)
        if turn is None or turn.submitted_s is None:
            return
        end_s = record.at_s
        first_s = turn.first_s if turn.first_s is not None else end_s
        is_left = record.outcome == "client_left"
        is_good = record.outcome == "finished" and (record.status or 0) < 400 and not record.failure
        key = (turn.pool, turn.service_class)
        alone_s = record.alone_ms / 1e3 if record.alone_ms is not None else None
        if is_good:
            self._first_s.add(key, first_s - turn.arrived_s)
            output = record.usage.output_tokens or 0
            if output > 1 and end_s > first_s:
                self._token_s.add(key, (end_s - first_s) / (output - 1))
        session = self._over(record.turn, at_s=end_s, end="left" if is_left else "good" if is_good else "bad")
        if session is not None:
            session.turns += 1
            session.pool, session.service_class = turn.pool, turn.service_class
            session.queue_s += turn.submitted_s - turn.arrived_s
            session.prefill_s += first_s - turn.submitted_s
            session.decode_s += end_s - first_s
            session.alone_s += alone_s or 0.0
            session.unknown += alone_s is None
        if not is_left:
            met = self._judge("turn", key, end_s - turn.arrived_s, alone_s) if is_good else self._failed()
            self.turns[(*key, met)] += 1

    def _refused(self, record: rec.Refused) -> None:
        if (turn := self._turns.get(record.turn)) is not None:
            if (session := self._over(record.turn, at_s=record.at_s, end="bad")) is not None:
                session.queue_s += record.at_s - turn.arrived_s
            self.turns[turn.pool, turn.service_class, self._failed()] += 1

    def _left(self, record: rec.TurnLeft) -> None:
        self._over(record.turn, at_s=record.at_s, end="left")

    def _over(self, name: RequestId, *, at_s: float, end: str) -> _Session | None:
        turn = self._turns.pop(name, None)
        session = self._sessions.get(turn.session) if turn is not None else None
        if session is not None:
            session.running -= 1
            session.last_s = max(session.last_s, at_s)
            session.end = end
        return session

    def _failed(self) -> str:
        """Unknown while that is all that is known: else a share would be of failures alone."""
        return "no" if self._judges else "unknown"

    def _judge(self, of: str, key: _Of, took_s: float, alone_s: float | None) -> str:
        if not alone_s:
            return "unknown"
        self._judges = True
        slowdown = min(_MOST_SLOWDOWN, took_s / alone_s)
        self._slowdown.add((of, *key), slowdown)
        return "yes" if slowdown <= self._alpha else "no"

    # --- sessions --------------------------------------------------------------------------------

    def _tools_ended(self, record: rec.ToolEnd) -> None:
        if (session := self._sessions.get(record.session)) is not None:
            took_s = record.duration_ms / 1e3
            session.tools_s += took_s
            session.idle_s = max(0.0, session.idle_s - took_s)  # until now it looked like that

    def _session_ended(self, record: rec.SessionEnded) -> None:
        session = self._sessions.pop(record.session, None)
        if session is None or not session.turns:
            return
        labels = self._labels_of(session, now=record.at_s)
        if session.end != "good":
            self.sessions[(*labels, self._failed() if session.end == "bad" else "unknown")] += 1
            return
        took_s = session.queue_s + session.prefill_s + session.decode_s + session.tools_s
        alone_s = None if session.unknown else session.alone_s + session.tools_s
        met = self._judge("session", (labels.pool, labels.service_class), took_s, alone_s)
        self.sessions[(*labels, met)] += 1
        self._session_s.add(labels, max(0.0, session.last_s - session.started_s - session.idle_s))
        self._session_turns.add(labels, session.turns)
        for part in PARTS:
            self._part_s.add((part, *labels), getattr(session, f"{part}_s"))

    def _forget(self, labels: Labels) -> None:
        for met in _MET:
            self._forgotten[met,] += self.sessions.pop((*labels, met), 0)
        for spreads in (self._session_s, self._session_turns):
            spreads.remove(labels)
        for part in PARTS:
            self._part_s.remove((part, *labels))

    def _labels_of(self, session: _Session, *, now: float) -> Labels:
        tenant, agent = self._tenants.label(session.tenant), self._agents.label(session.agent or "unknown")
        for labels in (
            Labels(session.pool, tenant, session.service_class, agent),
            Labels(session.pool, OTHER, session.service_class, OTHER),
        ):
            if self._slots.take(labels, now=now):
                return labels
        return Labels(OTHER, OTHER, OTHER, OTHER)


def _judged(ended: Counter[_Of]) -> tuple[int, int]:
    """How many were in time, of how many; none while most are unknown, since failures always are known."""
    yes, no, unknown = (sum(n for labels, n in ended.items() if labels[-1] == met) for met in _MET)
    return (0, 0) if unknown > yes + no else (yes, yes + no)
