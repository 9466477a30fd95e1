"""Does a simulation tell what the engine plugin gains? Live and simulated, with it and without.

    python -m benchmarks.fidelity_plugin [--quick] [--json]

A real vLLM server on the CPU with a tiny model, as it comes, and one that carries `turnpike-vllm`; one
of them is played at a time, behind the same gateway: as it is by default (`turnpike`), and where nobody waits
(`affinity`), so that the engine alone decides whose KV cache is kept. The sessions need several times the KV
that there is. Simulated: `turnpike` and `turnpike+plugin`, and the same without limit, with costs that are
fitted in the same run, as in `benchmarks.fidelity`, to the engine without the plugin.

Arms are ranked where sessions, pair by pair, take longer in every round, by an interval of 95 %.
"""

import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import fidelity
from benchmarks.command import judged
from benchmarks.fidelity import POLICIES, Arm, Settings, compare
from benchmarks.fidelity_chats import Chats
from benchmarks.live import Engines, drawn
from benchmarks.live_overlap import PLUGIN, PLUGIN_ENV, followed
from benchmarks.verdict import Verdict

KV_BLOCKS: Final = 650
"""Two or three sessions at their longest."""
LONGEST: Final = ("--max-model-len", "16384")
"""No longer than what the cache holds, or vLLM does not start."""
TURNPIKE: Final[Settings] = {}
AFFINITY: Final = POLICIES["affinity"]
CALIBRATION: Final = msgspec.structs.replace(
    fidelity.CALIBRATION, first_tokens=(500, 8_000), grows_by=(100, 1_000)
)
TEST: Final = msgspec.structs.replace(
    fidelity.TEST, first_tokens=(4_000, 7_000), grows_by=(150, 700), apart_s=1.2
)


def measure(count: int, rounds: int, verdict: Verdict, tell: Any) -> None:
    chats = Chats(drawn(CALIBRATION, count), drawn(TEST, count))
    with ExitStack() as stack:

        def engine(*flags: str, env: Mapping[str, str] | None = None) -> Engines:
            at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
            return Engines(
                stack,
                at,
                replicas=1,
                kv_blocks=KV_BLOCKS,
                scripts=chats.scripts,
                flags=(*LONGEST, *flags),
                env=env,
            )

        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
        stock, biased = engine(), engine(*PLUGIN, env=PLUGIN_ENV)
        arms = {
            "affinity": Arm(engines=stock, policy=AFFINITY),
            "affinity+plugin": Arm(engines=biased, policy=AFFINITY, plugin={}),
            "turnpike": Arm(engines=stock, policy=TURNPIKE),
            "turnpike+plugin": Arm(engines=biased, policy=TURNPIKE, plugin={}),
        }
        compare(
            arms,
            chats.calibration,
            chats.test,
            at,
            verdict,
            tell,
            rounds=rounds,
            ask=chats.ask,
        )
        verdict.at_least("hints_followed", sum(map(followed, biased.urls)), 1)
    chats.judge(verdict)


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(8 if is_quick else 12, 1 if is_quick else 4, verdict, tell),
        quick="8 sessions instead of 12, and one round instead of four",
        about=f"seed {fidelity.SEED}",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
