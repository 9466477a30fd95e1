"""How right the workflow view is on recorded traffic: whether and when conversations go on, tool boundaries.

The real brain is told of the exchanges as they happened, and learns all along. What it predicts at the end
of an answer is scored if that is in the second half of the recording. The truth is read from the recorded
bodies: the first later exchange of the same session whose messages begin with those of this one (links as in
`metrics.py`), and the set of tools that its answer asks for; or the end, if there is none.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.domain import records as rec
from gateway.domain.ids import ThreadId
from gateway.workflow.aeg.graph import ToolSet, tool_set
from gateway.workflow.conversations import Conversation, StepPrediction
from gateway.workflow.retention import RetentionDecision, at_pause
from lab.evaluation.boundaries import Ended, score_boundaries, true_ends
from lab.evaluation.metrics import true_parents
from lab.evaluation.recording import Exchange
from lab.evaluation.replay import Replay

_BINS: Final = 10
_LEAST: Final = 1e-3
"""Probabilities count as this far from certain, at least."""


class Predicted(msgspec.Struct, frozen=True):
    """One prediction, and what came."""

    ends: float
    """Probability of the end."""
    is_over: bool
    """It was."""
    said: ToolSet | None = None
    """What the next answer asks for, was expected; None for the end."""
    came: ToolSet | None = None
    is_released: bool = False
    """So nothing was held."""
    is_held: bool = False
    """What it left was still held when it was used again."""

    @property
    def loss(self) -> float:
        return _loss(self.ends, is_over=self.is_over)


class Report(msgspec.Struct, kw_only=True):
    """None where there is nothing to measure."""

    exchanges: int
    pauses: int
    """That were scored."""
    followed: int
    """Of these: where something followed."""
    ends: int
    """And where nothing did."""
    ends_said: int
    released: int
    """Pauses at which nothing was held: the conversation was taken to be over."""
    boundaries_found: int
    next_accuracy: float | None
    """Where something followed: how often it was what was likeliest."""
    majority: float | None
    """Accuracy of always saying what is most frequent."""
    end_accuracy: float | None
    end_accuracy_se: float | None
    """Its standard error; pauses of one conversation are not independent."""
    end_precision: float | None
    end_recall: float | None
    end_loss: float | None
    """Logarithmic, of the probability of the end."""
    end_loss_base: float | None
    """Of saying the share that ended, in hindsight, of every pause."""
    end_ece: float | None
    """Expected calibration error of that probability, over ten bins."""
    released_right: float | None
    """Of what was not held: the share that was not used again."""
    held: float | None
    """Where something followed: the share that was still held by then."""
    boundaries: int
    boundary_precision: float | None
    boundary_recall: float | None
    duration_error_ms_p99: float | None
    agent_types: int


def evaluate_exchanges(exchanges: Sequence[Exchange], *, without_ids: bool = False) -> Report:
    run = _Run(exchanges, without_ids=without_ids)
    by_number = run.rows()
    rows = list(by_number.values())
    followed = [row for row in rows if not row.is_over]
    released = [row for row in rows if row.is_released]
    right = {number: float((row.ends > 0.5) == row.is_over) for number, row in by_number.items()}
    base = _mean([float(row.is_over) for row in rows])
    bounds = score_boundaries(true_ends(exchanges), run.ended)
    counts: dict[ToolSet | None, int] = defaultdict(int)
    for row in followed:
        counts[row.came] += 1
    errors = sorted(bounds.errors_s)
    return Report(
        exchanges=len(exchanges),
        pauses=len(rows),
        followed=len(followed),
        ends=len(rows) - len(followed),
        ends_said=sum(row.ends > 0.5 for row in rows),
        released=len(released),
        boundaries_found=bounds.ends.found,
        next_accuracy=_mean([float(row.said == row.came) for row in followed]),
        majority=max(counts.values()) / len(followed) if followed else None,
        end_accuracy=_mean(list(right.values())),
        end_accuracy_se=_standard_error(run.by_conversation(right)),
        end_precision=_mean([float(row.is_over) for row in rows if row.ends > 0.5]),
        end_recall=_mean([float(row.ends > 0.5) for row in rows if row.is_over]),
        end_loss=_mean([row.loss for row in rows]),
        end_loss_base=_mean([_loss(base, is_over=row.is_over) for row in rows]) if base is not None else None,
        end_ece=_ece(rows),
        released_right=_mean([float(row.is_over) for row in released]),
        held=_mean([float(row.is_held) for row in followed]),
        boundaries=bounds.ends.true,
        boundary_precision=bounds.ends.precision if bounds.ends.true or bounds.ends.found else None,
        boundary_recall=bounds.ends.recall if bounds.ends.true or bounds.ends.found else None,
        duration_error_ms_p99=errors[min(len(errors) - 1, int(0.99 * len(errors)))] * 1e3 if errors else None,
        agent_types=len(run.conversations.graphs),
    )


class _Run:
    def __init__(self, exchanges: Sequence[Exchange], *, without_ids: bool) -> None:
        self._exchanges = exchanges
        self.ended: list[Ended] = []
        self._said: dict[int, tuple[StepPrediction, RetentionDecision]] = {}
        self._threads: dict[int, ThreadId] = {}
        self._conversations: dict[int, Conversation] = {}
        self._replay = Replay(exchanges, without_ids=without_ids, on_record=self._record, on_end=self._end)
        self.conversations = self._replay.brain.sessions.conversations
        self._replay.run()
        self._next = _what_follows(exchanges)

    def rows(self) -> dict[int, Predicted]:
        half = len(self._exchanges) // 2
        found = {}
        for number, (step, decision) in self._said.items():
            if number >= half and number in self._next:
                came, at_s = self._next[number]
                found[number] = Predicted(
                    step.ends,
                    at_s is None,
                    step.next,
                    came,
                    decision.retain_s == 0.0,
                    at_s is not None and at_s - _end_s(self._exchanges[number]) <= decision.retain_s,
                )
        return found

    def by_conversation(self, values: dict[int, float]) -> list[list[float]]:
        found: dict[int, list[float]] = defaultdict(list)
        for number, value in values.items():
            found[id(self._conversations[number])].append(value)
        return list(found.values())

    def _record(self, record: rec.Record) -> None:
        if isinstance(record, rec.ToolEnd):
            self.ended.append(Ended(int(record.turn), record.names, record.duration_ms / 1e3))
        elif isinstance(record, rec.TurnArrived) and record.thread is not None:
            self._threads[int(record.turn)] = record.thread

    def _end(self, number: int) -> None:
        """What is predicted at the end of this exchange's answer."""
        thread = self._threads.get(number)
        known = self.conversations.thread(thread) if thread is not None else None
        if known is None or known.step is None or known.is_live or self._exchanges[number].is_broken:
            return
        step = self.conversations.predict(known)
        if step is not None:
            self._conversations[number] = known
            self._said[number] = step, at_pause(known, step, kv_used=0.0)


