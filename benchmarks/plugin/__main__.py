"""What the engine plugin gains, what it costs, and whom it delays: vLLM's scheduler on a virtual clock.

    python -m benchmarks.plugin [PART ...] [--quick] [--json]

A step takes 4 ms, 14 µs a token, and what attention costs.

`cost`: steps of the scheduler per CPU-second, stock, installed and awake. `retention`: KV that is held across
tool calls. `liveness`: whether what is held can keep anybody out. `head_of_line`: short continuations behind
long prompts. `classes`: work that somebody waits for beside a backlog.
"""

import sys

from benchmarks.command import judged_by_parts
from benchmarks.plugin import classes, cost, head_of_line, liveness, retention
from benchmarks.plugin.engines import ABOUT

PARTS = {
    "cost": cost.measure,
    "retention": retention.measure,
    "liveness": liveness.measure,
    "head_of_line": head_of_line.measure,
    "classes": classes.measure,
}

if __name__ == "__main__":
    sys.exit(
        judged_by_parts(
            __file__, __doc__, PARTS, quick="one seed, 30 s of arrivals, few repetitions", about=ABOUT
        )
    )
