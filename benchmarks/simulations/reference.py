"""An independent simulation's figures of one setting, and ours beside them.

The other simulation was made before this one and shares no code with it. It ran the same scheduler (vLLM
0.32) with the same cost of a step, on the kv-cache-tester sessions with the same choices, one H200 and
Qwen3-Coder-30B-A3B; it drew other sessions and other arrivals.
"""

from typing import Final

from gateway.simulator.baselines.spec import parse_policies
from gateway.simulator.experiment.results import Cell

REFERENCE: Final[dict[str, dict[float, float]]] = {
    "affinity": {40: 434, 70: 3634, 100: 5222},
    "plas:levels=0": {40: 434, 70: 3117, 100: 4824},
    "oldest-first": {40: 434, 70: 2369, 100: 3746},
    "continuum:ttl_s=6:order=fcfs:skip_slow=0": {40: 434, 70: 2934, 100: 4686},
    "belady": {40: 434, 70: 485, 100: 4485},
    "request-cap:n=4": {40: 435, 70: 659, 100: 3044},
    "session-cap:n=8": {40: 456, 70: 709, 100: 1517},
    "session-cap:n=10": {40: 439, 70: 551, 100: 1133},
    "session-cap:n=12": {40: 434, 70: 533, 100: 1199},
    "session-cap:n=16": {40: 434, 70: 560, 100: 2587},
    "footprint": {40: 434, 70: 509, 100: 1058},
    "affinity+offload": {40: 433, 70: 460, 100: 536},
    "infinite-kv": {40: 433, 70: 464, 100: 505},
}
"""Mean completion in seconds, by policy and sessions an hour."""
WITHIN: Final = 0.15


def labels() -> dict[str, str]:
    """From what a person writes to the label of the variant."""
    return {text: parse_policies(text)[0].variants[0].label for text in REFERENCE}


def table(cells: list[Cell]) -> list[str]:
    """Markdown: theirs, ours (median, least to most), and how far off the median is."""
    loads = sorted({cell.per_h for cell in cells if cell.per_h is not None})
    found = {(cell.variant, cell.per_h): cell.metrics["completion_mean_s"] for cell in cells}
    lines = [
        "| policy | " + " | ".join(f"{load:g}/h: theirs | ours | off" for load in loads) + " |",
        "|---|" + "--:|--:|--:|" * len(loads),
    ]
    for text, label in labels().items():
        row = [f"`{text}`"]
        for load in loads:
            theirs, ours = REFERENCE[text].get(load), found.get((label, load))
            if theirs is None or ours is None:
                row += ["–", "–", "–"]
                continue
            spread = "" if ours.min == ours.max else f" ({ours.min:,.0f}–{ours.max:,.0f})"
            off = ours.median / theirs - 1
            mark = "" if abs(off) <= WITHIN else " **✗**"
            row += [f"{theirs:,.0f}", f"{ours.median:,.0f}{spread}", f"{off:+.0%}{mark}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines
