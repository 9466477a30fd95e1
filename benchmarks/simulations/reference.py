"""An independent simulation's figures of one setting, and ours beside them.

The other simulation was made before this one and shares no code with it. It ran the same scheduler (vLLM
0.32) with the same cost of a step, on the kv-cache-tester sessions with the same choices, one H200 and
Qwen3-Coder-30B-A3B, 120 sessions a run. It drew other sessions and other arrivals. With a KV cache that never
fills nothing queues, and sessions end as fast as they arrive: its rates there, 36, 63 and 87 an hour where
40, 70 and 100 were meant, are taken for the loads that it ran, and are the ones run here.
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
"""Mean completion in seconds, by policy and by sessions an hour as they were meant."""
RAN: Final = {40: 36.0, 70: 63.0, 100: 87.0}
"""Sessions an hour as they were."""
WITHIN: Final = 0.15


def labels() -> dict[str, str]:
    """From what a person writes to the label of the variant."""
    return {text: parse_policies(text)[0].variants[0].label for text in REFERENCE}


def table(cells: list[Cell]) -> list[str]:
    """Markdown: theirs, ours (median, least to most), and how far off the median is."""
    found = {(cell.variant, cell.per_h): cell.metrics["completion_mean_s"] for cell in cells}
    heads = [f"{meant:g}/h ({ran:g}): theirs | ours | off" for meant, ran in RAN.items()]
    lines = ["| policy | " + " | ".join(heads) + " |", "|---|" + "--:|--:|--:|" * len(heads)]
    for text, label in labels().items():
        row = [f"`{text}`"]
        for meant, ran in RAN.items():
            theirs, ours = REFERENCE[text].get(meant), found.get((label, ran))
            if theirs is None or ours is None:
                row += ["–", "–", "–"]
                continue
            spread = "" if ours.min == ours.max else f" ({ours.min:,.0f}–{ours.max:,.0f})"
            off = ours.median / theirs - 1
            mark = "" if abs(off) <= WITHIN else " **✗**"
            row += [f"{theirs:,.0f}", f"{ours.median:,.0f}{spread}", f"{off:+.0%}{mark}"]
        lines.append("| " + " | ".join(row) + " |")
    return lines
