"""How right the workflow view is on recorded traffic: next steps, ends, tool boundaries.

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
from gateway.evaluation.boundaries import Ended, score_boundaries, true_ends
from gateway.evaluation.markov import ALPHAS, Markov
from gateway.evaluation.metrics import true_parents
from gateway.evaluation.recording import Exchange
from gateway.evaluation.replay import Replay
from gateway.workflow.nodes import END, ToolSet, tool_set
from gateway.workflow.progress import Thread

_BINS: Final = 10
_ENDS = "END"
_SILENT_S: Final = 30.0
"""After which the Markov model is told that a conversation is over: earlier than the brain finds out."""
Symbol = ToolSet | str


class Predicted(msgspec.Struct, frozen=True):
    """One prediction, and what came."""

    came: Symbol
    said: Symbol
    share: float
    """What the graph gave to what came."""
    confidence: float
    is_acted_on: bool
    ends: float

    @property
    def is_right(self) -> bool:
        return self.came == self.said


class Report(msgspec.Struct, kw_only=True):
    """None where there is nothing to measure."""

    exchanges: int
    pauses: int
    """That were scored."""
    followed: int
    """Of these: where something followed."""
    acted: int
    """Of these: predictions that were acted on."""
    above: int
    """And those with a confidence of 0.7 or more."""
    ends: int
    """Pauses behind which nothing came."""
    ends_said: int
    boundaries_found: int
    accuracy: float | None
    """Of all predictions where something followed."""
    confident_accuracy: float | None
    """Of those that were acted on."""
    coverage: float | None
    """How many of them were."""
    theta_accuracy: float | None
    theta_coverage: float | None
    majority: float | None
    """Accuracy of always saying what is most frequent."""
    log_loss: float | None
    markov_log_loss: float | None
    markov_accuracy: float | None
    log_loss_gap: float | None
    """Ours less the Markov model's."""
    log_loss_gap_se: float | None
    """Its standard error; pauses of one conversation are not independent."""
    ece: float | None
    ece_by_chance: float | None
    """What it would be on average, if every confidence were exactly right: there are so few."""
    ece_by_chance_sd: float | None
    end_accuracy: float | None
    end_accuracy_se: float | None
    end_precision: float | None
    end_recall: float | None
    boundaries: int
    boundary_precision: float | None
    boundary_recall: float | None
    duration_error_ms_p99: float | None
    agent_types: int


def evaluate_exchanges(exchanges: Sequence[Exchange], *, without_ids: bool = False) -> Report:
    run = _Run(exchanges, without_ids=without_ids)
    by_number = run.rows()
    rows = list(by_number.values())
    followed = [row for row in rows if row.came != _ENDS]
    acted = [row for row in followed if row.is_acted_on]
    above = [row for row in followed if row.confidence >= 0.7]
    ends = {number: (row.ends > 0.5, row.came == _ENDS) for number, row in by_number.items()}
    markov_losses, markov_accuracy = run.markov()
    losses = {number: -math.log(max(row.share, 1e-12)) for number, row in by_number.items()}
    gaps = run.by_conversation({number: losses[number] - loss for number, loss in markov_losses.items()})
    ends_right = {number: float(said == came) for number, (said, came) in ends.items()}
    by_chance, by_chance_sd = _ece_by_chance(rows)
    bounds = score_boundaries(true_ends(exchanges), run.ended)
    counts: dict[Symbol, int] = defaultdict(int)
    for row in followed:
        counts[row.came] += 1
    errors = sorted(bounds.errors_s)
    return Report(
        exchanges=len(exchanges),
        pauses=len(rows),
        followed=len(followed),
        acted=len(acted),
        above=len(above),
        ends=sum(came for _, came in ends.values()),
        ends_said=sum(said for said, _ in ends.values()),
        boundaries_found=bounds.ends.found,
        accuracy=_share(followed),
        confident_accuracy=_share(acted),
        coverage=len(acted) / len(followed) if followed else None,
        theta_accuracy=_share(above),
        theta_coverage=len(above) / len(followed) if followed else None,
        majority=max(counts.values()) / len(followed) if followed else None,
        log_loss=_mean(list(losses.values())),
        markov_log_loss=_mean(list(markov_losses.values())),
        markov_accuracy=markov_accuracy,
        log_loss_gap=_mean([gap for each in gaps for gap in each]),
        log_loss_gap_se=_standard_error(gaps),
        ece=_ece(rows),
        ece_by_chance=by_chance,
        ece_by_chance_sd=by_chance_sd,
        end_accuracy=_mean(list(ends_right.values())),
        end_accuracy_se=_standard_error(run.by_conversation(ends_right)),
        end_precision=_mean([float(came) for said, came in ends.values() if said]),
        end_recall=_mean([float(said) for said, came in ends.values() if came]),
        boundaries=bounds.ends.true,
        boundary_precision=bounds.ends.precision if bounds.ends.true or bounds.ends.found else None,
        boundary_recall=bounds.ends.recall if bounds.ends.true or bounds.ends.found else None,
        duration_error_ms_p99=errors[min(len(errors) - 1, int(0.99 * len(errors)))] * 1e3 if errors else None,
        agent_types=len(run.progress.types),
    )


