"""What comes of it all: sessions in time, and what was saved; for Prometheus, and as one line (pure)."""

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.config.objective import ObjectiveConfig
from gateway.domain.records import Record
from gateway.telemetry.objective import Objective
from gateway.telemetry.savings import Savings


class OutcomeView(msgspec.Struct, frozen=True, kw_only=True):
    """Since the gateway began. All of it can be added up over gateways."""

    sessions: int
    """That ended, with an answer to their last turn or without."""
    in_time: int
    judged: int
    """Of which it is known whether they were in time."""
    turns_in_time: int
    turns_judged: int
    cached_tokens: float
    """Of prompts, that were not computed again."""
    cached_s: float
    """Of a replica's time, that it would have taken."""
    saved_tokens: float
    """Against a balancer that knows no sessions; less than nothing where it would have done better."""
    saved_s: float
    """Of replicas' time."""
    error_s: float
    """By how much that may be wrong."""
    saved_money: float | None
    """`saved_s` at what a replica costs; None without a price."""
    error_money: float | None


class Outcome:
    def __init__(self, config: ObjectiveConfig, objective: Objective, savings: Savings | None) -> None:
        """`savings`: None if nothing is to be told of them."""
        self._price = config.replica_s_price
        self.currency = config.currency if self._price is not None else None
        self._objective = objective
        self._savings = savings

    def take(self, records: list[Record]) -> None:
        self._objective.take(records)
        if self._savings is not None:
            self._savings.take(records)

    def view(self) -> OutcomeView:
        sessions, turns = self._objective.sessions, self._objective.turns
        saved = list(self._savings.saved().values()) if self._savings is not None else []
        seconds, error_s = sum(each.seconds for each in saved), sum(each.error_s for each in saved)
        return OutcomeView(
            sessions=sessions.total(),
            in_time=sum(count for labels, count in sessions.items() if labels[-1] == "yes"),
            judged=sum(count for labels, count in sessions.items() if labels[-1] != "unknown"),
            turns_in_time=sum(count for labels, count in turns.items() if labels[-1] == "yes"),
            turns_judged=sum(count for labels, count in turns.items() if labels[-1] != "unknown"),
            cached_tokens=sum(each.cached_tokens for each in saved),
            cached_s=sum(each.cached_s for each in saved),
            saved_tokens=sum(each.tokens for each in saved),
            saved_s=seconds,
            error_s=error_s,
            saved_money=seconds * self._price if self._price is not None else None,
            error_money=error_s * self._price if self._price is not None else None,
        )

    def text(self) -> str:
        """Histograms, in Prometheus' format."""
        return self._objective.text()

    def families(self) -> Iterator[Metric]:
        """All else."""
        yield from self._objective.families()
        tokens = CounterMetricFamily(
            "turnpike_prompt_tokens_computed",
            "Tokens of prompts: computed, to compute with nothing cached, and by a balancer without sessions",
            labels=["pool", "by"],
        )
        busy = CounterMetricFamily(
            "turnpike_replica_seconds",
            "Time of replicas, as turns are played: as they were, and by a balancer without sessions",
            labels=["pool", "by"],
        )
        cached = CounterMetricFamily(
            "turnpike_cached_replica_seconds",
            "Time of replicas that it would have taken to compute what was found cached",
            labels=["pool"],
        )
        played = CounterMetricFamily(
            "turnpike_savings_turns",
            "Turns, by whether they count in what was saved",
            labels=["pool", "what"],
        )
        error = GaugeMetricFamily(
            "turnpike_savings_error_seconds",
            "By how much the replicas' time saved since the gateway began may be wrong",
            labels=["pool"],
        )
        for pool, saved in (self._savings.saved() if self._savings is not None else {}).items():
            for by, count in (
                ("gateway", saved.computed_tokens),
                ("no_cache", saved.prompt_tokens),
                ("session_blind", saved.blind_tokens),
            ):
                tokens.add_metric([pool, by], count)
            busy.add_metric([pool, "gateway"], saved.busy_s)
            busy.add_metric([pool, "session_blind"], saved.blind_s)
            cached.add_metric([pool], max(0.0, saved.cached_s))
            for what, count in (
                ("played", saved.turns),
                ("uncounted", saved.uncounted),
                ("left_out", saved.left_out),
            ):
                played.add_metric([pool, what], count)
            error.add_metric([pool], saved.error_s)
        yield from (tokens, busy, cached, played, error)
        price = GaugeMetricFamily(
            "turnpike_replica_hour_price", "What an hour of a replica costs", labels=["currency"]
        )
        if self._price is not None and self.currency is not None:
            price.add_metric([self.currency], self._price * 3600)
        yield price
