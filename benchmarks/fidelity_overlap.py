"""Does a simulation tell what prompts gain that are computed while tools run? Live and simulated.

    python -m benchmarks.fidelity_overlap [--quick] [--json]

The engines, agents and sessions of `benchmarks.live_overlap`, behind the gateway as it is by default and with
`prefill_ahead.enabled`. Simulated: the same sessions, with as many tokens as the chat template makes of what
is said, and the same settings; the costs are fitted in the same run, as in `benchmarks.fidelity`, to agents
that chat. Tools take most of a session's time, so first tokens count, too. Sessions that switch
system prompts are judged apart from the others, and the arms are ranked by them.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import fidelity, live_overlap
from benchmarks.command import judged
from benchmarks.fidelity import Arm, Settings, compare
from benchmarks.fidelity_chats import Chats
from benchmarks.live import Engines, drawn
from benchmarks.live_overlap import APPENDING, SWITCHING, arriving, with_tools
from benchmarks.verdict import Verdict

CALIBRATION: Final = msgspec.structs.replace(
    fidelity.CALIBRATION, first_tokens=(600, 4_000), grows_by=(50, 500), apart_s=2.0
)
"""Engines are about as busy as in the test: servers read requests on the cores that compute."""
ARMS: Final[dict[str, Settings]] = {"as it comes": {}, "ahead": {"prefill_ahead": {"enabled": True}}}


def measure(count: int, rounds: int, verdict: Verdict, tell: Any) -> None:
    test = arriving(with_tools(each) for kind in (SWITCHING, APPENDING) for each in drawn(kind, count))
    chats = Chats(drawn(CALIBRATION, count), test)
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
        engines = Engines(stack, at, replicas=2, kv_blocks=live_overlap.KV_BLOCKS, scripts=chats.scripts)
        arms = {name: Arm(engines=engines, policy=policy) for name, policy in ARMS.items()}
        compare(
            arms,
            chats.calibration,
            chats.test,
            at,
            verdict,
            tell,
            rounds=rounds,
            ask=chats.ask,
            groups=(SWITCHING.name, APPENDING.name),
        )
    chats.judge(verdict)


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(12 if is_quick else 18, 1 if is_quick else 2, verdict, tell),
        quick="12 sessions of each kind instead of 18, and half of the runs",
        about=f"seed {fidelity.SEED}",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