def _symbol(exchange: Exchange) -> ToolSet:
    answer = exchange.answer()
    names = [call.name for call in answer.tool_calls if not call.is_at_engine]
    body = exchange.body if isinstance(exchange.body, dict) else {}
    if not names and not body.get("tools"):
        return tool_set(answer.utterance.tool_call_style.names)
    return tool_set(tuple(names))


def _end_s(exchange: Exchange) -> float:
    return exchange.t_end if exchange.t_end is not None else exchange.t


def _what_follows(exchanges: Sequence[Exchange]) -> dict[int, tuple[ToolSet | None, float | None]]:
    """By exchange: what the next answer of its conversation asks for, and when it was asked; None if there is
    none.

    Where a request came but its answer broke off, nobody knows what it asks for: nothing is said of that.
    """
    parents, _ = true_parents(exchanges)
    found: dict[int, tuple[ToolSet | None, float | None]] = {}
    came: set[int] = set()
    for number, exchange in enumerate(exchanges):
        if not exchange.is_turn:
            continue
        parent = parents.get(number, -1)
        came.add(parent)
        if not exchange.is_broken:
            found.setdefault(number, (None, None))
            if found.get(parent) == (None, None):
                found[parent] = _symbol(exchange), exchange.t
    return {number: next_ for number, next_ in found.items() if next_[1] is not None or number not in came}


def _loss(ends: float, *, is_over: bool) -> float:
    likely = min(1.0 - _LEAST, max(_LEAST, ends))
    return -math.log(likely if is_over else 1.0 - likely)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ece(rows: Sequence[Predicted]) -> float | None:
    bins: dict[int, list[Predicted]] = defaultdict(list)
    for row in rows:
        bins[min(_BINS - 1, int(row.ends * _BINS))].append(row)
    off = [abs(sum(row.is_over - row.ends for row in each)) for each in bins.values()]
    return sum(off) / len(rows) if rows else None


def _standard_error(clusters: Sequence[Sequence[float]]) -> float | None:
    """Of the mean of all values, of which those of one cluster may go together."""
    count, total = len(clusters), sum(map(len, clusters))
    if count < 2:
        return None
    mean = sum(map(sum, clusters)) / total
    squares = sum((sum(each) - mean * len(each)) ** 2 for each in clusters)
    return math.sqrt(squares * count / (count - 1)) / total
