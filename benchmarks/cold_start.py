"""A gateway that has just started knows nobody: does it keep sessions waiting that would fit?

    python -m benchmarks.cold_start [--quick] [--json]

The sessions of `benchmarks.rivals`, simulated, on three engines such as are there; and such sessions with
people in them, twice as many in half the time, more than the caches hold. Nobody says when a session is over.
Each is played to a gateway that has just started, and then to the same gateway once more; completion is
relative to the same placement with no limit on sessions, seed by seed. With people that limit pays, so what
counts is what starting costs: cold to warm.
"""

import random
import statistics
import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.fidelity import simulated
from benchmarks.fidelity_profile import Costs
from benchmarks.live import Completions, Kind, drawn
from benchmarks.rivals import KIND, KV_BLOCKS, REPLICAS, SESSIONS
from benchmarks.verdict import Verdict
from lab.simulator.driver import ClientConfig
from lab.workload.trace.format import Session

COSTS: Final = Costs(
    step_s=3e-3,
    row_s=7.5e-4,
    token_s=7.5e-5,
    prompt_context_token_s=0.0,
    decode_context_token_s=5e-9,
    request_s=2.5e-3,
    prompt_token_s=5e-7,
)
"""With these a session takes as long as it does there."""
LATER_S: Final = 300.0
PLAIN: Final = 0.4
"""Share of the answers in the midst of a session that a person reads."""
READS_S: Final = 6.0
WITH_PEOPLE: Final = msgspec.structs.replace(KIND, name="people", apart_s=KIND.apart_s / 2)


def ended(session: Session, plain: float) -> Session:
    """The last answer asks for nothing, and of the others so many, which a person answers."""
    thread, dice = session.threads[0], random.Random(session.id)
    turns, is_read = [], False
    for at, turn in enumerate(thread.turns):
        pause_s = dice.expovariate(1 / READS_S) if is_read else 0.0
        is_last = at + 1 == len(thread.turns)
        is_read = dice.random() < plain
        tools = () if is_last or is_read else turn.tools
        turns.append(msgspec.structs.replace(turn, tools=tools, pause_s=pause_s))
    return msgspec.structs.replace(session, threads=(msgspec.structs.replace(thread, turns=tuple(turns)),))


def played(sessions: Iterable[Session], *, limits: bool = True) -> Completions:
    settings = {"admission": {"shadow": not limits}}
    client = ClientConfig(max_retries=1_000_000, says_when_over=False)
    return simulated(sessions, COSTS, settings, replicas=REPLICAS, kv_blocks=KV_BLOCKS, client=client)


def ratios(kind: Kind, count: int, plain: float, seed: int) -> tuple[float, float]:
    """Completion with a gateway that has just started, and again with the same, to that with no limit."""
    kind = msgspec.structs.replace(kind, name=f"{kind.name}-{seed}", seed=seed)
    cold = [ended(each, plain) for each in drawn(kind, count)]
    warm = [
        msgspec.structs.replace(each, id=f"{each.id}-again", arrival_s=each.arrival_s + LATER_S)
        for each in cold
    ]
    free, both = played(cold, limits=False).mean, played([*cold, *warm]).seconds
    cold_s = statistics.mean(both[each.id] for each in cold)
    return cold_s / free, statistics.mean(both[each.id] for each in warm) / free


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    seeds = range(100, 104 if is_quick else 112)
    alone = [ratios(KIND, SESSIONS, 0.0, seed) for seed in seeds]
    people = [ratios(WITH_PEOPLE, 2 * SESSIONS, PLAIN, seed) for seed in seeds]
    for name, found in (("agents", alone), ("with_people", people)):
        tell(name, " ".join(f"{cold:.2f}/{warm:.2f}" for cold, warm in found))
        verdict.tell(f"{name}.warm_to_no_limit", statistics.mean(warm for _, warm in found))
        verdict.tell(f"{name}.cold_most", max(cold for cold, _ in found))
    verdict.at_most("agents.cold_to_no_limit", statistics.mean(cold for cold, _ in alone), 1.05)
    verdict.at_most("with_people.cold_to_no_limit", statistics.mean(cold for cold, _ in people), 1.0)
    verdict.tell("with_people.cold_to_warm", statistics.mean(cold / warm for cold, warm in people))


def main(argv: list[str] | None = None) -> int:
    return judged(__file__, __doc__, measure, quick="four seeds instead of twelve", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
