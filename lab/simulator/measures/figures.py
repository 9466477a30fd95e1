"""From measures to figures: numbers with names, and what they mean.

One table says it all, so that the printed table, the JSON and the report use the same names.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from lab.simulator.measures.goodput import ALPHAS
from lab.simulator.measures.histogram import Histogram
from lab.simulator.measures.run_measures import RunMeasures
from lab.simulator.measures.waterfall import Shown
from lab.simulator.results import Totals

Points = list[tuple[float, float]]


class Metric(msgspec.Struct, frozen=True):
    name: str
    meaning: str
    higher_is_better: bool | None = None
    """None: neither."""
    is_share: bool = False


def _quantiles(name: str, what: str) -> list[Metric]:
    return [
        Metric(f"{name}_mean_s", f"{what}: mean, seconds", False),
        *(Metric(f"{name}_p{p}_s", f"{what}: {p} % take no longer, seconds", False) for p in (50, 90, 99)),
    ]


METRICS: Final = (
    *_quantiles("completion", "from a session's arrival to the end of its final answer"),
    Metric("slowdown_mean", "completion over what the session takes alone: mean", False),
    *_quantiles("ttft", "from a turn's request to its first token, waiting included"),
    *_quantiles("final_ttft", "from a session's arrival to its final answer's first token"),
    *(
        metric
        for alpha in ALPHAS
        for metric in (
            Metric(f"goodput_{alpha:g}", f"share of sessions done within {alpha:g} × isolated", True, True),
            Metric(f"goodput_{alpha:g}_per_h", f"sessions an hour done within {alpha:g} × isolated", True),
        )
    ),
    Metric("slo", "share of sessions within their deadline, or 2 × isolated where none is set", True, True),
    Metric("jain_sessions", "Jain's index over sessions of isolated / completion", True),
    Metric("jain_tenants", "the same over tenants, of their sessions' mean", True),
    Metric("hit_rate", "share of prompt tokens found in a cache", True, True),
    Metric("recomputed_tokens", "prompt tokens computed though the session had computed them before", False),
    Metric("preemptions", "running turns thrown out for want of KV", False),
    Metric("prefill_legs", "prompts computed on one replica to be decoded on another"),
    Metric("carried_gb", "KV caches carried from one replica to another, 10⁹ bytes"),
    Metric("refusals", "requests that the gateway answered with an error", False),
    Metric("failed", "sessions given up after too many refusals", False),
    Metric("sessions_per_h", "sessions that end in an hour, between 10 % and 90 % of the ends", True),
    Metric("output_tokens_per_s", "generated tokens, over the whole run", True),
    Metric("prompt_tokens_per_s", "prompt tokens, cached or not, over the whole run", True),
    Metric("waited_mean_s", "a turn's wait in the gateway: mean, seconds", False),
    Metric("queued_mean_s", "a turn's wait in the engine's queue: mean, seconds", False),
    Metric("kv_used_mean", "share of KV blocks held: mean", None, True),
    Metric("kv_used_max", "share of KV blocks held: highest, fleet-wide", None, True),
    Metric("busy", "share of the time that engines are in a step", None, True),
    Metric("busy_max_to_mean", "how busy the busiest replica was, over how busy all were", False),
    Metric("isolated_mean_s", "what sessions take alone: mean, seconds"),
    Metric("window_s", "from the first arrival to the last end, seconds"),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}


class RunFigures(msgspec.Struct, kw_only=True):
    """What a run leaves behind: small, whatever the run's size."""

    sessions: int
    turns: int
    metrics: dict[str, float | None]
    tenants: dict[str, dict[str, float]]
    completion_cdf: Points
    slowdown_cdf: Points
    ttft_cdf: Points
    over_time: dict[str, Points]
    shown: list[Shown] = []
    """Sessions for the waterfall."""
    slowdowns: dict[str, list[float]] = {}
    """Each session's, by tenant, if they are kept."""


def run_figures(measures: RunMeasures, totals: Totals, *, reusable_tokens: int, replicas: int) -> RunFigures:
    m, window_s = measures, measures.window_s
    turns = m.turns

    def rate(amount: float) -> float | None:
        return amount / window_s if window_s > 0 else None

    found: dict[str, float | None] = {
        **_of("completion", m.completion_s),
        "slowdown_mean": m.slowdown.mean,
        **_of("ttft", turns.first_token_s),
        **_of("final_ttft", m.final_first_token_s),
        "slo": m.tenants.kept,
        "jain_sessions": m.tenants.jain_sessions,
        "jain_tenants": m.tenants.jain_tenants,
        "hit_rate": turns.hit_rate,
        "recomputed_tokens": recomputed_tokens(totals, reusable_tokens),
        "preemptions": totals.preemptions,
        "prefill_legs": totals.prefill_legs,
        "carried_gb": totals.carried_bytes / 1e9,
        "refusals": totals.refusals,
        "failed": totals.failed_sessions,
        "sessions_per_h": m.steady_sessions_per_h,
        "output_tokens_per_s": rate(turns.output_tokens),
        "prompt_tokens_per_s": rate(turns.prompt_tokens),
        "waited_mean_s": turns.waited_s.mean,
        "queued_mean_s": turns.queued_s.mean,
        "kv_used_mean": m.kv_used.mean,
        "kv_used_max": m.kv_used_most,
        "busy": rate(totals.busy_s / replicas),
        "busy_max_to_mean": _max_to_mean(list(m.replica_busy_s.values())),
        "isolated_mean_s": m.isolated_s.mean,
        "window_s": window_s,
    }
    for alpha in ALPHAS:
        found[f"goodput_{alpha:g}"] = m.goodput.share(alpha)
        found[f"goodput_{alpha:g}_per_h"] = m.goodput.rate_per_h(alpha, window_s)
    return RunFigures(
        sessions=totals.sessions,
        turns=totals.turns,
        metrics={metric.name: found[metric.name] for metric in METRICS},
        tenants={
            name: {
                "sessions": tenant.sessions,
                "slo": tenant.kept / tenant.sessions,
                "completion_mean_s": tenant.completion_s / tenant.sessions,
                "progress": tenant.progress / tenant.sessions,
            }
            for name, tenant in m.tenants
        },
        completion_cdf=m.completion_s.curve(),
        slowdown_cdf=m.slowdown.curve(),
        ttft_cdf=turns.first_token_s.curve(),
        over_time={
            "waiting sessions": m.waiting_sessions.rates(),
            "sessions inside": m.inside_sessions.rates(),
            "turns running": m.running.means(),
            "turns in engine queues": m.queued.means(),
            "KV used": m.kv_used.means(),
            "hit rate": m.hits.means(),
        },
        shown=m.waterfall.sessions(),
        slowdowns=m.slowdowns,
    )


def recomputed_tokens(totals: Totals, reusable_tokens: int) -> int:
    """What the engines computed beyond what would have been needed had nothing ever been lost.

    Hits on what *other* sessions left make up for some of it, so it is never less than 0.
    """
    needed = totals.prompt_tokens - reusable_tokens + totals.output_tokens - totals.turns
    return max(0, totals.computed_tokens - needed)


def _max_to_mean(busy_s: list[float]) -> float | None:
    total_s = sum(busy_s)
    return max(busy_s) * len(busy_s) / total_s if total_s else None


def _of(name: str, histogram: Histogram) -> dict[str, float | None]:
    quantiles: Callable[[float], float | None] = histogram.quantile
    return {
        f"{name}_mean_s": histogram.mean,
        **{f"{name}_p{percent}_s": quantiles(percent / 100) for percent in (50, 90, 99)},
    }