class _Run:
    def __init__(self, exchanges: Sequence[Exchange], *, without_ids: bool) -> None:
        self._exchanges = exchanges
        self.ended: list[Ended] = []
        self._said: dict[int, tuple[Symbol, float, bool, float, dict[Symbol, float], float]] = {}
        self._agents: dict[int, int] = {}
        self._threads: dict[int, ThreadId] = {}
        self._conversations: dict[int, Thread] = {}
        self._replay = Replay(exchanges, without_ids=without_ids, on_record=self._record, on_end=self._end)
        self.progress = self._replay.brain.sessions.prospects.progress
        self._replay.run()
        self._next = _what_follows(exchanges)

    def rows(self) -> dict[int, Predicted]:
        half = len(self._exchanges) // 2
        found = {}
        for number, (said, confidence, is_acted_on, ends, shares, other) in self._said.items():
            if number >= half and number in self._next:
                came = self._next[number]
                share = shares.get(came, other)
                found[number] = Predicted(came, said, share, confidence, is_acted_on, ends)
        return found

    def by_conversation(self, values: dict[int, float]) -> list[list[float]]:
        found: dict[int, list[float]] = defaultdict(list)
        for number, value in values.items():
            found[id(self._conversations[number])].append(value)
        return list(found.values())

    def markov(self) -> tuple[dict[int, float], float | None]:
        """Losses and accuracy (where something followed) of the best order-3 model, on the same pauses."""
        each = (self._markov(alpha, is_typed=is_typed) for alpha in ALPHAS for is_typed in (True, False))
        return min(each, key=lambda found: sum(found[0].values()))

    def _markov(self, alpha: float, *, is_typed: bool) -> tuple[dict[int, float], float | None]:
        model, half = Markov(alpha), len(self._exchanges) // 2
        histories: dict[int, list[Symbol]] = defaultdict(list)
        losses: dict[int, float] = {}
        right: list[float] = []
        by_end = sorted(self._said, key=lambda number: (_end_s(self._exchanges[number]), number))
        moments = [(_end_s(self._exchanges[number]), 1, number) for number in by_end]
        moments += [
            (_end_s(self._exchanges[n]) + _SILENT_S, 0, n) for n in by_end if self._next.get(n) == _ENDS
        ]
        for _, is_step, number in sorted(moments):
            agent = self._agents[number] if is_typed else 0
            history = histories[id(self._conversations[number])]
            if not is_step:
                model.learn(agent, history, _ENDS)
                continue
            symbol = _symbol(self._exchanges[number])
            model.learn(agent, history, symbol)
            history.append(symbol)
            if number >= half and number in self._next:
                shares, other = model.shares(agent, history)
                came = self._next[number]
                losses[number] = -math.log(shares.get(came, other))
                if came != _ENDS:
                    right.append(float(max(shares, key=shares.__getitem__) == came))
        return losses, _mean(right)

    def _record(self, record: rec.Record) -> None:
        if isinstance(record, rec.ToolEnd):
            self.ended.append(Ended(int(record.turn), record.names, record.duration_ms / 1e3))
        elif isinstance(record, rec.TurnArrived) and record.thread is not None:
            self._threads[int(record.turn)] = record.thread

    def _end(self, number: int) -> None:
        """What is predicted at the end of this exchange's answer."""
        place = self._threads.get(number)
        known = self.progress.thread(place) if place is not None else None
        if known is None or known.forecast is None or known.is_live or self._exchanges[number].is_broken:
            return
        graph, forecast = known.graph, known.forecast
        node, share = forecast.likeliest
        shares: dict[Symbol, float] = {
            _ENDS if each == END else graph.nodes.tools(each): forecast.of(each)
            for each in forecast.candidates
        }
        said: Symbol = _ENDS if node == END else graph.nodes.tools(node)
        confidence = known.learned.calibration.confidence(share)
        is_acted_on = (
            self.progress.types.is_known(graph) and confidence >= known.learned.calibration.threshold
        )
        self._agents[number] = known.agent.key
        self._conversations[number] = known
        self._said[number] = said, confidence, is_acted_on, forecast.shares[0], shares, forecast.shares[-1]


