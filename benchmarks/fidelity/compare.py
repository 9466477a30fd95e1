"""Plays the same sessions live and simulated, by the same brain, and compares.

Live: the gateway in front of real vLLM servers on the CPU with a tiny model, each kept to one core (where
there are two), and clients that play a workload. Gateway and clients run on the same cores, and so does each
server's own API process: what they take is part of what is calibrated. Simulated: the same sessions and
settings, before engines whose steps cost what a profile says. Clients are agents that chat and call tools
(`chats.py`).

The costs (`costs.py`) are fitted to the engines' steps and to requests while one workload is played under one
policy, before and after the test. What a shared core does varies by half within minutes, and with the policy:
where sessions wait for admission, fewer requests share the cores with the engines. So costs are in units of
the machine's pace (`speedometer.py`) when they are fitted, and each run is simulated at the pace of its own
engines' steps: one factor, by which the run's steps took longer than fitted. What is compared is what
policies make of it: who waits, what is cached, what is computed again. What counts is another workload, with
more sessions at once than the caches hold.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.fidelity.chats import CLIENT
from benchmarks.fidelity.costs import Asked, Costs, fitted
from benchmarks.gateway import Settings, as_toml, gateway
from benchmarks.live import BLOCK, CHUNK, LONGEST, SEQUENCES, Completions, Engines, played
from benchmarks.verdict import Interval, Verdict, bootstrapped, percentile
from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.cost.profile import Profile
from gateway.domain.records import Expected, GpuFirstToken, GpuSubmit, Record
from gateway.domain.session_ids import numbered_ids
from lab.engine.step_log import Step
from lab.simulator.engine.front import FrontCosts
from lab.simulator.engine.options import EngineOptions
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.live.endpoint import Endpoint
from lab.simulator.run import POOL, simulate
from lab.workload.trace.format import Session

Ask = Callable[[aiohttp.ClientSession, str], Endpoint]
"""How clients ask the gateway at that URL."""
SEED: Final = 11
WITHIN: Final = 0.15


def live(sessions: Iterable[Session], engines: Engines, policy: Settings, at: Path, ask: Ask) -> Completions:
    stream = at / "stream.jsonl"
    with gateway(engines.urls, at, as_toml({**policy, "stream": {"path": str(stream)}})) as url:
        found = played(sessions, engines.urls, lambda client: ask(client, url))
    found.stream = stream
    return found


def simulated(
    sessions: Iterable[Session],
    policy: Settings,
    profile: Profile,
    front: FrontCosts,
    group: ReplicaGroup,
    options: EngineOptions,
) -> Completions:
    """`group`: the replicas; `options`: of their engines."""
    found = Completions()

    def make_brain(fleet: FleetSpec) -> Coordinator:
        urls = [{"url": f"http://{name}", "name": name} for name, _ in fleet.each()]
        tree = {"pools": [{"name": POOL, "replicas": urls}], **policy}
        return assemble(msgspec.convert(tree, Config), session_ids=numbered_ids())

    simulate(
        sessions,
        FleetSpec(replicas=(group,)),
        make_brain,
        options=options,
        client=CLIENT,
        seed=SEED,
        sink=found,
        load_profile=lambda _: profile,
        front=front,
    )
    return found


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """What is played live and simulated."""

    engines: Engines
    policy: Settings
    plugin: Settings | None = None
    """Its settings, if the engines carry it."""

    def live(self, sessions: Iterable[Session], at: Path, ask: Ask) -> Completions:
        return live(sessions, self.engines, self.policy, at, ask)

    def simulated(self, sessions: Iterable[Session], costs: Costs) -> Completions:
        blocks = self.engines.kv_blocks
        return simulated(
            sessions,
            self.policy,
            costs.profile(chunk_tokens=CHUNK, kv_tokens=blocks * BLOCK),
            costs.front,
            ReplicaGroup(profile="tiny", count=len(self.engines.urls), kv_blocks=blocks),
            EngineOptions(
                max_num_seqs=SEQUENCES, max_model_len=LONGEST, block_size=BLOCK, plugin=self.plugin
            ),
        )


def compare(
    arms: Mapping[str, Arm],
    calibration: Sequence[Session],
    test: Sequence[Session],
    at: Path,
    verdict: Verdict,
    tell: Any,
    *,
    ask: Ask,
    rounds: int = 1,
    groups: Sequence[str] = ("",),
) -> dict[str, list[Completions]]:
    """Returns what was live. Costs are calibrated by the first arm; every other round is played backwards.

    `groups`: how names of sessions begin that are judged together; the arms are ranked by the first group.
    """
    base, few = next(iter(arms.values())), calibration[: len(calibration) // 3]
    for number, arm in enumerate({id(arm.engines): arm for arm in arms.values()}.values()):
        arm.live(few, at / f"warm-{number}", ask)
    steps, requests = list[Step](), list[Asked]()

    def calibrated(when: str) -> Completions:
        run = base.live(calibration, at / when, ask)
        seen = base.engines.steps(run.began_s)
        steps.extend(at_pace(itertools.chain(*seen), run.pace_s))
        requests.extend(asked(run, seen))
        return run

    before = calibrated("before")
    lived: dict[str, list[Completions]] = {name: [] for name in arms}
    own_steps: dict[str, list[list[Step]]] = {name: [] for name in arms}
    for number in range(rounds):
        for name in [*arms][:: -1 if number % 2 else 1]:
            run = arms[name].live(test, at / f"{number} {name}", ask)
            lived[name].append(run)
            own_steps[name].append(list(itertools.chain(*arms[name].engines.steps(run.began_s))))
            tell(
                f"live, {name}: mean {run.mean:.2f} s, p90 {run.p90:.2f} s, others' share {run.strangers:.2f}"
            )
    after = calibrated("after")
    costs = fitted(steps, requests)
    tell(f"fitted: {costs}")
    for when, seen in (("before", before), ("after", after)):
        again = base.simulated(calibration, costs.times(seen.pace_s))
        verdict.tell(f"calibration_error_{when}", again.mean / seen.mean - 1)
        verdict.tell(f"calibration_pace_{when}_ms", seen.pace_s * 1e3)
    played = {
        name: [arm.simulated(test, costs.times(costs.pace_of(steps))) for steps in own_steps[name]]
        for name, arm in arms.items()
    }
    for name, group in itertools.product(arms, groups):
        key = "_".join([name.replace(",", ""), *filter(None, [group])]).replace(" ", "_")
        judge(key, of(group, lived[name]), of(group, played[name]), verdict)
    judge_estimates([run for runs in lived.values() for run in runs], verdict)
    first = groups[0]
    judge_ranks(
        {name: of(first, runs) for name, runs in lived.items()},
        {name: of(first, runs) for name, runs in played.items()},
        verdict,
        tell,
    )
    return lived


def of(group: str, runs: Iterable[Completions]) -> list[Completions]:
    return [run.of(group) for run in runs]


def judge(key: str, lived: Sequence[Completions], played: Sequence[Completions], verdict: Verdict) -> None:
    found, expected = figures(lived), figures(played)
    for figure, live_s in found.items():
        verdict.at_most(f"{figure}_error_{key}", abs(expected[figure] / live_s - 1), WITHIN)
        verdict.tell(f"live_{figure}_{key}_s", live_s)
        verdict.tell(f"live_{figure}_{key}_noise", noise([figures([run])[figure] for run in lived]))
        verdict.tell(f"simulated_{figure}_{key}_s", expected[figure])
    verdict.tell(f"pace_{key}_ms", statistics.fmean(run.pace_s for run in lived) * 1e3)
    verdict.tell(f"others_share_{key}", max(run.strangers for run in lived))
    verdict.at_most(f"failed_{key}", sum(run.failed for run in (*lived, *played)), 0)


def noise(rounds: Sequence[float]) -> float | None:
    """Half of the mean's interval (95 %), relative to it. A smaller error cannot be told from none."""
    return None if len(rounds) < 2 else 1 - Interval.of(rounds).low / statistics.fmean(rounds)


