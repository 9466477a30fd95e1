"""What the four papers claim, what we have beside it, and what differs. Nothing is compared that was not
run."""

from collections.abc import Sequence

from benchmarks.simulations.comparison import RELATIVE, Comparison
from gateway.simulator.experiment.results import Cell


def table(comparisons: Sequence[Comparison]) -> list[str]:
    rows = [
        (
            "MARS: mean latency against the strongest baseline, up to",
            "÷ 5.94 (H200, Qwen3-Coder-30B)",
            _gain(comparisons, "completion_mean_s", of=("mars",)),
            _gain(comparisons, "completion_mean_s"),
            "simulated engine and tools, one H200; their baselines have no affinity router and no offload",
        ),
        (
            "MARS: P90 latency, up to",
            "÷ 3.37 (H100)",
            _gain(comparisons, "completion_p90_s", of=("mars",)),
            _gain(comparisons, "completion_p90_s"),
            "as above, on an H200",
        ),
        (
            "MARS: goodput (Eq. 1–2), sessions/h in time at α = 2",
            "0.015–0.033 a second; baselines near zero under contention",
            _gain(comparisons, "goodput_2_per_h", higher=True, of=("mars",)),
            _gain(comparisons, "goodput_2_per_h", higher=True),
            "rates are relative to our own strongest baseline; loads relative to a measured knee",
        ),
        (
            "SAGA: task completion time against vLLM with prefix caching and affinity",
            "÷ 1.64 (geometric mean)",
            _gain(comparisons, "completion_mean_s", of=("saga",)),
            _gain(comparisons, "completion_mean_s", of=("turnpike",)),
            "64 A100 with Llama-3-70B there",
        ),
        (
            "SAGA: SLO attainment (1.5 × expected time)",
            "99.2 %",
            _own(comparisons, "goodput_1.5", of="saga"),
            _own(comparisons, "goodput_1.5"),
            "theirs at 80 % of peak load, against expected times; ours at each load, against isolated time",
        ),
        (
            "SAGA: regenerated tokens against Bélády's, eviction",
            "1.31 ×",
            _against_belady(comparisons, of="saga"),
            _against_belady(comparisons, of="affinity") + " (vLLM's LRU)",
            "at the knee, without admission; the plugin's eviction by itself: `benchmarks.eviction`",
        ),
        (
            "Sutradhara: median time to the final answer's first token",
            "−15 %",
            _gain(comparisons, "final_ttft_p50_s", of=("sutradhara",)),
            _gain(comparisons, "final_ttft_p50_s"),
            "prompt splitting and streaming dispatch, where theirs comes from, are not built",
        ),
        ("Sutradhara: load at the same median FTR", "+77 %", "–", "–", "the same"),
        (
            "Agent.xpu: reactive latency, and proactive throughput",
            "−97 %, × 2.4",
            "–",
            "`benchmarks.classes`",
            "classes inside one engine, against vLLM's own priorities; no such mix here",
        ),
    ]
    head = [
        "Over the strong baseline with the same memory: the least and the most, of all workloads and loads.",
        "",
        "| headline | theirs | their policy, here | Turnpike | what differs |",
        "|---|---|---|---|---|",
    ]
    return head + [f"| {' | '.join(row)} |" for row in rows]


def _gain(
    comparisons: Sequence[Comparison],
    metric: str,
    *,
    higher: bool = False,
    of: Sequence[str] = ("turnpike", "turnpike+offload"),
) -> str:
    ratios = []
    for comparison in comparisons:
        for _, relative in RELATIVE:
            cells = {cell.policy: cell for cell in comparison.at(relative)}
            for policy in of:
                theirs = "affinity+offload" if policy.endswith("offload") else "affinity"
                ratio = _ratio(cells.get(theirs), cells.get(policy), metric)
                if ratio is not None:
                    ratios.append(1 / ratio if higher else ratio)
    if not ratios:
        return "–"
    word = "×" if higher else "÷"
    return f"{word} {min(ratios):.2f} to {word} {max(ratios):.2f}"


def _ratio(theirs: Cell | None, ours: Cell | None, metric: str) -> float | None:
    if theirs is None or ours is None:
        return None
    top, bottom = theirs.median(metric), ours.median(metric)
    return top / bottom if top and bottom else None


def _own(comparisons: Sequence[Comparison], metric: str, *, of: str = "turnpike") -> str:
    parts = []
    for name, relative in RELATIVE:
        values = [
            value
            for comparison in comparisons
            for cell in comparison.at(relative)
            if cell.policy == of and (value := cell.median(metric)) is not None
        ]
        if values:
            parts.append(f"{min(values):.0%}–{max(values):.0%} {name} the knee")
    return ", ".join(parts) or "–"


def _against_belady(comparisons: Sequence[Comparison], *, of: str) -> str:
    ratios = []
    for comparison in comparisons:
        cells = {cell.policy: cell for cell in comparison.at(1.0)}
        ratio = _ratio(cells.get(of), cells.get("belady"), "recomputed_tokens")
        if ratio is not None:
            ratios.append(ratio)
    return f"{min(ratios):.1f} × to {max(ratios):.1f} ×" if ratios else "–"