def _symbol(exchange: Exchange) -> Symbol:
    answer = exchange.answer()
    names = [call.name for call in answer.tool_calls if not call.is_at_engine]
    body = exchange.body if isinstance(exchange.body, dict) else {}
    if not names and not body.get("tools"):
        return tool_set(answer.utterance.manner.names)
    return tool_set(names)


def _end_s(exchange: Exchange) -> float:
    return exchange.t_end if exchange.t_end is not None else exchange.t


def _what_follows(exchanges: Sequence[Exchange]) -> dict[int, Symbol]:
    """By exchange: what the next answer of its conversation asks for, or that there is none.

    Where a request came but its answer broke off, nobody knows what it asks for: nothing is said of that.
    """
    parents, _ = true_parents(exchanges)
    found: dict[int, Symbol] = {}
    came: set[int] = set()
    for number, exchange in enumerate(exchanges):
        if not exchange.is_turn:
            continue
        parent = parents.get(number, -1)
        came.add(parent)
        if not exchange.is_broken:
            found.setdefault(number, _ENDS)
            if found.get(parent) == _ENDS:
                found[parent] = _symbol(exchange)
    return {number: next_ for number, next_ in found.items() if next_ != _ENDS or number not in came}


def _share(rows: Sequence[Predicted]) -> float | None:
    return _mean([float(row.is_right) for row in rows])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ece(rows: Sequence[Predicted]) -> float | None:
    """Expected calibration error, over ten bins."""
    off = [abs(sum(row.is_right - row.confidence for row in each)) for each in _bins(rows)]
    return sum(off) / len(rows) if rows else None


def _ece_by_chance(rows: Sequence[Predicted]) -> tuple[float | None, float | None]:
    """Its mean and standard deviation: a bin's error is about normal, so without its sign half-normal."""
    if not rows:
        return None, None
    variances = [sum(row.confidence * (1 - row.confidence) for row in each) for each in _bins(rows)]
    mean = math.sqrt(2 / math.pi) * sum(map(math.sqrt, variances))
    return mean / len(rows), math.sqrt((1 - 2 / math.pi) * sum(variances)) / len(rows)


def _standard_error(clusters: Sequence[Sequence[float]]) -> float | None:
    """Of the mean of all values, of which those of one cluster may go together."""
    count, total = len(clusters), sum(map(len, clusters))
    if count < 2:
        return None
    mean = sum(map(sum, clusters)) / total
    squares = sum((sum(each) - mean * len(each)) ** 2 for each in clusters)
    return math.sqrt(squares * count / (count - 1)) / total


def _bins(rows: Sequence[Predicted]) -> list[list[Predicted]]:
    bins: dict[int, list[Predicted]] = defaultdict(list)
    for row in rows:
        bins[min(_BINS - 1, int(row.confidence * _BINS))].append(row)
    return list(bins.values())
