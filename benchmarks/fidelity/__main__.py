"""Does a simulation tell what happens? The same workload live and simulated, by the same brain.

    python -m benchmarks.fidelity [PART ...] [--quick] [--json]

`policies`: two servers with 1,300 KV blocks, three policies of admission, two rounds. `plugin`: a server with
650 KV blocks, with `turnpike-vllm` and without, eight rounds. `overlap`: two servers, with it and without;
prompts ahead while tools run, and whether they are used. How costs are fitted stands in `compare.py`.

Mean, p50 and p90 of session completion and of first tokens are to be within 15 % of live, at the pace that
each run had. The order of two arms is to be the same where live their sessions, pair by pair, differ by more
than the noise: where in each round the interval of 95 % of the difference excludes none.
"""

import sys

from benchmarks.command import judged_by_parts
from benchmarks.fidelity import parts
from benchmarks.fidelity.compare import SEED

PARTS = {"policies": parts.policies, "plugin": parts.plugin, "overlap": parts.overlap}

if __name__ == "__main__":
    quick = "a third to two thirds of the sessions, and one round"
    sys.exit(judged_by_parts(__file__, __doc__, PARTS, quick=quick, about=f"seed {SEED}"))
