"""Does a simulation tell what happens? The same workload live and simulated, by the same brain.

    python -m benchmarks.fidelity [--quick] [--json]

Live: the gateway in front of two real vLLM servers on the CPU with a tiny model, each kept to one core (where
there are two), and clients that play a workload (`turnpike play`). Gateway and clients run on the same cores,
and so does each server's own API process: what they take is part of what is calibrated. Simulated: the same
sessions and the same settings of the same brain, before engines whose steps cost what a profile says.

The costs (`fidelity_profile.py`) are fitted to the engines' steps while one workload is played under one
policy, before and after the test, and to requests that were alone. What a shared core does varies by half
within minutes, so costs are in units of the machine's pace (`speedometer.py`), which is measured in each run.
What counts is another workload, with more sessions at once than the caches hold, under three policies. There,
if costs are off by a tenth, so are completions; where sessions only just fit, these are off by twice as much.
Mean and p90 of session completion within 15 % of live, and the same order of the policies, where they differ
live by more than 5 %, at the pace that each had.
"""

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.fidelity_profile import Alone, Costs, fitted
from benchmarks.gateway import gateway
from benchmarks.live import BLOCK, CHUNK, LONGEST, MODEL, SEQUENCES, Completions, Engines, Kind, drawn, played
from benchmarks.step_log import Step
from benchmarks.verdict import Verdict
from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.domain.session_ids import numbered_ids
from gateway.simulator.driver import ClientConfig
from gateway.simulator.engine.options import EngineOptions
from gateway.simulator.fleet import FleetSpec, ReplicaGroup
from gateway.simulator.live.endpoint import Endpoint
from gateway.simulator.run import POOL, simulate
from gateway.workload.trace.format import Session

Settings = dict[str, dict[str, Any]]
"""Of the gateway, by section."""
SEED: Final = 11
KV_BLOCKS: Final = 1_300
"""Of each server: two or three sessions at their longest."""
REPLICAS: Final = 2
ALONE_S: Final = 8.0
"""For each session that is alone."""
WITHIN: Final = 0.15
APART: Final = 0.05
"""Policies that differ by less are not ranked."""
POLICIES: Final[dict[str, Settings]] = {
    "affinity": {"admission": {"shadow": True}},
    "affinity, cap of 2": {"admission": {"policy": "session-cap", "session_cap": 2}},
    "one turn a replica": {"admission": {"shadow": True, "max_running_per_replica": 1}},
}
CALIBRATED_BY: Final = POLICIES["affinity"]

CALIBRATION: Final = Kind(
    name="calibration",
    seed=SEED,
    turns=(3, 6),
    first_tokens=(1_000, 16_000),
    grows_by=(100, 1_500),
    output_tokens=(10, 150),
    tool_s=0.4,
    apart_s=0.6,
)
TEST: Final = Kind(
    name="test",
    seed=SEED + 1,
    turns=(5, 9),
    first_tokens=(9_000, 14_000),
    grows_by=(300, 1_400),
    output_tokens=(10, 60),
    tool_s=0.8,
    apart_s=0.3,
)


def live(sessions: Iterable[Session], engines: Engines, policy: Settings, at: Path) -> Completions:
    with gateway(engines.urls, at, _as_toml(policy)) as url:
        return played(sessions, engines.urls, lambda client: Endpoint(client, url, MODEL))


def _as_toml(settings: Settings) -> str:
    return "".join(
        f"[{section}]\n"
        + "".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in keys.items())
        for section, keys in settings.items()
    )


def simulated(
    sessions: Iterable[Session],
    costs: Costs,
    policy: Settings,
    *,
    replicas: int = REPLICAS,
    kv_blocks: int = KV_BLOCKS,
    client: ClientConfig | None = None,
) -> Completions:
    found = Completions()
    profile = costs.profile(chunk_tokens=CHUNK, kv_tokens=kv_blocks * BLOCK)

    def make_brain(fleet: FleetSpec) -> Coordinator:
        urls = [{"url": f"http://{name}", "name": name} for name, _ in fleet.each()]
        tree = {"pools": [{"name": POOL, "replicas": urls}], **policy}
        return assemble(msgspec.convert(tree, Config), session_ids=numbered_ids())

    simulate(
        sessions,
        FleetSpec(replicas=(ReplicaGroup(profile="tiny", count=replicas, kv_blocks=kv_blocks),)),
        make_brain,
        options=EngineOptions(max_num_seqs=SEQUENCES, max_model_len=LONGEST, block_size=BLOCK),
        client=client,
        seed=SEED,
        sink=found,
        load_profile=lambda _: profile,
        front=costs.front,
    )
    return found