def figures(runs: Sequence[Completions]) -> dict[str, float]:
    """Of all sessions' completion, and of all turns' first tokens."""
    whole_s = [each for run in runs for each in run.seconds.values()]
    first_s = [turn.first_token_s - turn.arrival_s for run in runs for turn in run.turns]
    return {
        f"{name}{figure}": value
        for name, seconds in (("", whole_s), ("first_token_", first_s))
        for figure, value in (
            ("mean", statistics.fmean(seconds)),
            ("p50", percentile(seconds, 50)),
            ("p90", percentile(seconds, 90)),
        )
    }


def judge_estimates(runs: Iterable[Completions], verdict: Verdict) -> None:
    """What the gateway expected of first tokens when it sent a turn, of each run's last half, beside the
    median of the last 50 delays."""
    errors, naive, within = list[float](), list[float](), list[bool]()
    for run in runs:
        turns = estimates(run)
        for at in range(len(turns) // 2, len(turns)):
            expected, delay_ms = turns[at]
            errors.append(abs(expected.first_token_ms / delay_ms - 1))
            within.append(expected.first_token_p10_ms <= delay_ms <= expected.first_token_p90_ms)
            recent_ms = [each for _, each in turns[max(0, at - 50) : at]]
            naive.append(abs(statistics.median(recent_ms) / delay_ms - 1) if recent_ms else 1.0)
    verdict.tell("estimated_first_token_median_error", statistics.median(errors))
    verdict.tell("estimated_first_token_median_error_of_the_last_50", statistics.median(naive))
    verdict.tell("estimated_p10_to_p90_covers", statistics.fmean(within))


def estimates(run: Completions) -> list[tuple[Expected, float]]:
    """Of each turn: what was expected when it was sent, and the ms until its first token."""
    assert run.stream is not None
    submits, found, decoder = dict[str, Expected](), [], msgspec.json.Decoder(Record)
    for line in run.stream.read_bytes().splitlines():
        match decoder.decode(line):
            case GpuSubmit(expected=expected) as record if expected is not None:
                submits[record.turn] = expected
            case GpuFirstToken() as record if record.turn in submits:
                found.append((submits[record.turn], record.launch_delay_ms))
            case _:
                pass
    return found


def judge_ranks(
    lived: Mapping[str, Sequence[Completions]],
    played: Mapping[str, Sequence[Completions]],
    verdict: Verdict,
    tell: Any,
) -> None:
    """Of each two arms, by how much the first takes longer. What differs live by less than the noise has no
    rank."""
    ranked = wrong = 0
    for one, other in itertools.combinations(lived, 2):
        seen = [longer(*runs) for runs in zip(lived[one], lived[other], strict=True)]
        foreseen = [longer(*runs).mean for runs in zip(played[one], played[other], strict=True)]
        told = ", ".join(f"{each.mean:+.1%} ({each.low:+.1%} to {each.high:+.1%})" for each in seen)
        tell(f"{one} to {other}: live {told}; simulated {statistics.fmean(foreseen):+.1%}")
        is_longer = all(each.low > 0 for each in seen)
        if is_longer or all(each.high < 0 for each in seen):
            ranked += 1
            wrong += (statistics.fmean(foreseen) > 0) != is_longer
    verdict.tell("pairs_ranked", ranked)
    verdict.at_most("pairs_ranked_otherwise", wrong, 0)


def longer(one: Completions, other: Completions) -> Interval:
    """Than the other, relative to its mean: session by session."""
    return bootstrapped([(one.seconds[name] - other.seconds[name]) / other.mean for name in other.seconds])


def at_pace(steps: Iterable[Step], pace_s: float) -> list[Step]:
    """In units of the machine's pace."""
    return [msgspec.structs.replace(step, took_s=step.took_s / pace_s) for step in steps]


def asked(run: Completions, steps: Iterable[Sequence[Step]]) -> list[Asked]:
    """Requests, in units of the machine's pace. `steps`: of each engine. Which request is which is known by
    the length of the prompt."""
    in_engine = {  # until the end of the prompt's last step, which gives the first token
        row.prompt_tokens: (row.arrived_s, step.ended_s, of_engine)
        for of_engine in steps
        for step in of_engine
        for row in step.rows
        if row.arrived_s
    }
    lengths = Counter(turn.prompt_tokens for turn in run.turns)
    found = []
    for turn in run.turns:
        if lengths[turn.prompt_tokens] == 1 and turn.prompt_tokens in in_engine:
            arrived_s, ended_s, of_engine = in_engine[turn.prompt_tokens]
            outside_s = turn.first_token_s - turn.arrival_s - turn.waited_s - (ended_s - arrived_s)
            computed_s = sum(
                max(0.0, min(step.ended_s, arrived_s) - max(step.began_s, arrived_s - outside_s))
                for step in of_engine
            )
            found.append(Asked(turn.prompt_tokens, outside_s / run.pace_s, computed_s < outside_s / 2))
    return found
