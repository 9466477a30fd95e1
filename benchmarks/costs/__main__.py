"""What the brain's parts cost in processor time and memory, without sockets.

    python -m benchmarks.costs [PART ...] [--quick] [--json]

`decisions`: admission while 5,000 sessions wait.
`identity`: to recognise a request's session, beyond parsing it, beside 100,000 others. `workflow`: the
workflow view, from a request's arrival to the hint at its pause, beside 10,000 sessions.
"""

import sys

from benchmarks.command import judged_by_parts
from benchmarks.costs import decisions, identity, workflow

PARTS = {
    "decisions": decisions.measure,
    "identity": identity.measure,
    "workflow": workflow.measure,
}

if __name__ == "__main__":
    sys.exit(judged_by_parts(__file__, __doc__, PARTS, quick="a tenth of the sessions or less"))