def measure(count: int, verdict: Verdict, tell: Any) -> None:
    calibration, test = drawn(CALIBRATION, count), drawn(TEST, count)
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))
        engines = Engines(stack, at, replicas=REPLICAS, kv_blocks=KV_BLOCKS)
        live(calibration[: count // 3], engines, CALIBRATED_BY, at / "warm")
        by_itself = alone(calibration[: count // 3], engines, at / "alone")
        began_s = time.time()
        before = live(calibration, engines, CALIBRATED_BY, at / "before")
        steps, lived = at_pace(engines.steps(began_s), before.pace_s), {}
        for number, (name, policy) in enumerate(POLICIES.items()):
            lived[name] = live(test, engines, policy, at / str(number))
            tell(f"live, {name}: mean {lived[name].mean:.2f} s, p90 {lived[name].p90:.2f} s")
        began_s = time.time()
        after = live(calibration, engines, CALIBRATED_BY, at / "after")
        steps += at_pace(engines.steps(began_s), after.pace_s)

    costs = fitted(steps, by_itself)
    tell(f"fitted: {costs}")
    for when, seen in (("before", before), ("after", after)):
        again = simulated(calibration, costs.times(seen.pace_s), CALIBRATED_BY)
        verdict.tell(f"calibration_error_{when}", again.mean / seen.mean - 1)
        verdict.tell(f"calibration_pace_{when}_ms", seen.pace_s * 1e3)
    played = {
        name: simulated(test, costs.times(lived[name].pace_s), policy) for name, policy in POLICIES.items()
    }
    for name in POLICIES:
        key = name.replace(",", "").replace(" ", "_")
        tell(f"simulated, {name}: mean {played[name].mean:.2f} s, p90 {played[name].p90:.2f} s")
        verdict.at_most(f"mean_error_{key}", abs(played[name].mean / lived[name].mean - 1), WITHIN)
        verdict.at_most(f"p90_error_{key}", abs(played[name].p90 / lived[name].p90 - 1), WITHIN)
        verdict.tell(f"pace_{key}_ms", lived[name].pace_s * 1e3)
        verdict.tell(f"live_mean_{key}_s", lived[name].mean)
        verdict.tell(f"simulated_mean_{key}_s", played[name].mean)
        verdict.at_most(f"failed_{key}", lived[name].failed + played[name].failed, 0)
    ranked, disagree = disagreements(
        {name: each.mean for name, each in lived.items()}, {name: each.mean for name, each in played.items()}
    )
    verdict.tell("pairs_ranked", ranked)
    verdict.at_most("pairs_ranked_otherwise", disagree, 0)


def at_pace(steps: Iterable[Step], pace_s: float) -> list[Step]:
    """In units of the machine's pace."""
    return [msgspec.structs.replace(step, took_s=step.took_s / pace_s) for step in steps]


def alone(sessions: Sequence[Session], engines: Engines, at: Path) -> list[Alone]:
    """One session after the other. A step of theirs is known by the length of its prompt."""
    began_s = time.time()
    apart = [
        msgspec.structs.replace(each, arrival_s=number * ALONE_S) for number, each in enumerate(sessions)
    ]
    played = live(apart, engines, CALIBRATED_BY, at)
    inside_s: defaultdict[int, float] = defaultdict(float)
    for step in engines.steps(began_s):
        inside_s[step.rows[0].prompt_tokens] += step.took_s
    lengths = Counter(turn.prompt_tokens for turn in played.turns)
    return [
        Alone(
            turn.prompt_tokens, (turn.end_s - turn.arrival_s - inside_s[turn.prompt_tokens]) / played.pace_s
        )
        for turn in played.turns
        if lengths[turn.prompt_tokens] == 1
    ]


def disagreements(lived: dict[str, float], played: dict[str, float]) -> tuple[int, int]:
    """Pairs of policies that differ live, and those of them whose order is another when simulated."""
    names = list(lived)
    pairs = [
        (one, other)
        for at, one in enumerate(names)
        for other in names[at + 1 :]
        if abs(lived[one] / lived[other] - 1) > APART
    ]
    wrong = [
        pair for pair in pairs if (lived[pair[0]] < lived[pair[1]]) != (played[pair[0]] < played[pair[1]])
    ]
    return len(pairs), len(wrong)


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(14 if is_quick else 40, verdict, tell),
        quick="14 sessions of each workload instead of 40",
        about=f"seed {SEED}",
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
